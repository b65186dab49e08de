"""Stand-ins for bitsandbytes: its optimizers with averages in fp32 rather than in 8 bits, and the table of its names.

Names are those of https://github.com/bitsandbytes-foundation/bitsandbytes. Both Adams decouple weight decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dsexplore._internal.worlds.extensions import bitsandbytes_layers
from dsexplore._internal.worlds.extensions.fused_optimizers import (
    KernelOptimizer,
    Parameters,
    PlainAdam,
    PlainAdEMAMix,
    PlainLAMB,
    PlainLARS,
    PlainLion,
    PlainSGD,
    at_most,
)
from dsexplore._internal.worlds.extensions.registry import Names


class Adam(PlainAdam):
    """Adam; further options are of the kernels."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
    }


class AdamW(Adam):
    """Adam whose weight decay is 0.01 unless given."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**Adam.DEFAULTS, "weight_decay": 1e-2}


class LAMB(PlainLAMB):
    """Adam with decoupled weight decay, whose update has at most the norm of its parameter."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**PlainLAMB.DEFAULTS, "eps": 1e-8, "weight_decay": 0.0}

    def _initialize(self, params: Parameters, **options: Any) -> None:
        super()._initialize(params, **{**options, "max_grad_norm": 0.0})

    def _scaled(self, parameter: Tensor, update: Tensor, decay: Tensor) -> Tensor:
        return update * at_most(parameter, update, 1.0) + decay


class RMSprop(KernelOptimizer, torch.optim.RMSprop):
    """RMSprop; further options are of the kernels."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0}


class Adagrad(KernelOptimizer, torch.optim.Adagrad):
    """Adagrad; further options are of the kernels."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    }


class GlobalOptimManager:
    """Keeps which parameters have averages in 32 bits, as all of them have here."""

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        """Return a manager."""
        return cls()

    def register_parameters(self, params: Any) -> None:
        """Do nothing."""

    def override_config(self, parameters: Any, key: str | None = None, value: Any = None, **more: Any) -> None:
        """Do nothing."""

    def register_module_override(self, module: nn.Module, param_name: str, config: dict[str, Any]) -> None:
        """Do nothing."""


_BITS = ("", "8bit", "32bit")
_PAGED = {"Adam": Adam, "AdamW": AdamW, "Lion": PlainLion, "AdEMAMix": PlainAdEMAMix}
_OPTIMIZERS = {"SGD": PlainSGD, "LAMB": LAMB, "LARS": PlainLARS, "RMSprop": RMSprop, "Adagrad": Adagrad}

EXTENSIONS: dict[str, Names] = {
    "bitsandbytes": {
        "__version__": "0.48.0",
        **{
            f"optim.{paged}{name}{bits}": kind
            for name, kind in _PAGED.items()
            for paged in ("", "Paged")
            for bits in _BITS
        },
        **{f"optim.{name}{bits}": kind for name, kind in _OPTIMIZERS.items() for bits in _BITS},
        **{
            f"optim.{name.lower()}.{name}{bits}": kind
            for name, kind in (_PAGED | _OPTIMIZERS).items()
            for bits in _BITS
        },
        "optim.PytorchLARS": PlainLARS,
        "optim.GlobalOptimManager": GlobalOptimManager,
        **bitsandbytes_layers.NAMES,
    }
}
