"""`TABLE`: the functions of torch that a simulated world replaces, in order.

If several entries replace one name, the last wraps the one before it.
"""

from __future__ import annotations

from dsexplore._internal.torch_internals.patches import Entry
from dsexplore._internal.worlds.extensions import deepspeed_ops, stand_in_modules, transformers_attention
from dsexplore._internal.worlds.fake import (
    device_meshes,
    fake_files,
    fake_parameters,
    fake_workarounds,
    gpu_attention,
    real_integers,
    unsupported,
    value_reads,
)
from dsexplore._internal.worlds.scripts import spawned
from dsexplore._internal.worlds.simulated import (
    attention,
    c10d_kernels,
    checkpoints,
    closed,
    deepspeed_checks,
    foreach_optimizers,
    long_lists,
    missing_peers,
    optimizer_states,
    other_ranks_objects,
    own_groups,
    pipeline,
    process_state,
    received_values,
    set_up_calls,
    sharded_tensors,
    simulated_stores,
    sync_batch_norm,
    target_traffic,
    unrecorded,
)

TABLE: tuple[Entry, ...] = (
    *process_state.PATCHES,
    *set_up_calls.PATCHES,
    *own_groups.PATCHES,
    *device_meshes.PATCHES,
    *fake_parameters.PATCHES,
    *fake_workarounds.PATCHES,
    *value_reads.PATCHES,
    *fake_files.PATCHES,
    *real_integers.PATCHES,
    *unsupported.PATCHES,
    *gpu_attention.PATCHES,
    *closed.PATCHES,
    *c10d_kernels.PATCHES,
    *other_ranks_objects.PATCHES,
    *pipeline.PATCHES,
    *target_traffic.PATCHES,
    *attention.PATCHES,
    *long_lists.PATCHES,
    *sync_batch_norm.PATCHES,
    *foreach_optimizers.PATCHES,
    *missing_peers.PATCHES,
    *simulated_stores.PATCHES,
    *sharded_tensors.PATCHES,
    *received_values.PATCHES,
    *checkpoints.PATCHES,
    *optimizer_states.PATCHES,
    *deepspeed_checks.PATCHES,
    *stand_in_modules.PATCHES,
    *deepspeed_ops.PATCHES,
    *transformers_attention.PATCHES,
    *unrecorded.PATCHES,
    *spawned.PATCHES,
)
