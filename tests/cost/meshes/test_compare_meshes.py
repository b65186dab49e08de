"""Meshes of one program, traced in processes of their own and compared."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.cost.meshes.compare_meshes import compare_meshes, factorisations, trace_rank
from dsexplore._internal.cost.meshes.mesh_comparison import MeshComparison, perturbed_constants
from dsexplore._internal.cost.step.prediction import predict
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.views import view_of
from dsexplore._internal.worlds import demo
from tests.cost.sharded_llama import sharded_llama
from tests.cost.test_microbatches import SIZES
from tests.cost.test_microbatches import build as stages


def build(mesh: DeviceMesh) -> Callable[[], None]:
    """Return a Llama whose four heads of keys do not divide among 8 ranks."""
    shape = demo.Shape(layers=1, dim=512, heads=8, kv_heads=4, hidden=1024, vocabulary=512)
    model = sharded_llama(mesh, shape)
    tokens = torch.randint(512, (8, 513))
    return lambda: demo.train_step(model, tokens)


def built_with(mesh: DeviceMesh, rows: int, recompute: bool) -> Callable[[], None]:
    """Four layers over ranks that hold the same, with two choices."""
    layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4))

    def step() -> None:
        value = torch.randn(rows, 512, requires_grad=True)
        for layer in layers:
            value = checkpoint(layer, value, use_reentrant=False) if recompute else layer(value).relu()
        value.sum().backward()

    return step


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def compared(cache: Path) -> MeshComparison:
    return compare_meshes(build, 8, axes=("dp", "tp"), cache=cache)


def test_factorisations_are_all_products_of_the_ranks() -> None:
    found = list(factorisations(12, ("a", "b", "c")))
    assert all(one["a"] * one["b"] * one["c"] == 12 for one in found)
    assert len(found) == len({tuple(one.values()) for one in found}) == 18
    assert list(factorisations(7, ("dp",))) == [{"dp": 7}]


@pytest.mark.processes
def test_meshes_are_ranked_and_those_that_cannot_be_say_why(compared: MeshComparison) -> None:
    frame = compared.to_frame()
    assert set(frame["mesh"]) == {"dp=8,tp=1", "dp=4,tp=2", "dp=2,tp=4", "dp=1,tp=8"}
    assert len(compared.ranking) == 3
    assert len(compared) == 4
    assert frame["step"].drop_nulls().is_sorted()
    dropped = frame.filter(mesh="dp=1,tp=8")["dropped"].item()
    assert "Error" in dropped
    assert compared.best.step == compared[compared.ranking[0].mesh].step
    with pytest.raises(UsageError, match="dp=3,tp=1"):
        compared["dp=3,tp=1"]


@pytest.mark.processes
def test_what_was_traced_is_not_traced_again(
    compared: MeshComparison, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dsexplore._internal.cost.meshes.compare_meshes.run_ranks", lambda *_args, **_options: pytest.fail("traced")
    )
    collector = gc.get_threshold()
    again = compare_meshes(build, 8, "dgx-a100", axes=("dp", "tp"), cache=cache)
    assert gc.get_threshold() == collector
    assert [one.mesh for one in again.ranking] != []
    assert again.best.step.expected > compared.best.step.expected


@pytest.mark.processes
def test_a_mesh_is_predicted_once_and_while_others_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []

    def noted(*args: Any) -> Any:
        traced.append(len(list(tmp_path.iterdir())))
        return predict(*args)

    monkeypatch.setattr("dsexplore._internal.cost.meshes.compare_meshes.predict", noted)
    again = compare_meshes(build, 8, axes=("dp", "tp"), cache=tmp_path, processes=1)
    assert len(traced) == len(again.ranking) == 3
    assert traced[0] < 4


@pytest.mark.processes
def test_ranks_that_one_process_traces_are_as_those_traced_alone(tmp_path: Path) -> None:
    found = compare_meshes(stages, 6, axes=tuple(SIZES), keep=lambda sizes: sizes == SIZES, cache=tmp_path, processes=1)
    ranks = [trace_rank(stages, SIZES, stage * SIZES["dp"]) for stage in range(SIZES["pp"])]
    alone = predict(merge_tables(ranks))
    (mesh,) = found.ranking
    assert mesh.prediction is not None
    assert (mesh.prediction.step, mesh.prediction.memory) == (alone.step, alone.memory)
    assert mesh.prediction.by_module().equals(alone.by_module())


@pytest.mark.processes
def test_a_mesh_that_the_program_cannot_use_is_tried_once(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    tries.mkdir()

    def refusing(mesh: DeviceMesh) -> Callable[[], None]:
        (tries / str(mesh["pp"].get_local_rank())).touch()
        raise UsageError("no stages")

    found = compare_meshes(refusing, 8, axes=("pp",), cache=tmp_path / "kept", processes=1)
    assert [one.dropped for one in found.candidates] == ["UsageError: no stages"]
    assert [file.name for file in tries.iterdir()] == ["0"]


@pytest.mark.processes
def test_too_little_memory_drops_a_mesh(compared: MeshComparison, cache: Path) -> None:
    small = Cluster.load("dgx-h100")
    small = replace(small, memory=replace(small.memory, size=1e9))
    none = compare_meshes(build, 8, small, axes=("dp", "tp"), cache=cache)
    assert none.ranking == []
    assert none.to_frame()["dropped"].str.contains("does not fit").sum() == 3
    with pytest.raises(UsageError, match="no mesh fits on dgx-h100"):
        none.best  # noqa: B018 # the property raises


@pytest.mark.processes
def test_meshes_in_no_tie_keep_their_order_when_constants_move(compared: MeshComparison) -> None:
    tied = {mesh for group in compared.tied for mesh in group}
    clear = [one for one in compared.ranking[:3] if one.mesh not in tied]
    for cluster in perturbed_constants(compared.cluster):
        steps = [one.prediction.what_if(hardware=cluster).step.expected for one in clear if one.prediction]
        assert steps == sorted(steps)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_each_constant_moves_and_measured_times_with_their_link(name: str) -> None:
    cluster = Cluster.load(name)
    moved = list(perturbed_constants(cluster))
    times = [
        tuple(
            collective_time("all_reduce", size, ranks, hardware=one).expected
            for ranks, size in ((8, 1 << 26), (64, 1 << 26))
        )
        for one in (cluster, *moved)
    ]
    before = times[0]
    for number, place in ((4, 0), (5, 1)):  # links of a node, links between nodes
        slower, faster = times[1 + number], times[1 + number + len(moved) // 2]
        assert 1.02 < slower[place] / before[place] < 1.2
        assert 0.89 < faster[place] / before[place] <= (0.96 if place == 0 else 1.0)  # eight nodes: their links, too
    assert times[1][0] == before[0]  # products are no part of it
    assert times[6][0] == before[0]  # nor is the network, inside a node
    named = {"compute", "memory", "launch_overhead", "collective_overhead", "node", "network"}
    assert {field for one in moved for field in named if getattr(one, field) != getattr(cluster, field)} == named


def test_meshes_are_left_out_before_they_are_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "dsexplore._internal.cost.meshes.compare_meshes.run_ranks", lambda *_args, **_options: pytest.fail("traced")
    )

    def keep(sizes: Mapping[str, int]) -> bool | str:
        return f"{sizes['dp']} samples are too many" if sizes["dp"] > 2 else False

    left = compare_meshes(build, 16, axes=("dp", "tp"), keep=keep, cache=tmp_path)
    reasons = dict(left.to_frame().select("mesh", "dropped").iter_rows())
    assert reasons["dp=1,tp=16"] == "tp=16 leaves the node of 8 ranks"
    assert reasons["dp=4,tp=4"] == "4 samples are too many"
    assert reasons["dp=2,tp=8"] == "left out by keep"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((build, 0), "world_size=0"), ((build, 8, "dgx-h100", ("tp", "tp")), "axes="), ((build, 8, "abacus"), "abacus")],
)
def test_numbers_that_cannot_be_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dsexplore.compare_meshes(*arguments)


@pytest.mark.processes
@pytest.mark.usefixtures("compared")  # which starts the server of local ranks
def test_ctrl_c_ends_the_workers_and_keeps_what_is_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def program(mesh: DeviceMesh) -> Callable[[], Any]:
        if mesh["tp"].size() > 1:
            (tmp_path / str(os.getpid())).touch()
            threading.Event().wait()
        return lambda: torch.ones(4) + 1

    class Interrupting:
        def advance(self) -> None:
            while not list(tmp_path.glob("[0-9]*")):  # until the other worker is at work
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

    @contextmanager
    def tracked(*_args: Any) -> Iterator[Interrupting]:
        yield Interrupting()

    monkeypatch.setattr("dsexplore._internal.cost.meshes.compare_meshes.track", tracked)
    with pytest.warns(RuntimeWarning, match=r"interrupted: 1 of 2 meshes were traced"):
        compared = compare_meshes(
            program, 2, axes=("dp", "tp"), keep=lambda sizes: True, cache=tmp_path / "kept", processes=2
        )
    assert dict(compared.to_frame().select("mesh", "dropped").iter_rows())["dp=1,tp=2"] == (
        "not traced, as it was interrupted"
    )
    assert [one.mesh for one in compared.ranking] == ["dp=2,tp=1"]
    (pid,) = (int(file.name) for file in tmp_path.glob("[0-9]*"))
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.processes
def test_views(compared: MeshComparison, tmp_path: Path) -> None:
    shown = compared._repr_mimebundle_()
    assert "predicted" in shown["text/plain"]
    best = compared.best
    assert f"Widest part of the range: {best.step.why}." in shown["text/plain"]
    assert "Widest part of the range: " in shown["text/html"]
    whys = dict(compared.to_frame().select("mesh", "why").iter_rows())
    assert whys == {
        one.mesh: one.prediction.step.why if one.prediction is not None else None for one in compared.candidates
    }
    assert all(one.prediction.widest_part in shown["text/html"] for one in compared.ranking if one.prediction)
    assert compared.ranking[0].mesh in shown["text/html"]
    assert "dp=1,tp=8" in compared.to_html(tmp_path / "meshes.html").read_text()
    marks = [trace for trace in compared.figure().data if trace.name == "fits"]
    assert len(marks[0].x) == 3
    twin = view_of(compared).still(compared.figure())
    assert '<svg class="still"' in twin
    assert "ms per step, predicted (log) by GiB of one GPU, predicted, of " in twin
    assert all(f"{one.mesh}: " in twin for one in compared.ranking)
    box = compared.explore()
    box.select(compared.ranking[1].mesh)
    assert box.selection == compared.ranking[1].mesh
    with pytest.raises(UsageError, match="no argument 'kind'"):
        compared.figure(kind="bars")


@pytest.mark.processes
def test_other_choices_are_compared_beside_the_mesh(cache: Path) -> None:
    choices = {"rows": [4096, 8192], "recompute": [False, True]}
    found = compare_meshes(built_with, 2, axes=("dp",), choices=choices, cache=cache, processes=1)
    assert {one.mesh for one in found.ranking} == {
        f"dp=2,rows={rows},recompute={again}" for rows in (4096, 8192) for again in (False, True)
    }
    by_choice = {(one.choice["rows"], one.choice["recompute"]): found[one.mesh] for one in found.ranking}
    assert by_choice[8192, True].memory < by_choice[8192, False].memory
    assert by_choice[4096, False].memory < by_choice[8192, False].memory
    assert found.best.expected_step == min(one.expected_step for one in by_choice.values())


def with_experts(mesh: DeviceMesh, reshard: bool) -> Callable[[], None]:
    """Four experts after one another, divided over ``ep``, and layers sharded over ``fsdp``, regathered or kept."""
    group, parts = mesh.get_group("ep"), mesh["ep"].size()
    layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(2))
    for layer in layers:
        fully_shard(layer, mesh=mesh["fsdp"], reshard_after_forward=reshard)
    experts = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4 // parts))

    def step() -> None:
        tokens = torch.randn(4096 // mesh.size(), 512)
        for layer in layers:
            tokens = layer(tokens)
        sent = all_to_all_single(torch.empty_like(tokens), tokens, group=group)
        done = torch.cat([expert(part) for expert, part in zip(experts, sent.chunk(len(experts)), strict=True)])
        all_to_all_single(torch.empty_like(done), done, group=group).sum().backward()

    return step


@pytest.mark.processes
def test_experts_are_an_axis_and_resharding_a_choice(cache: Path) -> None:
    found = compare_meshes(
        with_experts, 4, axes=("fsdp", "ep"), choices={"reshard": [True, False]}, cache=cache, processes=1
    )
    assert {one.mesh for one in found.ranking} == {
        f"fsdp={4 // ep},ep={ep},reshard={reshard}" for ep in (1, 2, 4) for reshard in (True, False)
    }
    for ep in (2, 4):
        mesh = f"fsdp={4 // ep},ep={ep},reshard=True"
        assert "ep" in found[mesh].by_axis()["axis"]
    kept, regathered = (found[f"fsdp=2,ep=2,reshard={one}"] for one in (False, True))
    assert kept.expected_step < regathered.expected_step


@pytest.mark.parametrize("values", [[], "ab"])
def test_a_choice_without_values_is_refused(values: Any) -> None:
    with pytest.raises(UsageError, match="give a list of one value or more"):
        compare_meshes(built_with, 2, axes=("dp",), choices={"rows": values})
