"""The demo's Llama on a mesh."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.worlds import demo


def sharded_llama(mesh: DeviceMesh, shape: demo.Shape) -> demo.Llama:
    """Return a Llama with tensor and sequence parallelism over the axis tp and FSDP2 over dp, of those that have two
    ranks or more."""
    model = demo.Llama(shape)
    if mesh["tp"].size() > 1:
        demo.shard_tensors(model, mesh["tp"], sequence_parallel=True)
    if mesh["dp"].size() > 1:
        demo.shard_parameters(model, mesh["dp"])
    return model
