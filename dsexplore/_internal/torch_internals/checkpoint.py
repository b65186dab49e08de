"""Files of tensors: ``torch.save`` and ``torch.load``, safetensors, and distributed checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal

if TYPE_CHECKING:
    from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata as ShardedTensorMetadata
else:
    ShardedTensorMetadata = Any

_thread_state: Any = internal("torch.serialization:_serialization_tls")


def is_saving_fake_tensors() -> bool:
    """Return True while ``torch.save`` pickles fake tensors as such with memory, under ``skip_data``."""
    return bool(_thread_state.materialize_fake_tensors)


def is_loading_by_function() -> bool:
    """Return True while ``torch.load`` has a function of the program's as ``map_location``."""
    return callable(_thread_state.map_location)


def safetensors_names() -> dict[torch.dtype, str]:
    """Return the names of dtypes in files of safetensors."""
    return {dtype: name for name, dtype in internal("safetensors.torch:_TYPES").items()}


SAVE = TorchName("torch:save")
RESTORE_LOCATION = TorchName("torch._utils:_get_restore_location")
"""The function that says where ``torch.load`` puts a tensor that is no longer where it was."""

RESTORE_DEVICE = TorchName("torch._utils:_restore_device_fake_mode")
"""The function that gives a fake tensor that was loaded the device of its file."""

SET_RNG_STATE = TorchName("torch:set_rng_state")
FROM_STORAGE = TorchName("torch:asarray")
FROM_FILE = TorchName("torch:from_file")

STAGE_TENSOR = TorchName("torch.distributed.checkpoint._state_dict_stager:StateDictStager._offload_tensor")
WRITE_IN_THREAD = TorchName(
    "torch.distributed.checkpoint._async_thread_executor:_ThreadBasedAsyncCheckpointExecutor.execute_save"
)
"""The methods by which ``dcp.async_save`` copies a tensor, and writes in another thread."""

SAFETENSORS_SAVE = TorchName("safetensors.torch:save_file")
SAFETENSORS_LOAD = TorchName("safetensors.torch:load_file")
SAFETENSORS_STORAGE = TorchName("safetensors.torch:storage_ptr")
SAFETENSORS_IS_WHOLE = TorchName("safetensors.torch:_is_complete")

untyped: Callable[[torch.TypedStorage], torch.UntypedStorage] = attrgetter("_untyped_storage")
"""Return the untyped storage of a typed one, without torch's warning that such storages are deprecated."""

OBJECT_STATE = TorchName("torch._utils:_get_obj_state")
"""The function that returns which attributes of a tensor are pickled."""

REDUCE_TENSOR = TorchName("torch:Tensor._reduce_ex_internal")
REBUILD_TENSOR = TorchName("torch._utils:_rebuild_tensor")
REDUCE_STORAGES = TorchName("torch:TypedStorage.__reduce__"), TorchName("torch:UntypedStorage.__reduce__")
STORAGE_TO = TorchName("torch:UntypedStorage.to")
STORAGE_CUDA = TorchName("torch:UntypedStorage.cuda")
LOCATION_OF_STORAGE = TorchName("torch.serialization:location_tag")
PUT_STORAGE = TorchName("torch.serialization:_deserialize")
"""The functions that say where a storage is, and put one where its file says."""

BUILD_GLOBAL_METADATA = TorchName("torch.distributed._shard.sharded_tensor.utils:build_global_metadata")
"""The function that joins what the ranks hold of a ``ShardedTensor``: ``(gathered_metadatas, …)``."""


def place_of_shard(rank: int, beside: Any) -> Any:
    """Return the place of a shard of a ``ShardedTensor`` on another rank, on the same device as one of this rank."""
    return type(beside)(f"rank:{rank}/{beside.device()}")


BROADCAST_STATE_DICT = TorchName("torch.distributed._state_dict_utils:_broadcast_state_dict")
"""The function that broadcasts rank 0's state dict: ``(full_state_dict, local_state_dict, …)``."""
VALIDATE_GLOBAL_PLAN = TorchName("torch.distributed.checkpoint.default_planner:_validate_global_plan")
"""The function that checks whether the plans of all ranks cover each tensor."""


def answer_of_valid_plan(validate: Any) -> bool | list[str]:
    """Return the result of `VALIDATE_GLOBAL_PLAN` for valid plans: no errors; True up to torch 2.11."""
    return True if validate.__annotations__["return"] in (bool, "bool") else []


WRAPPER_METHODS = {
    name: TorchName(f"torch.distributed.checkpoint.utils:_DistWrapper.{name}")
    for name in ("reduce_scatter", "all_reduce", "broadcast")
}
"""The methods by which the ranks of a distributed checkpoint exchange plans and results."""


def tensor_info(tensor: torch.Tensor) -> Any:
    """Return the description that is sent before a state dict's tensor: size and dtype."""
    return internal("torch.distributed._state_dict_utils:_TensorInfo")(tensor.size(), tensor.dtype)
