"""Traces with costs of which a few layers and microbatches are run: equal, row by row, to those of all of them.

Modules: ``cost/meshes/compare_meshes.py``, ``worlds/repeats/``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._tensor import Replicate, Shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.cost.meshes.compare_meshes import trace_rank
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.torch_internals.patches import Patches
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.repeats.layer_runs import FIRST, LAST
from dsexplore._internal.worlds.repeats.marked_recording import MarkedRecording
from dsexplore._internal.worlds.simulate import simulate
from tests.cost.same_tables import same, without_shared_memory
from tests.cost.test_microbatches import outputs_kept

WIDTH, LAYERS = 32, 8


class Layer(nn.Module):
    def __init__(self, number: int = 0, hidden: int = 2 * WIDTH) -> None:
        super().__init__()
        self.number = number
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Layers between an embedding and an output, where it has these."""

    def __init__(self, layers: list[Layer], first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH) if first else None
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(WIDTH, 100, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(x) if self.output is not None else x


def shard(model: Stack, mesh: DeviceMesh, checkpointed: bool, keep_gathered: bool = False) -> None:
    """Tensor parallel where the mesh has such an axis, checkpointing, FSDP2 where it has the axis dp."""
    for number, layer in enumerate(model.layers):
        if mesh["tp"].size() > 1:
            plan: dict[str, Any] = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
            parallelize_module(layer, mesh["tp"], plan)
        if checkpointed:
            model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
    if mesh["tp"].size() > 1:
        ends: dict[str, Any] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh["tp"], {name: ends[name] for name in ends if getattr(model, name) is not None})
    if mesh["dp"].size() > 1:
        for number, layer in enumerate(model.layers):
            is_last = number == len(model.layers) - 1
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=not (keep_gathered or is_last))
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=not keep_gathered)


