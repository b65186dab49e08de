"""Rules about FSDP and DDP: needless, small or wide gathers and reductions, and a large start-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from dsexplore._internal.analysis.findings.evidence import EventGroup, Evidence
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.trace.causes import FSDP_GATHERS, FSDP_REDUCES, is_fsdp1
from dsexplore._internal.trace.item_size import item_sizes
from dsexplore._internal.units import format_bytes


def _is_of_fsdp(evidence: Evidence) -> pl.Expr:
    return evidence.texts("cause", lambda cause: cause.startswith("FSDP"))


def _is_fsdp_reduction(evidence: Evidence) -> pl.Expr:
    is_reduction = evidence.texts("op", ("reduce_scatter", "all_reduce").__contains__)
    return evidence.texts("cause", FSDP_REDUCES.__contains__) & is_reduction


# FSDP of a small layer: its gather takes as long as an empty one, and sharding it frees little memory.

SMALL = 1024 * 1024
"""Message bytes below which the time of a gather does not depend on its bytes."""
SHARE = 16
"""A group is small only if the largest one gathers at least this many times as much."""


def small_fsdp(evidence: Evidence) -> Iterator[Finding]:
    """Yield all_gathers of FSDP groups that are small: below `SMALL` bytes and 1/`SHARE` of the largest on the axis.

    A group that is inside no other one, such as that of the whole model, is not reported: no other group would shard
    its parameters.
    """
    sent = evidence.events.filter(evidence.texts("cause", FSDP_GATHERS.__contains__))
    owners = set(sent["owner"].unique().cast(pl.String))
    is_inside_another = evidence.texts("owner", lambda owner: any(owner.startswith(f"{module}.") for module in owners))
    largest = pl.col("message_bytes").max().over("rank", "axis")
    small = (
        (pl.col("message_bytes") < SMALL) & (pl.col("message_bytes") * SHARE <= largest) & (pl.col("wire_bytes") > 0)
    )
    yield from evidence.findings(
        "small_fsdp",
        sent.filter(small & is_inside_another),
        _why_small,
        _wrap_larger,
        spare_calls=1,
        by=("place", "op", "axis"),
    )


def _why_small(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} for an FSDP group of its own: sharding it frees next "
        "to no memory, and each gather takes as long as an empty one"
    )


def _wrap_larger(group: EventGroup) -> str:
    wrap = "FullyShardedDataParallel" if is_fsdp1(group.causes) else "fully_shard"
    return f"leave out {wrap}({group.place}), so that the module around it gathers it with its own parameters"


# FSDP frees the parameters of the last group after forward, and gathers them again as the first of backward.


def freed_too_soon(evidence: Evidence) -> Iterator[Finding]:
    """Yield FSDP all_gathers that open backward with the same module whose all_gather ended forward."""
    gathers = evidence.events.filter((pl.col("op") == "all_gather") & _is_of_fsdp(evidence))
    lane = ("rank", "step")
    # the root group holds its parameters anyway, and one group is gathered once
    several = pl.col("owner").n_unique().over(lane) > 1
    same = pl.col("owner") == pl.col("owner").shift(1).over(lane)
    is_backward = evidence.texts("phase", ("backward", "recompute").__contains__)
    turned = is_backward & (pl.col("phase") == "forward").shift(1).over(lane)
    yield from evidence.findings(
        "freed_too_soon",
        gathers.filter((several & same & turned).fill_null(False)),
        _why_freed,
        _keep_gathered,
        spare=1,
        by=("place", "op", "axis"),
    )


def _why_freed(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} could be saved: its parameters are freed after forward "
        "and gathered again at once, as backward begins with them"
    )


def _keep_gathered(group: EventGroup) -> str:
    last = "for the last group that forward uses"
    if is_fsdp1(group.causes):
        return f"FullyShardedDataParallel({group.place}, …, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP) {last}"
    return f"fully_shard({group.place}, …, reshard_after_forward=False) {last}"


# FSDP reduces gradients in float32, of parameters that it gathers in 16 bits: twice the bytes.


def reduced_in_fp32(evidence: Evidence) -> Iterator[Finding]:
    """Yield float32 reductions of FSDP groups whose parameters are gathered in 16 bits."""
    is_half = evidence.texts("dtype", ("bfloat16", "float16").__contains__)
    gathers = evidence.events.filter(_is_of_fsdp(evidence) & (pl.col("op") == "all_gather") & is_half)
    halves = set(gathers["owner"].unique().cast(pl.String))
    is_wide = (pl.col("dtype") == "float32") & evidence.texts("owner", halves.__contains__)
    reduced = evidence.events.filter(_is_fsdp_reduction(evidence) & is_wide)
    yield from evidence.findings(
        "reduced_in_fp32", reduced, _why_fp32, _reduce_in_half, spare=0.5, spare_calls=0, by=("place", "op", "axis")
    )


def _why_fp32(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} in float32 of gradients of 16-bit parameters: "
        "twice the bytes, for a more exact sum"
    )


def _reduce_in_half(group: EventGroup) -> str:
    policy = "MixedPrecision" if is_fsdp1(group.causes) else "MixedPrecisionPolicy"
    return f"{policy}(reduce_dtype=torch.bfloat16), if the loss does not mind: many recipes sum in float32 on purpose"


# Gradients are reduced after every microbatch of a step, where reducing their sum once would do.


def reduced_each_microbatch(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradient reductions of DDP buckets and FSDP groups that run more than once in a step.

    Only steps that ended count, as the reductions of an unfinished one may belong to several steps. If a step reduces
    once, a step that reduces more often is no accumulation: an optimizer step was skipped in it.
    """
    yield from _fsdp_reductions(evidence)
    yield from _ddp_reductions(evidence)


