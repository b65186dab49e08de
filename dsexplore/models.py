"""Models as the program that wrote them knows them."""

from __future__ import annotations

import sys

from torch import nn


def class_name(model: nn.Module) -> str:
    """The class as the program wrote it: ``fully_shard`` puts its own, ``FSDP<name>``, in front."""
    own = type(model)
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a model that is one has imported it
    wrapped = fsdp is not None and isinstance(model, fsdp.FSDPModule) and len(own.__bases__) > 1
    return (own.__bases__[1] if wrapped else own).__name__
