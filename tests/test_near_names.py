"""Errors suggest the name that was meant, for axes, ops, modules and options."""

from __future__ import annotations

import pytest

from dsexplore._internal.near_names import did_you_mean, listed, nearest, options_meant


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("pt", ["dp", "tp"], "tp"),
        ("pd", ["tp", "dp"], "dp"),
        ("allreduce", ["all_gather", "all_reduce"], "all_reduce"),
        ("LAYERS.0", ["Net.layers.0", "layers.0"], "layers.0"),
        ("x", ["dp", "tp"], None),
        (3, ["dp"], None),
        ("dp", [], None),
        ("", ["dp", ""], None),
    ],
)
def test_nearest(given: object, known: list[str], meant: str | None) -> None:
    assert nearest(given, known) == meant
    assert did_you_mean(given, known) == (f" (did you mean {meant!r}?)" if meant else "")


def test_of_many_names_the_first_are_listed() -> None:
    assert listed(["dp", "tp"]) == "dp, tp"
    assert listed(f"g{i}" for i in range(1500)).endswith("g11 and 1,488 more")


def test_the_option_that_argparse_did_not_know() -> None:
    known = ["-o", "--world-size", "--mesh"]
    assert options_meant("unrecognized arguments: --worldsize=8", known) == " (did you mean --world-size?)"
    assert options_meant("unrecognized arguments: --mesh 3 --mehs", known) == " (did you mean --mesh?)"
    assert options_meant("argument --world-size: invalid int value: 'many'", ["--world-size:"]) == ""
    assert options_meant("unrecognized arguments: x", known) == ""


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("argument --world-size: invalid int value: 'eight'", " (give a whole number, such as --world-size 8)"),
        ("argument -s/--timeout: invalid float value: 'soon'", " (give a number, such as --timeout 0.5)"),
        ("argument --attention: invalid choice: 'cudn' (choose from 'flash-2', 'cudnn')", " (did you mean 'cudnn'?)"),
        ("argument --attention: invalid choice: 'cudn' (choose from flash-2, cudnn)", " (did you mean 'cudnn'?)"),
        ("argument --attention: invalid choice: 'Cuddn' (choose from 'flash-2', 'cudnn')", " (did you mean 'cudnn'?)"),
        ("argument --attention: invalid choice: 'x' (choose from 'flash-2', 'cudnn')", ""),
        ("unrecognized arguments: --gpu a100", " (did you mean --hardware?)"),
        ("unrecognized arguments: --cluster=dgx-h100", " (did you mean --hardware?)"),
        ("argument --timeout: expected one argument", ""),
    ],
)
def test_a_value_that_an_option_does_not_take(message: str, hint: str) -> None:
    """A hint does not name the option of the command line itself."""
    assert options_meant(message, ["--world-size", "--timeout", "--attention", "--hardware"]) == hint
