"""`WrongPlan`: a plan with one fault, and the plans that faults are added to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.numerics.numeric_records import Phase
from dsexplore._internal.numerics.reasons.match import Reason
from tests.numerics.trained_model import (
    Trained,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)


def sgd(**options: Any) -> Trained:
    """Return the reference of most plans."""
    return trained(seeded(**options), *tokens_and_targets())


@dataclass(frozen=True)
class WrongPlan:
    """A plan with a fault."""

    name: str
    reason: Reason
    parallel: Callable[[DeviceMesh], Trained]
    places: tuple[str, ...]
    """Modules of which each may be named as the first."""
    phase: Phase
    mesh: str = "dp=2,tp=2"
    reference: Callable[[], Trained] = sgd
    source: str = ""
    """Address of a public report of such a fault; empty for none."""


GITHUB = "https://github.com"


def data_parallel(mesh: DeviceMesh, change: Callable[[Any], Any] = lambda model: None, **options: Any) -> Trained:
    """Return a model that is trained on part of the batch, with gradients averaged by hand."""
    model = seeded()
    change(model)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, **{"before_optimizer": partial(reduce_gradients, model, mesh["dp"]), **options})


def megatron_with(mesh: DeviceMesh, change: Callable[[Any, DeviceMesh], Any], **options: Any) -> Trained:
    """Return a model that is cut along tp, with a change to it."""
    model = tensor_parallel(seeded(**options), mesh["tp"])
    change(model, mesh)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))
