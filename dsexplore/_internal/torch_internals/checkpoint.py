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
    """Return True while ``torch.save`` writes fake tensors as if they had memory, under ``skip_data``."""
    return bool(_thread_state.materialize_fake_tensors)


def is_loading_by_function() -> bool:
    """Return True while ``torch.load`` runs with a function of the program as ``map_location``."""
    return callable(_thread_state.map_location)


def safetensors_names() -> dict[torch.dtype, str]:
    """Return the names of dtypes in files of safetensors."""
    return {dtype: name for name, dtype in internal("safetensors.torch:_TYPES").items()}


SAVE = TorchName("torch:save")
RESTORE_LOCATION = TorchName("torch._utils:_get_restore_location")
"""Function that returns where ``torch.load`` puts a tensor: ``(map_location)``."""

RESTORE_DEVICE = TorchName("torch._utils:_restore_device_fake_mode")
"""Function that sets the device of a loaded fake tensor to that in the file."""

SET_RNG_STATE = TorchName("torch:set_rng_state")
FROM_STORAGE = TorchName("torch:asarray")
FROM_FILE = TorchName("torch:from_file")

STAGE_TENSOR = TorchName("torch.distributed.checkpoint._state_dict_stager:StateDictStager._offload_tensor")
WRITE_IN_THREAD = TorchName(
    "torch.distributed.checkpoint._async_thread_executor:_ThreadBasedAsyncCheckpointExecutor.execute_save"
)
"""Methods by which ``dcp.async_save`` copies a tensor, and writes in another thread."""

SAFETENSORS_SAVE = TorchName("safetensors.torch:save_file")
SAFETENSORS_LOAD = TorchName("safetensors.torch:load_file")
SAFETENSORS_STORAGE = TorchName("safetensors.torch:storage_ptr")
SAFETENSORS_IS_WHOLE = TorchName("safetensors.torch:_is_complete")

untyped: Callable[[torch.TypedStorage], torch.UntypedStorage] = attrgetter("_untyped_storage")
"""Return the untyped storage of a typed one, without torch's warning that such storages are deprecated."""

OBJECT_STATE = TorchName("torch._utils:_get_obj_state")
"""Function that returns the attributes of a tensor that are pickled."""

REDUCE_TENSOR = TorchName("torch:Tensor._reduce_ex_internal")
REBUILD_TENSOR = TorchName("torch._utils:_rebuild_tensor")
REDUCE_STORAGES = TorchName("torch:TypedStorage.__reduce__"), TorchName("torch:UntypedStorage.__reduce__")
STORAGE_TO = TorchName("torch:UntypedStorage.to")
STORAGE_CUDA = TorchName("torch:UntypedStorage.cuda")
LOCATION_OF_STORAGE = TorchName("torch.serialization:location_tag")
PUT_STORAGE = TorchName("torch.serialization:_deserialize")
"""Functions that return the location of a storage as text, and move a loaded storage to its location."""

BUILD_GLOBAL_METADATA = TorchName("torch.distributed._shard.sharded_tensor.utils:build_global_metadata")
"""Function that joins the metadata of a ``ShardedTensor`` on all ranks: ``(gathered_metadatas, …)``."""


def placement_of_shard(rank: int, local: Any) -> Any:
    """Return the placement of a shard of a ``ShardedTensor`` on another rank, on the device of a `local` placement."""
    return type(local)(f"rank:{rank}/{local.device()}")


BROADCAST_STATE_DICT = TorchName("torch.distributed._state_dict_utils:_broadcast_state_dict")
"""Function that broadcasts rank 0's state dict: ``(full_state_dict, local_state_dict, …)``."""
VALIDATE_GLOBAL_PLAN = TorchName("torch.distributed.checkpoint.default_planner:_validate_global_plan")
"""Function that checks whether the plans of all ranks cover each tensor."""


def result_of_valid_plan(validate: Any) -> bool | list[str]:
    """Return the result of `VALIDATE_GLOBAL_PLAN` for valid plans: an empty list of errors; True up to torch 2.11."""
    return True if validate.__annotations__["return"] in (bool, "bool") else []


WRAPPER_METHODS = {
    name: TorchName(f"torch.distributed.checkpoint.utils:_DistWrapper.{name}")
    for name in ("reduce_scatter", "all_reduce", "broadcast")
}
"""Methods by which the ranks of a distributed checkpoint exchange plans and results."""


def tensor_info(tensor: torch.Tensor) -> Any:
    """Return the description that is sent before a tensor of a state dict: its size and dtype."""
    return internal("torch.distributed._state_dict_utils:_TensorInfo")(tensor.size(), tensor.dtype)
