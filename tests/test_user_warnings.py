"""Warnings name the user's line."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsexplore import Trace, simulate
from dsexplore._internal import user_warnings
from dsexplore._internal.capture import recorder
from dsexplore._internal.capture.record import record
from dsexplore._internal.user_warnings import warn


def place(caught: list[warnings.WarningMessage]) -> tuple[str, str]:
    """Return the file of the single warning, and the text of its line."""
    (one,) = caught
    return one.filename, Path(one.filename).read_text(encoding="utf-8").splitlines()[one.lineno - 1].strip()


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def test_the_innermost_line_that_is_neither_ours_nor_torchs(caught: list[warnings.WarningMessage]) -> None:
    class Warning_(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warn("inside")
            return x

    nn.Sequential(Warning_())(torch.ones(1))
    assert place(caught) == (__file__, 'warn("inside")')


def test_a_thread_in_which_no_line_is_the_users(caught: list[warnings.WarningMessage]) -> None:
    thread = threading.Thread(target=warn, args=("alone",))
    thread.start()
    thread.join(timeout=240)
    assert caught[0].filename == threading.__file__


def test_of_an_op_that_could_not_be_described(
    caught: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "read_stack", lambda *_: 1 / 0)
    with simulate(world_size=4), record() as trace:
        dist.all_reduce(torch.ones(2))
    assert len(trace) == 0
    assert place(caught) == (__file__, "dist.all_reduce(torch.ones(2))")


def test_of_a_model_that_could_not_be_read(caught: list[warnings.WarningMessage]) -> None:
    class Unreadable(nn.Module):
        def named_modules(self, *_args: object, **_kwargs: object) -> Iterator[tuple[str, nn.Module]]:
            raise LookupError("no list of my parts")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = Unreadable()
    with record():
        model(torch.ones(1))
    assert place(caught) == (__file__, "model(torch.ones(1))")


def test_of_a_merge_that_was_interrupted(caught: list[warnings.WarningMessage]) -> None:
    def traces() -> Iterator[Trace]:
        yield Trace()
        raise KeyboardInterrupt

    merged = Trace.merge(traces())
    assert "interrupted" in merged.info.notes[0]
    assert place(caught) == (__file__, "merged = Trace.merge(traces())")


@pytest.mark.parametrize("fake", [False, True])
def test_of_torch_inside_a_wrapper_of_ours(caught: list[warnings.WarningMessage], fake: bool) -> None:
    with simulate(world_size=4, fake=fake):
        DistributedDataParallel(nn.Linear(4, 4), check_reduction=True)
    assert "check_reduction" in str(caught[0].message)
    assert place(caught) == (__file__, "DistributedDataParallel(nn.Linear(4, 4), check_reduction=True)")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_of_torch_in_cpp_inside_a_wrapper_of_ours(caught: list[warnings.WarningMessage], device: str) -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch says it once per process otherwise
    try:
        with simulate(world_size=4, hardware="h100" if device == "cuda" else None):
            loss = nn.Linear(4, 1)(torch.ones(1, 4)).sum()
            float(loss)
    finally:
        torch.set_warn_always(before)
    assert "requires_grad=True" in str(caught[0].message)
    assert place(caught) == (__file__, "float(loss)")


def test_a_closed_world_leaves_the_showing_of_warnings_as_it_was() -> None:
    before = warnings._showwarnmsg  # type: ignore[attr-defined]
    with simulate(world_size=4):
        assert warnings._showwarnmsg is not before  # type: ignore[attr-defined]
    assert warnings._showwarnmsg is before  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["2.16.0", "2.8.0+cpu"])
def test_a_torch_that_was_not_tested_is_warned_of_once(
    version: str, caught: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_warnings, "_asked_for_torch", False)
    monkeypatch.setattr(torch, "__version__", version)
    for _ in range(2):
        with simulate(2), record() as trace:
            dist.all_reduce(torch.ones(2))
        assert len(trace) == 1
    of_range = [one for one in caught if "is tested with" in str(one.message)]  # beside names that such a torch lacks
    assert [str(one.message) for one in of_range] == [f"dsexplore is tested with torch 2.9 to 2.15; this is {version}"]
    assert place(of_range)[1] == "with simulate(2), record() as trace:"


def test_a_torch_that_was_tested_is_not_warned_of(
    caught: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_warnings, "_asked_for_torch", False)
    monkeypatch.setattr(torch, "__version__", "2.15.1+cu130")
    with record():
        pass
    assert not caught
