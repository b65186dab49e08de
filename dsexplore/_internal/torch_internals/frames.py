"""Kinds of torch's Python frames, which tell what a call in progress is part of.

Frames are recognized by file and function name, so that code that torch.compile has rewritten is recognized too.
"""

from __future__ import annotations

import os
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

PLUMBING: Final = -1  # between an op and a dispatch mode; also the recorder's own
INTERNAL: Final = 0  # anything else of torch and of Python, which tells nothing
MODULE_CALL: Final = 1  # Module._call_impl, torch's own or the recorder's
ENGINE: Final = 2  # the call into autograd's engine that runs a backward
OPTIMIZER: Final = 3  # Optimizer.step
FSDP: Final = 4  # a parameter group of fully_shard
REDISTRIBUTE: Final = 5  # DTensor changes placements
IMPLICIT: Final = 6  # an op on DTensors redistributes its arguments
DTENSOR_OP: Final = 7  # an op on DTensors runs
OBJECT: Final = 8  # a collective of pickled objects, such as all_gather_object
P2P_BATCH: Final = 9  # batch_isend_irecv
REDISTRIBUTE_BACKWARD: Final = 10  # the backward of a redistribute
DDP_HOOK: Final = 11  # a communication hook of DistributedDataParallel
PIPELINE: Final = 12  # a pipeline schedule
BLOCKING: Final = 13  # send and recv, which wait; their op is that of isend and irecv
COMPILED: Final = 14  # code that torch.compile generated, or that calls it
PIPELINE_WARM_UP: Final = 15  # pipeline stages exchange shapes before their first step
RECOMPUTE: Final = 16  # activation checkpointing runs a forward again
COMPILER: Final = 17  # torch.compile itself
OUTER_CALL: Final = 18  # Module._wrapped_call_impl, around MODULE_CALL
START_UP: Final = 19  # sets up a model, a mesh or a group, and sends before the first step
SENDER: Final = 20  # a function of torch that is itself the cause of what it sends
FLAT_PARAMETER: Final = 21  # gathers or reduces a flat parameter of FullyShardedDataParallel
BETWEEN_STEPS: Final = 22  # gathers whole parameters or optimizer states, to save, load or return them
DDP_FORWARD: Final = 23  # calls DDP's reducer before a forward, whose C++ code sends the order of its new buckets

TORCH = str(Path(torch.__file__).parent) + os.sep
"""The folder of torch's own code."""

_DISPATCHER = ("_ops.py", "_compile.py", "_dynamo/eval_frame.py", "utils/_python_dispatch.py", "utils/_stats.py")
"""Files between an op and a dispatch mode, whose frames do not show who issued the op."""

_BY_NAME: dict[tuple[str, str], int] = {
    ("nn/modules/module.py", "_call_impl"): MODULE_CALL,
    # The outer frame of a module call; the only one if torch 2.15 has compiled the inner one.
    ("nn/modules/module.py", "_wrapped_call_impl"): OUTER_CALL,
    ("autograd/graph.py", "_engine_run_backward"): ENGINE,
    ("optim/optimizer.py", "wrapper"): OPTIMIZER,
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor"): REDISTRIBUTE,
    ("distributed/tensor/_redistribute.py", "backward"): REDISTRIBUTE_BACKWARD,
    ("distributed/tensor/_dispatch.py", "redistribute_local_args"): IMPLICIT,
    ("distributed/pipelining/schedules.py", "_initialize_pp_stages"): PIPELINE_WARM_UP,
    ("distributed/pipelining/schedules.py", "_initialize_stage"): PIPELINE_WARM_UP,  # before torch 2.13
    ("distributed/pipelining/schedules.py", "_initialize_stages"): PIPELINE_WARM_UP,
    ("nn/parallel/distributed.py", "__init__"): START_UP,
    ("distributed/fsdp/fully_sharded_data_parallel.py", "__init__"): START_UP,
    **{
        ("distributed/fsdp/_runtime_utils.py", name): FLAT_PARAMETER
        for name in (
            "_unshard",
            "_reduce_grad",
            "_reduce_grad_no_shard",
            "_prefetch_handle",
            "_pre_forward_unshard",
            "_pre_backward_hook",
            "_post_backward_hook",
        )
    },
    ("distributed/fsdp/_fully_shard/_fully_shard.py", "fully_shard"): START_UP,
    ("distributed/tensor/_api.py", "distribute_module"): START_UP,
    ("distributed/tensor/parallel/api.py", "parallelize_module"): START_UP,
    ("distributed/tensor/_random.py", "__init__"): START_UP,
    ("distributed/device_mesh.py", "__init__"): START_UP,
    ("distributed/device_mesh.py", "init_device_mesh"): START_UP,
    ("distributed/distributed_c10d.py", "init_process_group"): START_UP,
    ("distributed/distributed_c10d.py", "new_group"): START_UP,
    ("distributed/distributed_c10d.py", "split_group"): START_UP,
    ("nn/modules/module.py", "state_dict"): BETWEEN_STEPS,
    ("nn/modules/module.py", "load_state_dict"): BETWEEN_STEPS,
    ("distributed/optim/zero_redundancy_optimizer.py", "consolidate_state_dict"): BETWEEN_STEPS,
    ("nn/parallel/distributed.py", "_pre_forward"): DDP_FORWARD,
    ("nn/parallel/distributed.py", "_distributed_broadcast_coalesced"): SENDER,
    ("distributed/algorithms/join.py", "notify_join_context"): SENDER,
    ("nn/parallel/distributed.py", "_find_common_rank"): SENDER,
    ("nn/parallel/distributed.py", "_check_global_requires_backward_grad_sync"): SENDER,
    ("distributed/utils.py", "_verify_param_shape_across_processes"): SENDER,
    ("distributed/utils.py", "_sync_params_and_buffers"): SENDER,
    ("distributed/tensor/_api.py", "distribute_tensor"): SENDER,
    ("utils/checkpoint.py", "recompute_fn"): RECOMPUTE,
    ("utils/checkpoint.py", "backward"): RECOMPUTE,  # use_reentrant=True
    ("distributed/distributed_c10d.py", "batch_isend_irecv"): P2P_BATCH,
    ("distributed/distributed_c10d.py", "send"): BLOCKING,
    ("distributed/distributed_c10d.py", "recv"): BLOCKING,
    **{
        ("distributed/distributed_c10d.py", name): OBJECT
        for name in (
            "all_gather_object",
            "gather_object",
            "scatter_object_list",
            "broadcast_object_list",
            "send_object_list",
            "recv_object_list",
        )
    },
}
_BY_FILE: dict[str, int] = {
    "distributed/tensor/_dispatch.py": DTENSOR_OP,
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py": FSDP,
    "distributed/pipelining/schedules.py": PIPELINE,
    "distributed/fsdp/_unshard_param_utils.py": BETWEEN_STEPS,
    "distributed/fsdp/_state_dict_utils.py": BETWEEN_STEPS,
    "distributed/fsdp/_optim_utils.py": BETWEEN_STEPS,
    "distributed/_state_dict_utils.py": BETWEEN_STEPS,
}
_CHECKPOINTS = "distributed/checkpoint/"
_DDP_HOOKS = "distributed/algorithms/ddp_comm_hooks/"

