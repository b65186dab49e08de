"""FSDP2: what `fully_shard` gathers and scatters, for whom, and why.

Modules: ``capture/stack/stack_reading.py``, ``capture/modules/parameters.py``.

Symbols: L blocks and one root group (embedding, last norm, output); n ranks of the sharding axis; W(g, e) the bytes
of group g's parameters at e bytes per element, each parameter padded to n equal shards of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.trace import Trace

LAYERS = 3


def sharded(model: Any, mesh: DeviceMesh, **options: Any) -> Any:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def padded(parts: list[nn.Module], n: int, element: int = 4) -> int:
    """W of these modules' parameters."""
    rows = [parameter for part in parts for parameter in part.parameters()]
    return sum(n * ceil(p.shape[0] / n) * (p.numel() // p.shape[0]) * element for p in rows)


def of_llama(model: Any, n: int, element: int = 4) -> tuple[int, int]:
    """W of one block and W of the root group."""
    return (
        padded([model.layers[0]], n, element),
        padded([model.embed, model.norm, model.output], n, element),
    )


def step(model: Any, tokens: torch.Tensor) -> Trace:
    with record() as trace:
        model(tokens).sum().backward()
    return trace


@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("reshard", [None, True, False])
def test_gathers_and_scatters(
    world: Callable[..., DeviceMesh],
    llama: Any,
    tokens: torch.Tensor,
    totals: Any,
    ranks: int,
    reshard: bool | None,
) -> None:
    """Forward L + 1 all_gather; backward L (default: the root keeps its parameters), L + 1 (True) or none (False),
    and L + 1 reduce_scatter: L of W(block) and one of W(root) each. With 5 ranks every size is padded."""
    mesh = world(f"dp={ranks}")
    model = llama(LAYERS)
    block, root = of_llama(model, ranks)
    trace = step(sharded(model, mesh, reshard_after_forward=reshard), tokens)

    all_groups = (LAYERS + 1, LAYERS * block + root)
    expected = {("forward", "all_gather"): all_groups, ("backward", "reduce_scatter"): all_groups}
    if reshard is None:
        expected["backward", "all_gather"] = (LAYERS, LAYERS * block)
    elif reshard:
        expected["backward", "all_gather"] = all_groups
    assert totals(trace, "phase", "op") == expected
    assert set(trace.events["axis"]) == {"dp"}
    assert set(trace.events["group_size"]) == {ranks}


def test_wire_bytes_are_the_shards_of_the_others(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor
) -> None:
    """Each gather and scatter of W sends W·(n−1)/n."""
    trace = step(sharded(llama(1), world("dp=4")), tokens)
    assert all(wire == message * 3 // 4 for message, wire in trace.events.select("message_bytes", "wire_bytes").rows())


def test_reshard_to_a_number_of_ranks(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any
) -> None:
    """reshard_after_forward=2 on 8 ranks: L + 1 gathers of W over 8 forward, the same over groups of 2 backward."""
    mesh = world("dp=8", rank=5)
    model = llama(LAYERS)
    block, root = of_llama(model, 8)
    trace = step(sharded(model, mesh, reshard_after_forward=2), tokens)
    everything = (LAYERS + 1, LAYERS * block + root)
    assert totals(trace, "phase", "op", "group_size") == {
        ("forward", "all_gather", 8): everything,
        ("backward", "all_gather", 2): everything,
        ("backward", "reduce_scatter", 8): everything,
    }
    small = trace.groups.filter(size=2)
    assert small["ranks"].to_list() == [[4, 5]] * (LAYERS + 1)


def test_hybrid_sharding(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any) -> None:
    """On rep=2 × shard=4: as on 4 ranks, and L + 1 all_reduce of W/4 over the replicas."""
    mesh = world("rep=2,shard=4", rank=6)
    model = llama(LAYERS)
    block, root = of_llama(model, 4)
    trace = step(sharded(model, mesh), tokens)
    everything = LAYERS * block + root
    assert totals(trace, "phase", "op", "axis") == {
        ("forward", "all_gather", "shard"): (LAYERS + 1, everything),
        ("backward", "all_gather", "shard"): (LAYERS, LAYERS * block),
        ("backward", "reduce_scatter", "shard"): (LAYERS + 1, everything),
        ("backward", "all_reduce", "rep"): (LAYERS + 1, everything // 4),
    }
    ranks = dict(trace.groups.select("axis", "ranks").iter_rows())
    assert ranks == {"shard": [4, 5, 6, 7], "rep": [2, 6]}
    assert set(trace.groups["mesh"]) == {"rep=2,shard=4"}
    assert trace.info.mesh == "rep=2,shard=4"


def test_mixed_precision(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any) -> None:
    """Gathers in bfloat16: W(g, 2); scatters in float32: W(g, 4)."""
    mesh = world("dp=4")
    model = llama(LAYERS)
    half, whole = of_llama(model, 4, 2), of_llama(model, 4, 4)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    trace = step(sharded(model, mesh, mp_policy=policy), tokens)
    assert totals(trace, "phase", "op", "dtype") == {
        ("forward", "all_gather", "bfloat16"): (LAYERS + 1, LAYERS * half[0] + half[1]),
        ("backward", "all_gather", "bfloat16"): (LAYERS, LAYERS * half[0]),
        ("backward", "reduce_scatter", "float32"): (LAYERS + 1, LAYERS * whole[0] + whole[1]),
    }


def test_gradient_accumulation(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any) -> None:
    """k = 3 microbatches, gradients synchronized in the last: L + 1 reduce_scatter of W in that one only. The root,
    which keeps its parameters until gradients are reduced, gathers in each forward because each begins sharded."""
    mesh = world("dp=4")
    model = llama(LAYERS)
    block, root = of_llama(model, 4)
    sharded(model, mesh)
    with record() as trace:
        for microbatch in range(3):
            model.set_requires_gradient_sync(microbatch == 2)
            model(tokens).sum().backward()
            if microbatch < 2:
                trace.step()
    gathers = {("forward", "all_gather"): LAYERS * block + root, ("backward", "all_gather"): LAYERS * block}
    expected = {
        (number, phase, op): (LAYERS + (phase == "forward"), size)
        for number in range(3)
        for (phase, op), size in gathers.items()
    }
    expected[2, "backward", "reduce_scatter"] = (LAYERS + 1, LAYERS * block + root)
    assert totals(trace, "step", "phase", "op") == expected


def test_gradient_accumulation_without_resharding(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any
) -> None:
    """With reshard_after_backward off as well, k microbatches gather once: L + 1 all_gather in the whole step."""
    mesh = world("dp=4")
    model = sharded(llama(LAYERS), mesh, reshard_after_forward=False)
    with record() as trace:
        for microbatch in range(3):
            model.set_requires_gradient_sync(microbatch == 2)
            model.set_reshard_after_backward(microbatch == 2)
            model(tokens).sum().backward()
    assert {key: count for key, (count, _) in totals(trace, "phase", "op").items()} == {
        ("forward", "all_gather"): LAYERS + 1,
        ("backward", "reduce_scatter"): LAYERS + 1,
    }


def test_prefetch_belongs_to_the_module_whose_parameters_move(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, column: Any
) -> None:
    """Backward gathers block i−1 while block i computes; the cause says why."""
    trace = step(sharded(llama(LAYERS), world("dp=4")), tokens)
    gathers = trace.where(op="all_gather")
    assert column(gathers.where(phase="forward"), "trigger", "owner", "cause") == [
        (name, name, "FSDP pre_forward") for name in ("Llama", "Llama.layers.0", "Llama.layers.1", "Llama.layers.2")
    ]
    assert column(gathers.where(phase="backward"), "trigger", "owner", "cause") == [
        ("Llama.output", "Llama.layers.2", "FSDP prefetch"),
        ("Llama.layers.2", "Llama.layers.1", "FSDP prefetch"),
        ("Llama.layers.1", "Llama.layers.0", "FSDP prefetch"),
    ]
    assert column(trace.where(op="reduce_scatter"), "owner", "cause") == [
        (name, "FSDP post_backward") for name in ("Llama.layers.2", "Llama.layers.1", "Llama.layers.0", "Llama")
    ]


def test_forward_prefetch(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, column: Any) -> None:
    """Block i told to prefetch block i+1: its gather is issued while block i runs."""
    model = sharded(llama(LAYERS), world("dp=4"))
    for layer, following in zip(model.layers, list(model.layers)[1:], strict=False):
        layer.set_modules_to_forward_prefetch([following])
    trace = step(model, tokens).where(op="all_gather", phase="forward")
    assert column(trace, "trigger", "owner", "cause") == [
        ("Llama", "Llama", "FSDP pre_forward"),
        ("Llama.layers.0", "Llama.layers.0", "FSDP pre_forward"),
        ("Llama.layers.0", "Llama.layers.1", "FSDP prefetch"),
        ("Llama.layers.1", "Llama.layers.2", "FSDP prefetch"),
    ]


def test_unshard_by_hand(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, column: Any) -> None:
    """`unshard()` outside any forward gathers at once, for the module it was called on."""
    model = sharded(llama(LAYERS), world("dp=4"))
    with record() as trace:
        model.layers[1].unshard()
        with torch.no_grad():
            model(tokens)
    assert column(trace, "phase", "trigger", "owner")[0] == ("other", "", "Llama.layers.1")
    assert column(trace, "owner") == ["Llama.layers.1", "Llama", "Llama.layers.0", "Llama.layers.2"]


@pytest.mark.parametrize("inside", [True, False])
def test_checkpointing_one_block_gathers_no_more(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any, inside: bool
) -> None:
    """Checkpoint in fully_shard, or fully_shard in checkpoint: the gather before backward serves the recomputation
    too, so the counts are those without checkpointing, and no gather is of phase recompute."""
    mesh = world("dp=4")
    model = llama(LAYERS)
    block, root = of_llama(model, 4)

    def wrap() -> None:
        for index, layer in enumerate(model.layers):
            model.layers[index] = checkpoint_wrapper(layer)

    if inside:
        wrap()
    sharded(model, mesh)
    if not inside:
        wrap()
    trace = step(model, tokens)
    assert totals(trace, "phase", "op") == {
        ("forward", "all_gather"): (LAYERS + 1, LAYERS * block + root),
        ("backward", "all_gather"): (LAYERS, LAYERS * block),
        ("backward", "reduce_scatter"): (LAYERS + 1, LAYERS * block + root),
    }
    assert set(trace.events["owner"]) == {"Llama", *(f"Llama.layers.{i}" for i in range(LAYERS))}


class Pair(nn.Module):
    """Two blocks under one checkpoint; the square saves its input, so recomputation begins before their backward."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block(), block()])

    def _both(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x)).square()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._both, x, use_reentrant=False)


def test_checkpointing_two_blocks_gathers_again(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, column: Any
) -> None:
    """A checkpoint around two sharded blocks: 2 gathers forward, 2 of phase recompute, which serve backward too; but
    torch 2.9 frees what a recompute gathered, and gathers it again for backward."""
    mesh = world("dp=4")
    model = Pair(block)
    sharded(model, mesh)
    with record() as trace:
        model(torch.ones(sizes.batch, sizes.seq, sizes.d, requires_grad=True)).sum().backward()
    gathers = trace.where(op="all_gather")
    rows = column(gathers, "phase", "trigger", "owner", "cause")
    assert rows[:4] == [
        (phase, name, name, "FSDP pre_forward")
        for phase in ("forward", "recompute")
        for name in ("Pair.layers.0", "Pair.layers.1")
    ]
    assert {phase for phase, *_ in rows[4:]} == (set() if torch_at_least("2.10") else {"backward"})
    assert set(gathers.events["message_bytes"]) == {padded([block()], 4)}


def test_parameters_are_the_shards(world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor) -> None:
    """A parameter's row tells its shard on this rank: 5 ranks give rank 4 the rest of 64 rows, 64 − 4·13 = 12."""
    trace = step(sharded(llama(1), world("dp=5", rank=4)), tokens)
    row = trace.parameters.filter(name="Llama.embed.weight").row(0, named=True)
    assert (row["global_shape"], row["local_shape"]) == ([64, 16], [12, 16])
    assert (row["placements"], row["mesh"], row["local_bytes"]) == ("S(0)", "dp=5", 12 * 16 * 4)
