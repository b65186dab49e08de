"""Ops of torch whose names begin with an underscore, each with all of its overloads."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.torch_internals.names import internal

copy_to: Any = internal("torch:ops.aten._to_copy")
"""The op of ``tensor.to``: a copy with another dtype or on another device."""

unsafe_view: Any = internal("torch:ops.aten._unsafe_view")
"""The op by which ``tensor.reshape`` views a copy that it made; autograd does not treat the result as a view."""

read_element: Any = internal("torch:ops.aten._local_scalar_dense")
"""The op of ``tensor.item``."""

unique: Any = internal("torch:ops.aten._unique2")
ctc_loss: Any = internal("torch:ops.aten._ctc_loss")
flash_attention: Any = internal("torch:ops.aten._scaled_dot_product_flash_attention")
efficient_attention: Any = internal("torch:ops.aten._scaled_dot_product_efficient_attention")

unscale_gradients: Any = internal("torch:ops.aten._amp_foreach_non_finite_check_and_unscale_")
update_scale: Any = internal("torch:ops.aten._amp_update_scale_")
"""The ops by which ``torch.amp.GradScaler`` divides gradients, looks for one that is not finite, and adapts itself."""

pack_padded_sequence: Any = internal("torch:ops.aten._pack_padded_sequence")
grouped_mm: Any = internal("torch:ops.aten._grouped_mm")
fused_adam: Any = internal("torch:ops.aten._fused_adam_")
fused_adamw: Any = internal("torch:ops.aten._fused_adamw_")

COLLECTIVES = frozenset({"c10d", "_c10d_functional"})
"""The namespaces of collectives: in-place ones of c10d, and functional ones."""
wait: Any = internal("torch:ops._c10d_functional.wait_tensor")
all_gather_flat: Any = internal("torch:ops.c10d._allgather_base_")
"""The op of ``all_gather_into_tensor``."""

FLASH_ATTENTION = "aten::_scaled_dot_product_flash_attention"
FLASH_ATTENTION_BACKWARD = f"{FLASH_ATTENTION}_backward"
flash_attention_backward: Any = internal("torch:ops.aten._scaled_dot_product_flash_attention_backward")
flash_attention_on_cpu: Any = internal("torch:ops.aten._scaled_dot_product_flash_attention_for_cpu")
flash_attention_on_cpu_backward: Any = internal("torch:ops.aten._scaled_dot_product_flash_attention_for_cpu_backward")
"""The op that ``F.scaled_dot_product_attention`` calls on a CPU, and its backward."""

shard_dim_alltoall: Any = internal("torch:ops._dtensor.shard_dim_alltoall")
"""The op that changes the sharded dim of a DTensor."""
