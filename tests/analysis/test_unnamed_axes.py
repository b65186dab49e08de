"""Traces whose groups have no name say which option gives them one, and with that option they have it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import dsexplore
from dsexplore._internal.analysis.unnamed_axes import naming_notes
from dsexplore._internal.trace.trace import Trace


def all_ranks() -> None:
    dist.all_reduce(torch.ones(4))


def every_second_rank() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_group([0, 2, 4, 6]))


def neighbours() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_subgroups(2)[0])


def middle_axis() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_subgroups_by_enumeration([[0, 2], [1, 3], [4, 6], [5, 7]])[0])


def mesh_without_names() -> None:
    mesh = init_device_mesh("cpu", (4, 2))
    dist.all_reduce(torch.ones(4), group=mesh.get_group(0))
    dist.all_reduce(torch.ones(4), group=mesh.get_group(1))


def traced(program: Callable[[], None], mesh: str | None = None) -> Trace:
    with dsexplore.simulate(8, mesh=mesh), dsexplore.commtrace() as trace:
        program()
    return trace


@pytest.mark.parametrize(
    ("program", "mesh"),
    [
        (all_ranks, "dp=8"),
        (every_second_rank, "dp=4,tp=2"),
        (neighbours, "dp=4,tp=2"),
        (middle_axis, "pp=2,dp=2,tp=2"),
        (mesh_without_names, "dp=4,tp=2"),
    ],
)
def test_the_option_that_is_said_names_the_axis(program: Callable[[], None], mesh: str) -> None:
    trace = traced(program)
    said = naming_notes(trace.tables)
    assert [re.findall(r"--mesh (\S+), or", note) for note in said] == [[mesh]] * len(said) != []
    shown = trace._repr_mimebundle_()
    assert all(f"note: {note}" in shown["text/plain"] and html.escape(note) in shown["text/html"] for note in said)
    named = traced(program, mesh)
    assert set(named.events["axis"]) <= {"pp", "dp", "tp"}
    assert naming_notes(named.tables) == []


def test_ranks_at_uneven_distances_are_named_in_the_program() -> None:
    def program(description: str | None = None) -> None:
        dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1, 5], group_desc=description))

    (note,) = naming_notes(traced(program).tables)
    assert note == (
        'groups of 3 ranks have no axis name: give mesh_dim_names to the mesh, or group_desc="dp" to new_group'
    )
    named = traced(lambda: program("dp"))
    assert named.events["axis"].to_list() == ["dp"]
    assert naming_notes(named.tables) == []


def test_a_group_of_all_ranks_beside_a_named_mesh_is_along_all_of_its_axes() -> None:
    assert naming_notes(traced(all_ranks, "dp=4,tp=2").tables) == []


def on_real_ranks(named: bool) -> list[str]:
    with dsexplore.commtrace() as trace:
        if named:
            init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)).get_group()
        dist.all_reduce(torch.ones(4))
    return naming_notes(trace.tables)


def test_real_ranks_are_named_by_the_program() -> None:
    assert dsexplore.run_ranks(on_real_ranks, 2, args=(True,)).values == [[], []]
    (note,), same = dsexplore.run_ranks(on_real_ranks, 2, args=(False,)).values
    assert same == [note]
    assert note.startswith("the group of all 2 ranks has no axis name: give mesh_dim_names to the mesh")
