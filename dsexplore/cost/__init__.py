"""The cost of a traced program on a cluster: collective times, the predicted step, memory, the choice of a mesh.

The names below are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsexplore._internal.cost.cluster import Cluster as Cluster
    from dsexplore._internal.cost.cluster import known_clusters as known_clusters
    from dsexplore._internal.cost.collectives.collective_duration import collective_time as collective_time
    from dsexplore._internal.cost.collectives.engine_collectives import custom_all_reduce_time as custom_all_reduce_time
    from dsexplore._internal.cost.collectives.expert_exchange import deepep_time as deepep_time
    from dsexplore._internal.cost.expert_balance import expert_load as expert_load
    from dsexplore._internal.cost.expert_balance import imbalance as imbalance
    from dsexplore._internal.cost.memory.memory_snapshot import beside_snapshot as beside_snapshot
    from dsexplore._internal.cost.memory.memory_snapshot import read_memory_snapshot as read_memory_snapshot
    from dsexplore._internal.cost.range import Range as Range
    from dsexplore._internal.cost.step.beside_measured import beside as beside
    from dsexplore._internal.cost.step.beside_measured import with_measured_compute as with_measured_compute

_HOMES = {
    "Cluster": "cluster",
    "Range": "range",
    "beside": "step.beside_measured",
    "beside_snapshot": "memory.memory_snapshot",
    "collective_time": "collectives.collective_duration",
    "custom_all_reduce_time": "collectives.engine_collectives",
    "deepep_time": "collectives.expert_exchange",
    "expert_load": "expert_balance",
    "imbalance": "expert_balance",
    "known_clusters": "cluster",
    "read_memory_snapshot": "memory.memory_snapshot",
    "with_measured_compute": "step.beside_measured",
}

__all__ = [
    "Cluster",
    "Range",
    "beside",
    "beside_snapshot",
    "collective_time",
    "custom_all_reduce_time",
    "deepep_time",
    "expert_load",
    "imbalance",
    "known_clusters",
    "read_memory_snapshot",
    "with_measured_compute",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsexplore.cost' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"dsexplore._internal.cost.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
