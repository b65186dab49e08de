"""The class name of a model is the one that its program wrote."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import fully_shard

from dsexplore._internal.model_names import class_name
from dsexplore._internal.worlds.simulate import simulate


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Mixed(Plain, nn.Sequential):
    """A class with two bases that does not use FSDP2."""


def test_a_plain_model_has_its_own_class() -> None:
    assert class_name(Plain()) == "Plain"
    assert class_name(Mixed()) == "Mixed"


def test_a_model_under_fsdp2_has_the_class_it_had_before() -> None:
    with simulate(mesh="dp=2") as mesh:
        model = fully_shard(Plain(), mesh=mesh)
        assert type(model).__name__ == "FSDPPlain"
        assert class_name(model) == "Plain"
