"""Exercises on ZeRO and FSDP: the memory of a rank, a sharded step, gathering before use, and FSDP2 itself."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from dsexplore._internal.lessons.answer_run import run_answer
from dsexplore._internal.lessons.exercise_tensors import is_close, layers, random_tensor, require_close
from dsexplore._internal.lessons.requirement import Answer, Exercise, Requirement, Requirements, same_bytes

RANKS, LAYERS, WIDTH, RATE = 4, 4, 16, 0.5
WEIGHT = 4 * WIDTH * WIDTH
"""Bytes of the weight of one layer."""


def _hint_on_memory(got: object, parameters: float, ranks: int, stage: int) -> str:
    """Return the hint for wrong bytes, which depends on the likely mistake."""
    hint = f"stage {stage}, {parameters:.3g} parameters on {ranks} ranks: yours is {got!r} bytes. "
    if not isinstance(got, (int, float)):
        return f"{hint}Return a number of bytes."
    if stage and same_bytes(got, 16 * parameters):
        return f"{hint}Stage {stage} shards something: 1 the optimizer's states, 2 gradients too, 3 parameters too."
    if stage in (1, 2) and same_bytes(got, 16 * parameters / ranks):
        return f"{hint}Only stage 3 shards everything."
    lacks_fp32_copy = same_bytes(got, 4 * parameters + 8 * parameters / (ranks if stage else 1))
    if lacks_fp32_copy or (stage == 0 and got < 12 * parameters):
        return f"{hint}Adam keeps 12 bytes per parameter in fp32: the parameter itself, momentum, variance."
    return (
        f"{hint}Per parameter: 2 bytes of it in bf16, 2 of its gradient, 12 of the optimizer; divide what is sharded."
    )


def _memory(answer: Answer) -> Requirements:
    for parameters, ranks in ((7.5e9, 64), (1e9, 8)):
        for stage in range(4):
            shards = [ranks if stage >= first else 1 for first in (3, 2, 1)]
            wanted = sum(size * parameters / shard for size, shard in zip((2, 2, 12), shards, strict=True))
            got = answer(parameters, ranks, stage)
            hint = _hint_on_memory(got, parameters, ranks, stage)
            yield Requirement(f"stage {stage}: bytes of a rank", same_bytes(got, wanted), hint)


def _sharded_step(answer: Answer) -> Requirements:
    """Require a step of SGD in which each rank updates its own shard."""
    elements = RANKS * WIDTH
    for rank in (0, 3):
        parameter, gradient = random_tensor(elements, seed=1), random_tensor(elements, seed=2 + rank)
        run = run_answer(answer, parameter.clone(), gradient.clone(), RATE, ranks=RANKS, rank=rank)
        ops, sizes = run.events["op"].to_list(), run.events["message_bytes"].to_list()
        yield Requirement(
            "no all_reduce",
            "all_reduce" not in ops,
            "A rank updates its own shard, so it needs the sum of that part of the gradient alone: reduce_scatter.",
        )
        yield Requirement(
            "a reduce_scatter of the gradient",
            ops[:1] == ["reduce_scatter"] and sizes[:1] == [4 * elements],
            f"You sent {run.sent()}: begin with a reduce_scatter of the whole gradient.",
        )
        yield Requirement(
            "then an all_gather of the parameters",
            ops == ["reduce_scatter", "all_gather"] and sizes[1] == 4 * elements,
            f"You sent {run.sent()}: each rank has updated its own shard, and the next forward needs all of them.",
        )
        shard, summed = parameter.chunk(RANKS)[rank], gradient.chunk(RANKS)[rank]
        if is_close(run.value, (shard - RATE * summed).repeat(RANKS)):
            hint = "The step is four times too long: reduce_scatter adds, so divide by the number of ranks."
        elif is_close(run.value, (summed / RANKS).repeat(RANKS)) or is_close(run.value, summed.repeat(RANKS)):
            hint = "You return gradients: gather the updated parameters."
        elif isinstance(run.value, Tensor) and run.value.numel() == shard.numel():
            hint = "You return one shard: return what was gathered."
        else:
            hint = (
                "Take shard number dist.get_rank() of the parameters, less rate × its mean gradient, and gather that."
            )
        wanted = (shard - RATE * summed / RANKS).repeat(RANKS)
        yield require_close("it returns the updated parameters", run.value, wanted, hint)


def _gathered_forward(answer: Answer) -> Requirements:
    """Require a forward that gathers one layer at a time."""
    for rank in (0, 2):
        weights = [random_tensor(WIDTH, WIDTH, seed=index) / WIDTH for index in range(LAYERS)]
        shards = [weight.flatten().chunk(RANKS)[rank].clone() for weight in weights]
        batch = random_tensor(2, WIDTH, seed=50 + rank)
        run = run_answer(answer, batch, [shard.clone() for shard in shards], ranks=RANKS, rank=rank)
        sizes = run.events["message_bytes"].to_list()
        ops = {*run.events["op"]}
        yield Requirement(
            "parameters are gathered",
            ops == {"all_gather"},
            f"You sent {run.sent()}: a layer needs its whole weight, of which this rank has one part of {RANKS}.",
        )
        yield Requirement(
            "never more than one layer at a time",
            max(sizes) <= WEIGHT,
            f"You gathered {max(sizes):,} bytes at once; a layer has {WEIGHT:,}: gather each one before its use.",
        )
        yield Requirement(
            "each layer once",
            sizes == [WEIGHT] * LAYERS,
            f"You sent {run.sent()}, for {LAYERS} layers of {WEIGHT:,} bytes.",
        )
        for shard in shards:
            batch = batch @ shard.repeat(RANKS).view(WIDTH, WIDTH)
        hint = f"Gather a shard, view it as {WIDTH} × {WIDTH}, then x = x @ weight, layer by layer."
        yield require_close("it returns what the layers compute", run.value, batch, hint)


def _train_sharded(answer: Answer, model: nn.Sequential, batch: Tensor) -> None:
    """Shard the model by the answer, and run forward and backward twice."""
    sharded = answer(model, init_device_mesh("cpu", (RANKS,)))
    trained = sharded if isinstance(sharded, nn.Module) else model
    for _ in range(2):
        trained(batch).square().mean().backward()


def _fsdp(answer: Answer) -> Requirements:
    """Require FSDP2 that gathers one layer at a time."""
    model, batch = layers(LAYERS, WIDTH), random_tensor(2, WIDTH, seed=3)
    run = run_answer(_train_sharded, answer, model, batch, ranks=RANKS, rank=0)
    gathers, scatters = run.of("all_gather"), run.of("reduce_scatter")
    yield Requirement(
        "gradients are summed where they are kept",
        not scatters.is_empty(),
        f"You sent {run.sent()}: apply torch.distributed.fsdp.fully_shard, with mesh=mesh.",
    )
    largest = max(gathers["message_bytes"], default=0)
    yield Requirement(
        "one layer is gathered at a time",
        0 < largest <= WEIGHT,
        f"You gather {largest:,} bytes at once, the whole model: fully_shard each layer, then the model around them.",
    )
    is_alone = isinstance(run.arguments[1], nn.Sequential) and hasattr(run.arguments[1], "set_reshard_after_forward")
    yield Requirement(
        "the model around the layers is sharded too",
        is_alone,
        "Without a root each layer is a root of its own, and none is prefetched for the next: fully_shard(model) last.",
    )
    forward = gathers.filter(gathers["phase"] == "forward").height
    yield Requirement(
        "each layer is gathered once per forward",
        forward == 2 * LAYERS,
        f"{forward} gathers in 2 forwards of {LAYERS} layers: leave reshard_after_forward as it is.",
    )
    backward = gathers.filter(gathers["phase"] == "backward").height
    yield Requirement(
        "layers are freed after forward",
        backward >= LAYERS,
        f"{backward} gathers in backward: with reshard_after_forward=False every layer stays in memory (that is "
        "ZeRO 2).",
    )


EXERCISES = {
    "memory": Exercise(
        "memory(parameters, ranks, stage) returns the bytes that a rank holds of parameters and gradients in bf16, and "
        "of Adam's states in fp32, with ZeRO stage 0 (none) to 3.",
        _memory,
    ),
    "sharded_step": Exercise(
        "sharded_step(parameter, gradient, rate) returns the flat parameter after a step of SGD with the mean "
        "gradient; each rank updates its own shard.",
        _sharded_step,
    ),
    "gathered_forward": Exercise(
        "gathered_forward(x, shards) returns x @ w0 @ w1 …; this rank has the shard of each flattened square weight.",
        _gathered_forward,
    ),
    "fsdp": Exercise("fsdp(model, mesh) applies FSDP2 so that one layer is gathered at a time.", _fsdp),
}
