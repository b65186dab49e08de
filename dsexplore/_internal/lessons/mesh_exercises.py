"""Exercises on meshes for 405 billion parameters: one that fits, one of five axes, and the share of the peak."""

from __future__ import annotations

import math

import torch.distributed as dist

from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.worlds.simulate import simulate

PARAMETERS, LAYERS, KV_HEADS = 405e9, 126, 8
GPUS, NODE, GPU_BYTES = 16_384, 8, 80e9
STEP_TOKENS = 2048 * 8192
"""Number of tokens of one step."""
MOST_BUBBLE = 1.0
"""Largest idle time over working time, that of 16 stages and 16 microbatches, with which Llama 3 was trained."""


def _groups(mesh: str) -> dict[str, list[int]]:
    """Return {axis: ranks of rank 0's group} of a simulated world."""
    with simulate(mesh=mesh, ranks_per_node=NODE) as world:
        names = world.mesh_dim_names or ()
        return {name: dist.get_process_group_ranks(world[name].get_group()) for name in names}


def _agrees(mesh: str, axis_names: tuple[str, ...]) -> Requirements:
    """Require the axes and the number of ranks, and that tensor parallelism stays within a node."""
    axes = dict(zip(parse_mesh(mesh).axes, parse_mesh(mesh).shape, strict=True))
    yield Requirement(
        f"axes among {', '.join(axis_names)}",
        {*axes} <= {*axis_names},
        f"Yours are {', '.join(axes)}: use these names, outermost first.",
    )
    ranks = math.prod(axes.values())
    hint = f"{mesh} has {ranks:,} ranks: the product of the axes is the number of GPUs."
    yield Requirement(f"{GPUS:,} GPUs", ranks == GPUS, hint)
    tp = axes.get("tp", 1)
    yield Requirement(
        "tensor parallelism cuts whole heads",
        KV_HEADS % tp == 0,
        f"tp={tp}, and attention has {KV_HEADS} heads of keys: give a divisor of {KV_HEADS}.",
    )
    group = _groups(mesh).get("tp", [0])
    yield Requirement(
        "a tp group is within one node",
        len({rank // NODE for rank in group}) == 1,
        f"Its ranks are {', '.join(map(str, group[:4]))}, …, on several nodes of {NODE}: tp sends most often, so it is "
        "the innermost axis, the last one.",
    )


def _state_bytes(axes: dict[str, int], sharded: int) -> float:
    """Return the bytes of parameters and gradients in bf16, and of Adam's states in fp32 over `sharded` ranks."""
    return PARAMETERS / (axes.get("tp", 1) * axes.get("pp", 1)) * (2 + 2 + 12 / sharded)


def _fills(axes: dict[str, int], sequences: int, replicas: int) -> Requirements:
    """Require that a step has sequences for all replicas, and microbatches that keep the stages busy."""
    stages = axes.get("pp", 1)
    yield Requirement(
        "every stage has layers",
        stages <= LAYERS,
        f"pp={stages}, and there are {LAYERS} layers.",
    )
    yield Requirement(
        "a step has a sequence for each replica",
        replicas <= sequences,
        f"{replicas:,} replicas of the data, and a step of 16 Mi tokens has {sequences:,} sequences: less dp, "
        "more of the rest.",
    )
    microbatches = sequences // replicas
    bubble = (stages - 1) / microbatches
    yield Requirement(
        "stages idle for less time than they work",
        bubble < MOST_BUBBLE,
        f"{stages} stages and {microbatches} microbatches: idle for {bubble:.2f} of the working time. Fewer "
        "stages, or less dp.",
    )


def _mesh(answer: Answer) -> Requirements:
    """Require a mesh on which the model fits and trains."""
    mesh = str(answer(GPUS))
    yield from _agrees(mesh, ("pp", "dp", "cp", "tp"))
    axes = dict(zip(parse_mesh(mesh).axes, parse_mesh(mesh).shape, strict=True))
    held = _state_bytes(axes, axes.get("dp", 1))
    yield Requirement(
        "parameters, gradients and optimizer fit",
        held <= GPU_BYTES / 2,
        f"A rank holds {held / 1e9:.0f} GB of them, and of 80 GB half goes to activations: more pp or tp, which "
        "cut all of it.",
    )
    yield from _fills(axes, STEP_TOKENS // 8192, axes.get("dp", 1))


def _long_mesh(answer: Answer) -> Requirements:
    """Require a mesh of five axes for long sequences."""
    mesh = str(answer(GPUS, 131_072))
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    yield from _agrees(mesh, names)
    axes = dict(zip(parse_mesh(mesh).axes, parse_mesh(mesh).shape, strict=True))
    missing = [name for name in names if axes.get(name, 1) == 1]
    yield Requirement("five axes, each of two ranks or more", not missing, f"{', '.join(missing)}: one rank or none.")
    cut = axes["cp"] * axes["tp"]
    yield Requirement(
        "a rank has no more tokens of a sequence than without cp",
        131_072 // cut <= 8192 // 8,
        f"A rank has {131_072 // cut:,} tokens of each sequence, where 8,192 and tp=8 leave 1,024: sixteen times the "
        "sequence asks for sixteen times cp.",
    )
    held = _state_bytes(axes, axes["dp_shard"] * axes["cp"])
    yield Requirement(
        "parameters, gradients and optimizer fit",
        held <= GPU_BYTES / 2,
        f"A rank holds {held / 1e9:.0f} GB of them, and of 80 GB half goes to activations: more pp, or more of dp "
        "in dp_shard.",
    )
    yield from _fills(axes, STEP_TOKENS // 131_072, axes["dp_replicate"] * axes["dp_shard"])


def _utilization(answer: Answer) -> Requirements:
    """Require the share of the peak operations per second."""
    for parameters, tokens, seconds, gpus, peak in (
        (405e9, STEP_TOKENS, 6.2, GPUS, 989e12),
        (7e9, 4e6, 2.0, 256, 312e12),
    ):
        got, wanted = answer(parameters, tokens, seconds, gpus, peak), 6 * parameters * tokens / (seconds * gpus * peak)
        hint = f"{parameters:.3g} parameters, {tokens:,.0f} tokens in {seconds} s on {gpus:,} GPUs: yours is {got!r}. "
        if same_bytes(got, wanted / 3):
            hint += "That is forward alone: backward computes twice as much again."
        elif same_bytes(got, wanted * gpus):
            hint += "All GPUs together have gpus × peak."
        elif same_bytes(got, 100 * wanted):
            hint += "Return a share, not percent."
        else:
            hint += "A token takes 2 operations per parameter in forward and 4 in backward."
        yield Requirement("the share of the peak", same_bytes(got, wanted), hint)


EXERCISES = {
    "mesh": Exercise(
        'mesh(gpus) returns axes, outermost first, such as "pp=2,dp=4,tp=8", on which 405 billion parameters '
        "train on that "
        "many H100 with steps of 16 Mi tokens in sequences of 8,192; dp shards Adam's states.",
        _mesh,
    ),
    "long_mesh": Exercise(
        "long_mesh(gpus, tokens) returns a mesh of five axes, pp, dp_replicate, dp_shard, cp and tp, for sequences of "
        "131,072 tokens; dp_shard and cp shard Adam's states.",
        _long_mesh,
    ),
    "utilization": Exercise(
        "utilization(parameters, tokens, seconds, gpus, peak) returns the share of the peak operations per second that "
        "a step of so many tokens used.",
        _utilization,
    ),
}
