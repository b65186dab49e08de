"""Each entry of the patch tables has a reason, and replaces its name in torch while a world is open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import UsageError
from dsexplore._internal.torch_internals import names
from dsexplore._internal.torch_internals.names import TorchName, is_there
from dsexplore._internal.torch_internals.patches import Change, Kernel, Parts, Patch, Patches, install_all
from dsexplore._internal.worlds.cuda.stand_in import TABLE as TABLE_OF_GPUS
from dsexplore._internal.worlds.patch_table import TABLE

ALL = (*TABLE, *TABLE_OF_GPUS)
KEPT: list[Any] = []
"""Objects that were identified, so that no other gets the identity."""
PATCHED = [entry for entry in ALL if isinstance(entry, Patch)]


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the names of this test out of the registry of torch's names."""
    monkeypatch.setattr(names, "registered_names", dict(names.registered_names))


def value_of(name: TorchName) -> tuple[int, list[CodeType | None]]:
    """Return the identity of a name's value, and the code of a function and of those that it wraps."""
    value = function = vars(name.owner()).get(name.attribute)
    codes = [getattr(value, "__code__", None)]
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        codes.append(getattr(function, "__code__", None))
    KEPT.append(value)
    return id(value), codes


@contextmanager
def world_of_all_entries(gpu: str) -> Iterator[None]:
    """Open a simulated world in which every entry is installed."""
    with dsexplore.simulate(4, fake=True, hardware=gpu):
        yield


def test_every_entry_says_when_and_why() -> None:
    assert len(PATCHED) > 100
    for entry in ALL:
        assert len(entry.why) > 10, entry
        assert entry.when in ("always", "fake", "cuda traffic", "cuda device"), entry
        assert entry.when == "cuda device" or entry in TABLE, entry


def test_every_name_of_torch_is_replaced_in_a_world_and_put_back() -> None:
    gpus = ("h100", "mi300x")  # of two makers, of which each has versions of its own
    with world_of_all_entries(gpus[0]):
        pass  # which imports what the entries need
    there = [
        entry for entry in PATCHED if entry.target.is_of_torch and entry.target.is_loaded and entry.target.is_there
    ]
    before = {entry.target.path: value_of(entry.target) for entry in there}
    unchanged = set(before)
    for gpu in gpus:
        with world_of_all_entries(gpu):
            unchanged -= {entry.target.path for entry in there if value_of(entry.target) != before[entry.target.path]}
    assert {entry.target.path: value_of(entry.target) for entry in there} == before
    if dist.is_nccl_available():
        unchanged -= {"torch.distributed.distributed_c10d:_NCCL_AVAILABLE"}  # it is so already
    assert not unchanged, "entries that replace nothing"


def test_an_op_is_named_as_the_dispatcher_names_it() -> None:
    for entry in ALL:
        if isinstance(entry, Kernel):
            namespace, _, name = entry.op.partition("::")
            assert namespace, entry
            assert name, entry


def test_a_name_that_is_gone_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Patch(TorchName("torch.nn:Module._gone"), "it reads its table", lambda original, parts: original)
    (sentence,) = install_all([gone], {"always"}, Patches(), Parts())
    assert f"torch {torch.__version__} has no torch.nn.Module._gone" in sentence
    assert "it reads its table" in sentence
    older = Patch(TorchName("torch.nn:Module._gone", until="2.8"), "it reads", lambda original, parts: original)
    assert install_all([older], {"always"}, Patches(), Parts()) == []


def test_what_cannot_be_had_without_a_name_is_refused() -> None:
    gone = Patch(
        TorchName("torch.nn:Module._gone"), "of no use", lambda original, parts: original, needed_for="fake=True"
    )
    with pytest.raises(UsageError, match=r"fake=True needs torch\.nn\.Module\._gone, which torch .* does not have"):
        install_all([gone], {"always"}, Patches(), Parts())


def test_an_entry_of_another_world_is_not_installed() -> None:
    patches = Patches()
    made: list[str] = []
    entry = Change("a list", "to be seen here", lambda patches, parts: made.append("made"), when="fake")
    install_all([entry], {"always", "cuda traffic"}, patches, Parts())
    assert made == []
    install_all([entry], {"fake"}, patches, Parts())
    assert made == ["made"]


def test_a_module_that_is_imported_later_is_changed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    name = TorchName("this:c")
    patches = Patches()
    entry = Patch(name, "to be seen here", lambda original, parts: ("replaced", original))
    assert install_all([entry], {"always"}, patches, Parts()) == []
    assert "this" not in sys.modules
    try:
        assert name.get()[0] == "replaced"
    finally:
        patches.undo()
    assert name.get() == 97
    assert is_there(name.get())


def test_parts_are_found_by_type_and_made_when_first_asked_for() -> None:
    own = {"a": 1}
    parts = Parts(own)
    assert parts[dict] is own
    assert parts[list] is parts[list]
    parts.add([7])
    assert parts[list] == [7]