def _fsdp_reductions(evidence: Evidence) -> Iterator[Finding]:
    """Yield reductions of FSDP groups of one shape and dtype that run in several microbatches of a step."""
    # A module that one forward calls twice may reduce twice in backward. Reductions with a forward in between are those
    # of microbatches.
    is_forward = pl.col("phase") == "forward"
    begins = is_forward & ~is_forward.shift(1).over("rank").fill_null(False)
    events = evidence.of_all_steps
    reductions = (
        events.lazy()
        .with_columns(place=pl.int_range(pl.len(), dtype=pl.UInt32))
        .filter(_is_of_fsdp(evidence) & evidence.of_ended_steps)
        .select("place", forward=begins.cum_sum().over("rank"), reduces=_is_fsdp_reduction(evidence))
        .filter("reduces")
        .collect()
    )
    sent = events[reductions["place"]].with_columns(reductions["forward"])
    sent = evidence.tables.with_columns(sent, "shape")
    lane = ("rank", "step", "owner", "op", "group", "dtype", "shape")
    of_all_steps = [name for name in lane if name != "step"]
    sent = sent.with_columns(microbatches=pl.col("forward").n_unique().over(lane))
    repeated = sent.filter(pl.col("microbatches").min().over(of_all_steps) > 1)
    yield from evidence.findings(
        "reduced_each_microbatch",
        repeated.filter(_is_in_steady_step(evidence)),
        _why_per_microbatch,
        _change_fsdp,
        spare=1 - 1 / pl.len().over(lane),
        by=("place", "op", "axis"),
    )


def _ddp_reductions(evidence: Evidence) -> Iterator[Finding]:
    """Yield DDP buckets of models that reduce more elements in a step than they hold.

    Sizes of buckets do not show repetition, as buckets of equal layers have one size. Steps in which one model reduces
    more often than another, as a GAN's discriminator does, are skipped: an optimizer may step in between.
    """
    is_bucket = (pl.col("cause") == "DDP gradient bucket") & (pl.col("op") == "all_reduce")  # hooks may send others
    buckets = evidence.of_all_steps.filter(is_bucket & evidence.of_ended_steps)
    if buckets.is_empty():
        return
    buckets = buckets.with_columns(model=pl.col("owner").cast(pl.String))
    models = sorted(buckets["model"].unique(), key=len)
    held = _elements_held(evidence.tables.parameters, models)
    counts = _elements_reduced(buckets).join(held, on=["rank", "model"], how="left")
    times = counts.select("rank", "step", "model", times=(pl.col("reduced") / pl.col("held")).round())
    least, most = pl.col("times").min().over("rank", "step"), pl.col("times").max().over("rank", "step")
    is_each_step = pl.col("times").min().over("rank", "model") > 1
    repeated = times.filter((least > 1) & (least == most) & is_each_step)
    yield from evidence.findings(
        "reduced_each_microbatch",
        buckets.filter(_is_in_steady_step(evidence))
        .join(repeated, on=["rank", "step", "model"], maintain_order="left")
        .drop("model"),
        _why_per_microbatch,
        _change_ddp,
        spare=1 - 1 / pl.col("times"),
        by=("place", "op", "axis"),
    )


