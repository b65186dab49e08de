"""FSDP: ``fully_shard``'s parameter groups, and the flat parameters of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

module_of_flat_parameter: Callable[[Any], nn.Module] = attrgetter("_fully_sharded_module")
"""Return the module whose parameters a flat parameter's handle shards."""