def build(
    mesh: DeviceMesh,
    *,
    checkpointed: bool = False,
    clips: bool = False,
    times: int = 1,
    model: Callable[[], Stack] = lambda: Stack([Layer(number) for number in range(LAYERS)]),
) -> Callable[[], None]:
    """Return one step of as many backwards as asked for."""
    made = model()
    shard(made, mesh, checkpointed)
    optimizer = torch.optim.AdamW(made.parameters())
    tokens = torch.randint(100, (2, 8))

    def step() -> None:
        for _ in range(times):
            F.cross_entropy(made(tokens).flatten(0, 1), tokens.flatten()).backward()
        if clips:
            nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_pipeline(mesh: DeviceMesh, *, microbatches: int = 7, scale: bool = True) -> Callable[[], None]:
    """Two stages of as many layers each, FSDP2 inside, 1F1B."""
    number = mesh["pp"].get_local_rank()
    part = Stack([Layer(one) for one in range(LAYERS)], first=number == 0, last=number == 1)
    shard(part, mesh, checkpointed=True, keep_gathered=True)
    tokens = torch.randint(100, (2, 8))
    hidden = torch.empty(2, 8 // mesh["tp"].size(), WIDTH, requires_grad=True)
    made = PipelineStage(
        *(part, number, 2, torch.device("cpu")),
        input_args=(tokens if number == 0 else hidden,),
        output_args=(hidden if number == 0 else torch.empty(2, 8, 100),),
        group=mesh.get_group("pp"),
    )
    run = Schedule1F1B(
        made,
        n_microbatches=microbatches,
        loss_fn=lambda out, labels: F.cross_entropy(out.flatten(0, 1), labels.flatten()),
        scale_grads=scale,
    )
    optimizer = torch.optim.AdamW(part.parameters())
    whole = tokens.repeat(microbatches, 1)

    def step() -> None:
        given = {"target": whole} if number else {}
        run.step(*((whole,) if number == 0 else ()), **given, **outputs_kept(False))
        optimizer.step()
        optimizer.zero_grad()

    return step


NOTE = "layers and microbatches were all run"


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return, for each trace, in how many containers layers were skipped."""
    counts: list[int] = []
    original = MarkedRecording.whole

    def whole(recording: MarkedRecording, tables: Tables) -> Tables:
        counts.append(len(recording.repeating))
        return original(recording, tables)

    monkeypatch.setattr(MarkedRecording, "whole", whole)
    return counts


def check(program: Callable[..., Any], sizes: dict[str, int], rank: int = 0, *, is_skipped: bool = True) -> None:
    """Compare a trace of a few layers and microbatches with that of all, which are all run where they are not equal."""
    few, whole = trace_rank(program, sizes, rank), trace_rank(program, sizes, rank, skip_repeats=False)
    notes = [note for note in few.info.notes if NOTE in note]
    assert bool(notes) != is_skipped
    same(replace(few, info=replace(few.info, notes=whole.info.notes)), whole, without_what_differs)


def without_constants(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without the bytes of constants, of which DTensor's embedding makes one for each microbatch: a
    recording takes them for inputs, as no op makes them."""
    return frame if "inputs" not in frame.columns else frame.with_columns(pl.col("inputs") - pl.col("inputs").min())


def without_what_differs(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without the bytes of constants, and of outputs, which torch 2.9 joins always, of repeated
    microbatches."""
    return without_constants(without_shared_memory(frame))


@pytest.mark.parametrize(
    ("dp", "tp", "how"),
    [
        (1, 1, {}),
        (1, 1, {"checkpointed": True, "times": 2}),
        (1, 2, {"clips": True}),
        (2, 1, {"clips": True}),
        (2, 1, {"checkpointed": True, "times": 2}),
        (2, 2, {"checkpointed": True}),
    ],
)
def test_a_few_layers_give_the_trace_of_all(dp: int, tp: int, how: dict[str, Any], skips: list[int]) -> None:
    check(partial(build, **how), {"dp": dp, "tp": tp})
    assert skips == [1]


@pytest.mark.parametrize(("dp", "tp", "stage"), [(1, 1, 0), (2, 1, 1), (2, 2, 0)])
def test_a_few_layers_and_microbatches_give_the_trace_of_a_pipeline(
    dp: int, tp: int, stage: int, skips: list[int]
) -> None:
    if stage and torch_at_least("2.15"):
        pytest.skip("torch 2.15 frees messages of skipped microbatches sooner: of 140 KiB, 6 are freed later here")
    check(partial(build_pipeline, scale=dp == 1), {"pp": 2, "dp": dp, "tp": tp}, stage * dp * tp)
    assert skips == [1]


class Named(Stack):
    """Layers in a dictionary."""

    def __init__(self) -> None:
        super().__init__([])
        self.named = nn.ModuleDict({f"block{number}": Layer(number) for number in range(LAYERS)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)  # type: ignore[misc]
        for layer in self.named.values():
            x = layer(x)
        return self.output(x)  # type: ignore[misc,no-any-return]


def test_layers_of_a_dictionary_are_layers_too(skips: list[int]) -> None:
    check(partial(build, model=Named), {"dp": 1, "tp": 1})
    assert skips == [1]


def unlike() -> Stack:
    """Return a program in which the sixth layer is wider."""
    return Stack([Layer(number, 3 * WIDTH if number == 5 else 2 * WIDTH) for number in range(LAYERS)])


def short() -> Stack:
    """Return a program in which no layer can be skipped."""
    return Stack([Layer(number) for number in range(FIRST + LAST)])


class Counting(Layer):
    """Does something else from the second layer on, which no attribute shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu() if self.number >= 2 else super().forward(x)


class Pairs(Layer):
    """Returns something else than it takes."""

    def forward(self, x: Any) -> Any:
        return super().forward(x[0] if isinstance(x, tuple) else x), None


class Unpacking(Stack):
    """Takes the last layer's pair apart."""

    def __init__(self) -> None:
        super().__init__([Pairs(number) for number in range(LAYERS)])
        self.output, self.last = None, self.output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.last is not None
        out: torch.Tensor = self.last(super().forward(x)[0])
        return out


class Norms(Stack):
    """Computes something for each layer outside of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            x = layer(x if self.embedding is None or x.is_floating_point() else self.embedding(x))
            total = total + x.mean()
        assert self.output is not None
        return self.output(x) * total


@pytest.mark.parametrize("model", [unlike, short, Unpacking])
def test_layers_that_are_not_equal_are_all_run(model: Callable[[], Stack], skips: list[int]) -> None:
    check(partial(build, model=model), {"dp": 1, "tp": 1})
    assert skips == [0]


def test_layers_that_turn_out_to_differ_are_all_run_again() -> None:
    def model() -> Stack:
        return Stack([Counting(number) for number in range(LAYERS)])

    check(partial(build, model=model), {"dp": 1, "tp": 1}, is_skipped=False)


def test_what_is_computed_between_layers_is_not_lost() -> None:
    model = partial(build, model=lambda: Norms([Layer(number) for number in range(LAYERS)]))
    check(model, {"dp": 1, "tp": 1}, is_skipped=False)


def test_a_program_that_fails_with_a_few_layers_fails_with_all() -> None:
    def program(mesh: DeviceMesh) -> Callable[[], None]:
        step = build(mesh)

        def fails() -> None:
            step()
            raise ValueError("of the program")

        return fails

    with pytest.raises(ValueError, match="of the program"):
        trace_rank(program, {"dp": 1, "tp": 1}, 0)


def hooked(mesh: DeviceMesh) -> Callable[[], None]:
    """Return a program that counts gradients itself."""
    model = Stack([Layer(number) for number in range(LAYERS)])
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter: None)
    return _step(model)


def replicated(mesh: DeviceMesh) -> Callable[[], None]:
    """DDP, whose buckets wait for all gradients."""
    return _step(
        DistributedDataParallel(
            Stack([Layer(number) for number in range(LAYERS)]), process_group=mesh.get_group("dp"), init_sync=False
        )
    )


def _step(model: nn.Module) -> Callable[[], None]:
    tokens = torch.randint(100, (2, 8))
    return lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


@pytest.mark.parametrize("program", [hooked, replicated])
def test_programs_that_wait_for_each_gradient_run_all_layers(program: Any, skips: list[int]) -> None:
    trace_rank(program, {"dp": 2, "tp": 1}, 0)
    assert skips == [0]


def test_models_of_other_worlds_that_are_alive_change_nothing(skips: list[int]) -> None:
    """An earlier cell's model under DDP does not make all layers run; another's layers are no memory of this step."""
    program = partial(build, clips=True)
    alone = trace_rank(program, {"dp": 2, "tp": 1}, 0)
    plain = Stack([Layer(number) for number in range(LAYERS)])
    with simulate(mesh={"dp": 2}) as mesh:
        wrapped = DistributedDataParallel(plain, process_group=mesh.get_group("dp"))
    with simulate(mesh={"dp": 2}, fake=True):
        fake = Stack([Layer(number) for number in range(LAYERS)])
    beside = trace_rank(program, {"dp": 2, "tp": 1}, 0)
    assert skips == [1, 1]
    same(alone, beside)
    del wrapped, fake


def test_ctrl_c_while_functions_of_torch_are_replaced_leaves_torch_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, attribute, count = nn.Module.__call__, Patches.attribute, 0

    def interrupted(patches: Patches, owner: object, name: str, value: object) -> None:
        nonlocal count
        attribute(patches, owner, name, value)
        if owner is nn.Module and name == "__call__":
            count += 1
            raise KeyboardInterrupt

    monkeypatch.setattr(Patches, "attribute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace_rank(build, {"dp": 1, "tp": 1}, 0)
    assert (count, nn.Module.__call__) == (1, call)
