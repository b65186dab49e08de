"""`dsexplore.comm` has the public names of deepspeed.comm and torch.distributed, with their parameters.

Modules: ``comm/__init__.py``, ``comm/torch.py``.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as td

import dsexplore.comm as dist
from dsexplore._internal.comm import versions
from dsexplore._internal.errors import UsageError
from dsexplore.comm.reduce_op import ReduceOp, to_torch
from dsexplore.comm.torch import Backend

LOG = "prof log_name debug"
DEEPSPEED = {
    # module-level functions of deepspeed.comm 0.19.8 and their parameters
    "all_gather": f"tensor_list tensor group async_op {LOG}",
    "all_gather_coalesced": "output_tensors input_tensors group async_op",
    "all_gather_into_tensor": f"output_tensor tensor group async_op {LOG}",
    "all_gather_object": f"object_list obj group {LOG}",
    "all_reduce": f"tensor op group async_op {LOG}",
    "all_reduce_coalesced": f"tensors op group async_op {LOG}",
    "all_to_all": f"output_tensor_list input_tensor_list group async_op {LOG}",
    "all_to_all_single": f"output tensor output_split_sizes input_split_sizes group async_op {LOG}",
    "allgather_fn": "output_tensor input_tensor group async_op debug",
    "barrier": f"group async_op device_ids {LOG}",
    "batch_isend_irecv": f"p2p_op_list {LOG}",
    "broadcast": f"tensor src group async_op {LOG}",
    "broadcast_object_list": f"object_list src group device {LOG}",
    "configure": "deepspeed_config enabled prof_all prof_ops verbose debug",
    "destroy_process_group": "group",
    "enable_symm_mem_for_group": "group_name",
    "gather": f"tensor gather_list dst group async_op {LOG}",
    "get_all_ranks_from_group": "group",
    "get_comm_operation_count": "",
    "get_global_rank": "group group_rank",
    "get_local_rank": "",
    "get_local_rank_from_launcher": "",
    "get_logged_comm_ops": "",
    "get_rank": "group",
    "get_world_group": "",
    "get_world_rank_from_launcher": "",
    "get_world_size": "group",
    "get_world_size_from_launcher": "",
    "has_all_gather_into_tensor": "",
    "has_all_reduce_coalesced": "",
    "has_coalescing_manager": "",
    "has_comm_data": "",
    "has_reduce_scatter_tensor": "",
    "in_aml": "",
    "in_aws_sm": "",
    "in_dlts": "",
    "inference_all_reduce": f"tensor op group async_op {LOG}",
    "init_distributed": "dist_backend auto_mpi_discovery distributed_port verbose timeout init_method"
    " dist_init_required config rank world_size",
    "initialize_mesh_device": "mesh_shape mesh_dim_names",
    "irecv": f"tensor src group tag {LOG}",
    "is_available": "",
    "is_initialized": "",
    "isend": f"tensor dst group tag {LOG}",
    "log_summary": "show_straggler return_dict",
    "monitored_barrier": f"group timeout wait_all_ranks {LOG}",
    "mpi_discovery": "distributed_port verbose",
    "new_group": "ranks",
    "patch_aml_env_for_torch_nccl_backend": "master_port verbose",
    "patch_aws_sm_env_for_torch_nccl_backend": "verbose",
    "recv": f"tensor src group tag {LOG}",
    "reduce": f"tensor dst op group async_op {LOG}",
    "reduce_scatter": f"output input_list op group async_op {LOG}",
    "reduce_scatter_fn": "output_tensor tensor op group async_op prof debug",
    "reduce_scatter_tensor": f"output_tensor tensor op group async_op {LOG}",
    "reset_log": "",
    "scatter": f"tensor scatter_list src group async_op {LOG}",
    "send": f"tensor dst group tag {LOG}",
    "set_backend": "",
    "timed_op": "func",
}
BACKEND = [
    "init_process_group",
    "all_reduce",
    "inference_all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "broadcast_object_list",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_base",
    "all_gather_coalesced",
    "all_gather_object",
    "all_to_all_single",
    "all_to_all",
    "send",
    "recv",
    "isend",
    "irecv",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "get_rank",
    "get_world_size",
    "is_initialized",
    "get_backend",
    "new_group",
    "get_global_rank",
    "get_world_group",
    "destroy_process_group",
    "get_all_gather_function",
    "get_reduce_scatter_function",
    "has_all_gather_into_tensor",
    "has_reduce_scatter_tensor",
    "init_device_mesh",
    "get_coalescing_manager",
]
OF_TORCH = [
    name
    for name in [
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "batch_isend_irecv",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "irecv",
        "isend",
        "monitored_barrier",
        "recv",
        "recv_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send",
        "send_object_list",
        "all_gather_single",
        "reduce_scatter_single",
    ]
    if hasattr(td, name)
]


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeeds_functions_take_deepspeeds_parameters(name: str) -> None:
    mine = inspect.signature(getattr(dist, name)).parameters
    wanted = DEEPSPEED[name].split()
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in mine.values())
    assert open_ended or set(wanted) <= set(mine)
    if wanted:
        by_position = [p for p, how in mine.items() if how.kind is how.POSITIONAL_OR_KEYWORD]
        assert len(by_position) >= len([p for p in wanted if p not in LOG.split()])


@pytest.mark.parametrize("name", OF_TORCH)
def test_torchs_functions_take_torchs_parameters_in_torchs_order(name: str) -> None:
    mine = list(inspect.signature(getattr(dist, name)).parameters)
    torchs = list(inspect.signature(getattr(td, name)).parameters)
    assert mine[: len(torchs)] == torchs
    newer = [each for each in ("timeout", "weights_only") if each in mine[len(torchs) :]]
    expected = [*newer, *LOG.split()]
    assert mine[len(torchs) :][: len(expected)] == expected


@pytest.mark.parametrize("name", [name for name, given in DEEPSPEED.items() if {"prof", "async_op"} & {*given.split()}])
def test_a_call_is_synchronous_and_logged_as_all_are_unless_said(name: str) -> None:
    parameters = inspect.signature(getattr(dist, name)).parameters
    defaults = {key: parameters[key].default for key in ("prof", "async_op", "debug") if key in parameters}
    assert defaults.items() <= {"prof": False, "async_op": False, "debug": None}.items()


def test_every_public_name_of_torch_is_there() -> None:
    missing = [name for name in dir(td) if not name.startswith("_") and not hasattr(dist, name)]
    assert missing == []


def test_the_backend_has_every_method_of_deepspeeds() -> None:
    assert issubclass(dist.TorchBackend, Backend)
    assert [name for name in BACKEND if not callable(getattr(dist.TorchBackend, name, None))] == []
    parameters = list(inspect.signature(dist.TorchBackend).parameters)
    assert parameters == ["backend", "timeout", "init_method", "rank", "world_size", "name"]


def test_either_name_of_a_parameter_will_do_but_not_both() -> None:
    one = torch.ones(1)
    with pytest.raises(TypeError, match="input_tensor / tensor is given twice"):
        dist.all_gather_into_tensor(one, one, tensor=one)
    with pytest.raises(TypeError, match="output / output_tensor is missing"):
        dist.reduce_scatter_tensor(tensor=one)


@pytest.mark.parametrize("op", [op for op in ReduceOp if op is not ReduceOp.UNUSED])
def test_reductions_have_deepspeeds_values_and_torchs_meaning(op: ReduceOp) -> None:
    order = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
    assert op.value == order.index(op.name)
    assert to_torch(op) == getattr(td.ReduceOp, op.name)
    assert to_torch(td.ReduceOp.SUM) is td.ReduceOp.SUM


def test_a_place_holder_reduces_nothing() -> None:
    with pytest.raises(UsageError, match=r"ReduceOp\.UNUSED is not a reduction"):
        to_torch(ReduceOp.UNUSED)


def test_the_declared_range_of_torch_is_the_projects() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = [one for one in project["dependencies"] if one.startswith("torch")]
    assert wanted.replace(" ", "").startswith(f"torch>={versions.MIN_TORCH_VERSION}")
    assert dist.required_torch_version(min_version=versions.MIN_TORCH_VERSION)
    assert not dist.required_torch_version(max_version="2.8")
    assert not dist.required_torch_version(min_version="99.0")
    assert dist.required_torch_version(min_version="2.9", max_version="99.0")
    assert dist.has_coalescing_manager()
    assert dist.has_all_reduce_coalesced()


def test_a_star_gives_calls_and_constants_and_no_module() -> None:
    names: dict[str, object] = {}
    exec("from dsexplore.comm import *", names)
    del names["__builtins__"]
    assert {"all_reduce", "isend", "P2POp", "CommsLogger", "comms_logger", "sweep", "NCCL_BACKEND"} <= names.keys()
    assert not {"Any", "annotations", "ModuleType", "torch"} & names.keys()
    assert not any(inspect.ismodule(value) for value in names.values())


def test_the_backends_module_has_the_names_of_deepspeeds() -> None:
    from dsexplore.comm import torch as backend

    for name in [
        "Noop",
        "all_gather_comm_off",
        "all_reduce_comm_off",
        "backward_comm_off",
        "broadcast_comm_off",
        "get_coalescing_manager",
        "has_all_reduce_coalesced",
        "has_coalescing_manager",
        "reduce_comm_off",
        "reduce_scatter_comm_off",
    ]:
        assert getattr(backend, name) is getattr(dist, name)
    assert (backend.is_torch_ver_eq_2_0(), backend.is_torch_ver_ge_2_1(), backend.torch_ver_ge_1_13()) == (
        False,
        True,
        True,
    )
    assert set(backend.__all__) <= set(dir(backend))
