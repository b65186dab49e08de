"""The canary lists what an installed torch lacks or has changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dsexplore._internal.torch_internals import canary, names
from dsexplore._internal.torch_internals.names import TorchName


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names asked for here are not among those that the package uses."""
    monkeypatch.setattr(names, "registered_names", dict(names.registered_names))


def test_every_private_name_is_as_expected_on_the_installed_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # setuptools, which a module of torch's imports, adds to it
    used = canary.load_all_names()
    assert len(used) > 50
    found = canary.differences(used, canary.read_signatures())
    assert not [each for each in found if each.kind == "missing"]


def test_a_name_that_is_gone_and_one_that_came_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.15.0")
    gone, early, there = (
        TorchName("torch.nn:Module._gone"),
        TorchName("torch.nn:Module._apply", since="2.16"),
        TorchName("torch:compile"),
    )
    found = canary.differences([gone, early, there], {})
    assert [(each.path, each.kind) for each in found] == [
        ("torch.nn:Module._gone", "missing"),
        ("torch.nn:Module._apply", "unexpected"),
    ]
    assert str(found[0]) == "missing     torch.nn:Module._gone, expected in torch 2.9 to the newest"


def test_a_function_that_takes_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.15.0")
    recorded = {
        "2.13": {"torch.nn:Module._apply": "(self, fn, recurse)"},
        "2.14": {"torch.nn:Module._apply": "(self, fn)"},
    }
    (found,) = canary.differences([TorchName("torch.nn:Module._apply")], recorded)
    assert str(found) == "signature   torch.nn:Module._apply(self, fn, recurse), was (self, fn) in torch 2.14"
    monkeypatch.setattr(torch, "__version__", "2.13.1")
    assert not canary.differences([TorchName("torch.nn:Module._apply")], recorded)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda first, /, second: None, "(first, /, second)"),
        (lambda first, *rest, named, **others: None, "(first, *rest, named, **others)"),
        (len, ""),
        (torch.nn.Module, ""),
    ],
)
def test_arguments(function: Any, expected: str) -> None:
    assert canary.arguments(function) == expected


def test_what_is_recorded_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(canary, "SIGNATURES", tmp_path / "signatures.json")
    monkeypatch.setattr(
        canary, "load_all_names", lambda: [TorchName("torch.nn:Module._apply"), TorchName("torch:compile")]
    )
    assert canary.main(["--record"]) == 0
    assert canary.main([]) == 0
    minor = ".".join(map(str, names.minor_version(torch.__version__)))
    assert canary.read_signatures()[minor]["torch.nn:Module._apply"] == "(self, fn, recurse)"
    assert "2 names, 1 of them private, 0 missing, 0 unexpected, 0 with other arguments" in capsys.readouterr().out
    assert canary.main(["--names"]) == 0
    assert "torch.nn:Module._apply  2.9 to the newest" in capsys.readouterr().out


def test_names_that_are_looked_up_later_are_known_too() -> None:
    source = """
first = internal("torch:a")
def later():
    return internal("torch:b", since="2.12", until="2.14")(TorchName(f"torch:{x}"))
table = {"c": partial(internal, "torch:c", since="2.10", otherwise=lambda: None)}
"""
    assert sorted(canary.names_in_source(source)) == [
        ("torch:a", "2.9", None),
        ("torch:b", "2.12", "2.14"),
        ("torch:c", "2.10", None),
    ]


def test_the_private_names_are_few() -> None:
    command = [
        sys.executable,
        "-m",
        "dsexplore._internal.torch_internals",
    ]  # in a process of its own: tests register names too
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    private = re.search(r"(\d+) of them private", printed)
    assert private
    assert 50 < int(private[1]) < 160


def test_attributes_of_a_private_class_are_counted_with_it() -> None:
    paths = [
        "torch:ops.aten._to_copy",
        "torch._dynamo",
        "torch._a:B.c",
        "torch._a:B.d",
        "torch._a:B._e",
        "torch.nn:Module._f",
        "torch.nn:Module.__init__",
    ]
    assert canary.private_names(list(map(TorchName, paths))) == ["torch._a:B", "torch._a:B._e", "torch.nn:Module._f"]