def _is_in_steady_step(evidence: Evidence) -> pl.Expr:
    """Return a mask of `Evidence.of_all_steps`: True in the steps of `Evidence.events`."""
    return pl.col("step").is_in(evidence.events["step"].unique().implode())


def _elements_held(parameters: pl.DataFrame, models: Sequence[str]) -> pl.DataFrame:
    """Return the number of elements of trainable parameters per rank and model; columns rank, model, held."""
    trainable = parameters.filter(pl.col("requires_grad") & (pl.col("shared_with") == ""))
    elements = trainable.select("rank", _model_of(models), held=pl.col("local_bytes") // item_sizes())
    return elements.group_by("rank", "model").agg(pl.col("held").sum())


def _elements_reduced(buckets: pl.DataFrame) -> pl.DataFrame:
    """Return the number of elements reduced per rank, step and model; columns rank, step, model, reduced."""
    elements = (pl.col("message_bytes") // item_sizes()).sum()
    return buckets.group_by("rank", "step", "model").agg(elements.alias("reduced"))


def _model_of(models: Sequence[str]) -> pl.Expr:
    """Return an expression for the path of the innermost model that has a parameter; empty if none has it.

    A single model has all parameters.

    Args:
        models: paths of modules, the shortest first.
    """
    if len(models) == 1:
        return pl.lit(models[0]).alias("model")
    innermost: pl.Expr = pl.lit("")
    for model in models:
        is_inside = pl.col("module").cast(pl.String).str.starts_with(f"{model}.")
        innermost = pl.when(is_inside).then(pl.lit(model)).otherwise(innermost)
    return innermost.alias("model")


def _why_per_microbatch(group: EventGroup) -> str:
    return f"{group.calls} in a step, where the gradients are reduced after each of its microbatches"


def _change_ddp(_group: EventGroup) -> str:
    return "with ddp.no_sync(): around forward and backward of all microbatches of a step but the last"


def _change_fsdp(group: EventGroup) -> str:
    switch = "with model.no_sync(): around" if is_fsdp1(group.causes) else "model.set_requires_gradient_sync(False) for"
    return (
        f"{switch} all microbatches but the last, where memory for whole gradients "
        f"is left; {group.place} then reduces their sum once"
    )


# Start-up sends more than a step does.


def large_start_up(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if start-up sends more bytes per rank than a step does; it names the largest op and cause."""
    start_up, events = evidence.start_up, evidence.events
    ranks = max(evidence.tables.events["rank"].n_unique(), 1)
    step = int(events["wire_bytes"].sum()) / ranks / evidence.steps
    whole = int(start_up["wire_bytes"].sum()) / ranks
    if events.is_empty() or whole <= step:
        return

    def why(group: EventGroup) -> str:
        what = f" ({', '.join(group.causes[:2])})" if any(group.causes) else ""
        return f"start-up sends {format_bytes(whole)} per rank{what}, once; a step sends {format_bytes(step)} per rank"

    sums = start_up.group_by("op", "cause").agg(pl.col("wire_bytes").sum())
    op, cause, _ = sums.cast({"op": pl.String, "cause": pl.String}).sort("wire_bytes", "op", "cause").row(-1)
    largest = start_up.filter((pl.col("op") == op) & (pl.col("cause") == cause))
    yield from evidence.findings("large_start_up", largest, why, _change_start_up, per_step=False, by=("op",))


def _change_start_up(group: EventGroup) -> str:
    how = {
        "distribute_tensor": "parallelize_module(…, src_data_rank=None) where all ranks initialize alike; or build the "
        "model on the meta device and load each rank's shard with dcp.load",
        "model broadcast": "DistributedDataParallel(…, init_sync=False) where all ranks initialize or load alike",
    }
    return next(
        (text for cause, text in how.items() if cause in group.causes),
        "build the model on the meta device, and let each rank initialize or load its own shard",
    )
