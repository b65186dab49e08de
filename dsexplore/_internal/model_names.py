"""`class_name`: the name of a model's class as the program wrote it."""

from __future__ import annotations

import sys

from torch import nn


def class_name(model: nn.Module) -> str:
    """Return the name of a model's class, without the ``FSDP`` that ``fully_shard`` prepends in a subclass."""
    model_class = type(model)
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a program with FSDP2 has imported it
    wrapped = fsdp is not None and isinstance(model, fsdp.FSDPModule) and len(model_class.__bases__) > 1
    return (model_class.__bases__[1] if wrapped else model_class).__name__