FSDP1_POST_BACKWARD = "_post_backward_hook"

FSDP_CAUSES = {
    "_prefetch_unshard": "FSDP prefetch",
    "pre_forward": "FSDP pre_forward",
    "pre_backward": "FSDP pre_backward",
    "post_backward": "FSDP post_backward",
    "finalize_backward": "FSDP post_backward",
}
"""{function of kind `FSDP`: cause of what it sends}; the innermost frame with one of these names decides."""
FSDP1_CAUSES = {
    "_prefetch_handle": "FSDP1 prefetch",
    "_pre_forward_unshard": "FSDP1 pre_forward",
    "_pre_backward_hook": "FSDP1 pre_backward",
    FSDP1_POST_BACKWARD: "FSDP1 post_backward",
}
"""{function of kind `FLAT_PARAMETER`: cause of what it sends}."""
SENDER_CAUSES = {
    "_verify_param_shape_across_processes": "DDP parameter check",
    "_sync_params_and_buffers": "model broadcast",
    "distribute_tensor": "distribute_tensor",
    "_distributed_broadcast_coalesced": "DDP buffers",
    "notify_join_context": "join",
    "_find_common_rank": "join",
    "_check_global_requires_backward_grad_sync": "join",
}
"""{function of kind `SENDER`: cause of what it sends}."""

OP_OF_DTENSOR = "op_call"
"""Name of the parameter with the op, in functions of kind `DTENSOR_OP`."""

specs_of_redistribute = itemgetter("current_spec", "target_spec")
"""Return the specs before and after a redistribution, from the local variables of a frame of kind `REDISTRIBUTE`."""

REDUCTION_PARAMETERS = {
    str(Path(TORCH, "distributed", "distributed_c10d.py")): "op",
    str(Path(TORCH, "distributed", "_functional_collectives.py")): "reduceOp",
}
"""{file: name of the parameter with the reduction in its functions}."""


def is_first_of_batch(variables: dict[str, Any]) -> bool:
    """Return True if a frame of kind `P2P_BATCH`, with these local variables, issues the first of its operations."""
    return variables.get("p2p_op") is variables["p2p_op_list"][0]


def makes_graph(engine: FrameType) -> bool:
    """Return True if a frame of kind `ENGINE` runs a backward that is itself differentiable (``create_graph``)."""
    return bool(engine.f_locals["args"][2:3] == (True,))


def kind_of_torch(code: CodeType) -> int:
    """Return the kind of a function in one of torch's files."""
    file = code.co_filename[len(TORCH) :].replace(os.sep, "/")
    if file in _DISPATCHER:
        return PLUMBING
    if file.startswith(_DDP_HOOKS):
        return DDP_HOOK
    if file.startswith("distributed/tensor/") and OP_OF_DTENSOR in code.co_varnames[: code.co_argcount]:
        return DTENSOR_OP
    if file.startswith(_CHECKPOINTS):
        return BETWEEN_STEPS
    if file.startswith("_functorch/_aot_autograd/"):
        return COMPILED
    if file.startswith("_dynamo/"):
        return COMPILER
    return _BY_NAME.get((file, code.co_name), _BY_FILE.get(file, INTERNAL))


def makes_optimizer_state(code: CodeType) -> bool:
    """Return True for torch's function that takes an optimizer step to create the state that loading fills."""
    return code.co_name == "_init_optim_state" and code.co_filename.startswith(TORCH)
