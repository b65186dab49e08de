"""``DistributedDataParallel`` and its reducer in C++."""

from __future__ import annotations

from dsexplore.torch_internals.names import TorchName

INIT = TorchName("torch.nn.parallel:DistributedDataParallel.__init__")
REBUILD_BUCKETS = TorchName("torch.distributed:Reducer._rebuild_buckets")
SET_STATIC_GRAPH = TorchName("torch.distributed:Reducer._set_static_graph")
"""The methods of the reducer that write integers into tensors' memory and send them."""

BUCKET_TENSORS = tuple(TorchName(f"torch.distributed:GradBucket.{name}") for name in ("buffer", "gradients"))
"""The methods of a bucket that give its memory to a communication hook."""
