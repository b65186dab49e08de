"""Tensors and layers that exercises give to an answer, and the comparison of the tensors that it returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsexplore._internal.lessons.requirement import Requirement


def random_tensor(*shape: int, seed: int) -> Tensor:
    """Return a tensor of random numbers that are the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layers(count: int, width: int) -> nn.Sequential:
    """Return `count` square linear layers without biases, with the same weights in each run."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(random_tensor(width, width, seed=index) / width)
    return model


def is_close(got: object, wanted: Tensor) -> bool:
    """Return True if an answer is a plain tensor of this shape and dtype with these values, up to rounding."""
    if (
        not isinstance(got, Tensor)
        or isinstance(got, DTensor)
        or got.shape != wanted.shape
        or got.dtype != wanted.dtype
    ):
        return False
    return torch.allclose(got.detach(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def require_close(says: str, got: object, wanted: Tensor, hint: str) -> Requirement:
    """Return the requirement that an answer is a tensor like the wanted one.

    Args:
        says: the requirement.
        got: what the answer returned.
        wanted: the tensor that it should return.
        hint: what to change if shape or values differ; if the dtype differs, the hint is to keep it.
    """
    if isinstance(got, Tensor) and got.dtype != wanted.dtype:
        hint = f"The tensor has dtype {got.dtype}: keep {wanted.dtype}, the dtype of the argument."
    return Requirement(says, is_close(got, wanted), hint)
