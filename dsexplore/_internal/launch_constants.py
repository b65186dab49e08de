"""Constants of launchers: port, timeout and environment variables, with DeepSpeed's names and values where it has
them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    default_pg_timeout: timedelta

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500

SIMULATED_RUN = "dsexplore-simulated"
"""Value of ``TORCHELASTIC_RUN_ID`` in a simulated world."""

TIMEOUT_VARIABLE = "DEEPSPEED_TIMEOUT"
DEFAULT_TIMEOUT_MINUTES = 30

INFERENCE_GENERIC_MODE = "generic"
INFERENCE_SPECIALIZED_MODE = "specialized"

CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"
LOCAL_RANK = "LOCAL_RANK"


def _timeout_from_environment() -> timedelta:
    """Return the timeout of collectives from ``DEEPSPEED_TIMEOUT``, in minutes."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return timedelta(minutes=DEFAULT_TIMEOUT_MINUTES)
    if not (text.strip().isdecimal() and int(text) > 0):
        raise ValueError(f"{TIMEOUT_VARIABLE}={text!r} is not a positive whole number: set it to minutes, such as 30")
    return timedelta(minutes=int(text))


def __getattr__(name: str) -> Any:
    """Return ``default_pg_timeout`` from the environment on access, so that a bad value cannot break an import."""
    if name == "default_pg_timeout":
        return _timeout_from_environment()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
