"""Frames that are recognized by file and name are functions of the installed torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from dsexplore._internal.torch_internals import frames

OF_SOME_VERSIONS = {"_initialize_pp_stages", "_initialize_stage", "_initialize_stages"}


@cache
def functions(file: str) -> set[str]:
    """Return the names of all functions and methods in a file of torch."""
    tree = ast.parse(Path(frames.TORCH, file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), [pair for pair in frames._BY_NAME if pair[1] not in OF_SOME_VERSIONS])
def test_a_frame_is_one_of_torch(file: str, name: str) -> None:
    assert name in functions(file)


def test_pipeline_stages_are_initialized_in_one_of_these() -> None:
    assert OF_SOME_VERSIONS & functions("distributed/pipelining/schedules.py")


@pytest.mark.parametrize("file", frames._BY_FILE)
def test_a_file_is_one_of_torch(file: str) -> None:
    assert functions(file)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (frames.FSDP_CAUSES, frames.FSDP),
        (frames.FSDP1_CAUSES, frames.FLAT_PARAMETER),
        (frames.SENDER_CAUSES, frames.SENDER),
    ],
)
def test_a_cause_is_that_of_a_function_of_its_kind(names: dict[str, str], kind: int) -> None:
    files = [file for file, of_file in frames._BY_FILE.items() if of_file == kind]
    known = {name for (_, name), of_name in frames._BY_NAME.items() if of_name == kind}
    assert names.keys() <= known.union(*map(functions, files))


@pytest.mark.parametrize("file", frames.REDUCTION_PARAMETERS)
def test_a_reduction_is_a_parameter_of_functions_in_its_file(file: str) -> None:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    parameters = {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
    assert frames.REDUCTION_PARAMETERS[file] in parameters


def test_the_step_that_makes_an_optimizers_state() -> None:
    from torch.distributed.checkpoint import state_dict

    assert frames.makes_optimizer_state(state_dict._init_optim_state.__code__)
