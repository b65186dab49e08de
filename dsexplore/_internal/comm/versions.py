"""What the installed torch supports, by version or by feature."""

from __future__ import annotations

import inspect
from functools import cache

import torch
import torch.distributed as td
from torch.torch_version import TorchVersion

from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.torch_internals.names import OLDEST, is_there
from dsexplore._internal.torch_internals.process_groups import coalescing_manager

MIN_TORCH_VERSION = OLDEST


@names_arguments
def required_torch_version(min_version: str | float | None = None, max_version: str | float | None = None) -> bool:
    """Return True if torch is at least `min_version` and at most `max_version`, both included.

    Pass versions as text: the number 2.10 is 2.1.

    Examples:
        >>> dist.required_torch_version(min_version="2.0")
        True
    """
    installed = TorchVersion(torch.__version__.partition("+")[0])
    if min_version is not None and installed < TorchVersion(str(min_version)):
        return False
    return max_version is None or installed <= TorchVersion(str(max_version))


def is_torch_ver_eq_2_0() -> bool:
    """Return True if torch is 2.0, of any patch level."""
    return required_torch_version(min_version="2.0") and not required_torch_version(min_version="2.1")


def is_torch_ver_ge_2_1() -> bool:
    """Return True if torch is 2.1 or newer."""
    return required_torch_version(min_version="2.1")


def torch_ver_ge_1_13() -> bool:
    """Return True if torch is 1.13 or newer."""
    return required_torch_version(min_version="1.13")


def has_coalescing_manager() -> bool:
    """Return True if torch can launch several collectives as one.

    Examples:
        >>> dist.has_coalescing_manager()
        True
    """
    return is_there(coalescing_manager)


def has_all_reduce_coalesced() -> bool:
    """Return True if torch can reduce several tensors as one.

    Examples:
        >>> dist.has_all_reduce_coalesced()
        True
    """
    return hasattr(td, "all_reduce_coalesced")


@cache
def has_barrier_timeout() -> bool:
    """Return True if torch's barrier accepts a timeout."""
    return "timeout" in inspect.signature(td.barrier).parameters


@cache
def has_weights_only_objects() -> bool:
    """Return True if torch's object collectives can be restricted to unpickle tensors and plain containers."""
    return "weights_only" in inspect.signature(td.all_gather_object).parameters
