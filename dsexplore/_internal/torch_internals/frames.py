"""Python frames of torch: what each says of a call in progress, by file, function and local variables.

Frames are known by file and function name, so that code that torch.compile has rewritten is known too.
"""

from __future__ import annotations

import os
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

PLUMBING: Final = -1  # between an op and a dispatch mode; also the recorder's own
INTERNAL: Final = 0  # anything else of torch and of Python that says nothing
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
COMPILED: Final = 14  # what torch.compile generated, and what calls it
PIPELINE_WARM_UP: Final = 15  # pipeline stages exchange shapes before their first step
RECOMPUTE: Final = 16  # activation checkpointing runs a forward again
COMPILER: Final = 17  # torch.compile itself
OUTER_CALL: Final = 18  # Module._wrapped_call_impl, around MODULE_CALL
START_UP: Final = 19  # sets a model, a mesh or a group up, and sends before the first step
SENDER: Final = 20  # a function of torch that sends what its cause says
FLAT_PARAMETER: Final = 21  # gathers or reduces a flat parameter of FullyShardedDataParallel
BETWEEN_STEPS: Final = 22  # gathers whole parameters or optimizer states, to save them, load them or hand them on
DDP_FORWARD: Final = 23  # calls DDP's reducer before a forward, whose C++ code sends the order of its new buckets

TORCH = str(Path(torch.__file__).parent) + os.sep
"""The folder of torch's own code."""

_DISPATCHER = ("_ops.py", "_compile.py", "_dynamo/eval_frame.py", "utils/_python_dispatch.py", "utils/_stats.py")
"""Files between an op and a dispatch mode: like our own, their frames do not show who issued the op."""

_BY_NAME: dict[tuple[str, str], int] = {
    ("nn/modules/module.py", "_call_impl"): MODULE_CALL,
    # Of one call the outer frame; the only one where torch 2.15 has compiled the inner one away.
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
    ("utils/checkpoint.py", "backward"): RECOMPUTE,  # of the reentrant form
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
"""Why a function of kind `FSDP` communicates, by its name; the innermost frame with one of these names decides."""
FSDP1_CAUSES = {
    "_prefetch_handle": "FSDP1 prefetch",
    "_pre_forward_unshard": "FSDP1 pre_forward",
    "_pre_backward_hook": "FSDP1 pre_backward",
    FSDP1_POST_BACKWARD: "FSDP1 post_backward",
}
"""The same of kind `FLAT_PARAMETER`."""
SENDER_CAUSES = {
    "_verify_param_shape_across_processes": "DDP parameter check",
    "_sync_params_and_buffers": "model broadcast",
    "distribute_tensor": "distribute_tensor",
    "_distributed_broadcast_coalesced": "DDP buffers",
    "notify_join_context": "join",
    "_find_common_rank": "join",
    "_check_global_requires_backward_grad_sync": "join",
}
"""The same of kind `SENDER`."""

OP_OF_DTENSOR = "op_call"
"""The parameter with the op, of functions of kind `DTENSOR_OP`."""

specs_of_redistribute = itemgetter("current_spec", "target_spec")
"""Return, from the local variables of a frame of kind `REDISTRIBUTE`, what it changes and what it makes of it."""

REDUCTION_PARAMETERS = {
    str(Path(TORCH, "distributed", "distributed_c10d.py")): "op",
    str(Path(TORCH, "distributed", "_functional_collectives.py")): "reduceOp",
}
"""By file: what its functions call the parameter with the reduction."""


def is_first_of_batch(variables: dict[str, Any]) -> bool:
    """Return True if a frame of kind `P2P_BATCH`, with these local variables, issues the first of its operations."""
    return variables.get("p2p_op") is variables["p2p_op_list"][0]


def makes_graph(engine: FrameType) -> bool:
    """Return True if a frame of kind `ENGINE` runs a backward that is itself differentiable (``create_graph``)."""
    return bool(engine.f_locals["args"][2:3] == (True,))


def kind_of_torch(code: CodeType) -> int:
    """Return the kind of a function in a file of torch's."""
    part, name = code.co_filename[len(TORCH) :].replace(os.sep, "/"), code.co_name
    if part in _DISPATCHER:
        return PLUMBING
    if part.startswith(_DDP_HOOKS):
        return DDP_HOOK
    if part.startswith("distributed/tensor/") and OP_OF_DTENSOR in code.co_varnames[: code.co_argcount]:
        return DTENSOR_OP
    if part.startswith(_CHECKPOINTS):
        return BETWEEN_STEPS
    if part.startswith("_functorch/_aot_autograd/"):
        return COMPILED
    if part.startswith("_dynamo/"):
        return COMPILER
    return _BY_NAME.get((part, name), _BY_FILE.get(part, INTERNAL))


def makes_optimizer_state(code: CodeType) -> bool:
    """Return True for the function that takes a step by which an optimizer gets the state to load a checkpoint into."""
    return code.co_name == "_init_optim_state" and code.co_filename.startswith(TORCH)
