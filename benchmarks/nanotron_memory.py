"""The memory that nanotron reports of a run, and crashes that have another cause than memory.

What huggingface/nanotron reports (0e0a27ea) is ``torch.cuda.max_memory_reserved()`` of rank 0, a rank of the first
stage (``helpers.py``, ``log_throughput``), with the gaps of the allocator. It cannot exceed what the GPU has beside the
CUDA context and the communicators: the allocator gives back what it does not use, and asks again.

Versions of torch before 2.7 do not give a block that a collective reads to another tensor before the GPU is through
with it (``record_stream``), and the CPU launches kernels ahead of it. So what the reductions of tensor parallelism read
in one forward is reserved besides, one input for each output of a row-parallel product. Without a pipeline the CPU is
ahead by a whole forward. In a pipeline it waits for the GPU at each message, so a forward begins with an idle GPU, and
the inputs are held that the GPU has not come to when the CPU has launched the last kernel.
"""

from __future__ import annotations

from llama_layers import Model
from nanotron_llama import stage_blocks
from nanotron_pipeline import launch_seconds, seconds_by_stage
from predicted_step import MODELS, Row

from dsexplore._internal.cost.memory.memory_need import FRAGMENTED, NEAR
from dsexplore._internal.cost.step.prediction import Prediction


def has_empty_stage(model: Model, stages: int) -> bool:
    """Return True if a stage gets no block, as ``build_model`` divides them; such a run crashes.

    ``OneForwardOneBackwardPipelineEngine`` takes a micro batch's activations there, and there are none.
    """
    return not all(stage_blocks(model, stages))


def held_bytes(row: Row, prediction: Prediction, rank: int, microbatches: int) -> int:
    """Return the bytes that collectives of a forward have read and the allocator does not give to others yet.

    Args:
        row: The run.
        prediction: Of its step.
        rank: Traced rank.
        microbatches: Of the prediction.
    """
    sizes, model = row.sizes, MODELS[row.model]
    if sizes["tp"] == 1:
        return 0
    stage = rank // (sizes["dp"] * sizes["tp"])
    blocks = stage_blocks(model, sizes["pp"])[stage]
    reductions = (0 in blocks) + 2 * len(range(max(blocks.start, 1), min(blocks.stop, model.layers + 1)))
    read = reductions * 2 * row.run.sequence * row.run.batch * model.width
    if sizes["pp"] == 1:
        return read
    launched = launch_seconds(row, prediction, rank, "F") / microbatches
    return round(read * max(0.0, 1 - launched / seconds_by_stage(prediction)[stage, "F"]))


def reported_bytes(row: Row, prediction: Prediction, microbatches: int) -> int:
    """Return what nanotron would report of a step that was traced with so many micro batches."""
    rank, allocated = min(prediction.peak.by_rank.items())
    wanted = round(allocated * (1 + FRAGMENTED[False])) + held_bytes(row, prediction, rank, microbatches)
    return max(allocated, min(wanted, prediction.memory.available - prediction.memory.outside))


def is_near_limit(row: Row, prediction: Prediction, microbatches: int) -> bool:
    """Return True if the memory of the fullest rank is nearly full, or the step does not fit."""
    need = prediction.memory
    return need.most + held_bytes(row, prediction, prediction.peak.rank, microbatches) > NEAR * need.available
