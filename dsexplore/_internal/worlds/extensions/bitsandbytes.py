"""Stand-ins for bitsandbytes: optimizers, whose states are in fp32 rather than in 8 bits, and the table of its names.

Names are those of https://github.com/bitsandbytes-foundation/bitsandbytes. Adam decouples weight decay, as AdamW does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dsexplore._internal.worlds.extensions import bitsandbytes_layers
from dsexplore._internal.worlds.extensions.fused_optimizers import (
    OF_BITSANDBYTES,
    REQUIRED,
    ByParameter,
    KernelOptimizer,
    Parameters,
    PlainAdam,
    PlainAdEMAMix,
    PlainLARS,
    PlainLion,
    PlainSGD,
    norm_limit,
)
from dsexplore._internal.worlds.extensions.registry import Names


class Adam(PlainAdam):
    """Adam."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        **OF_BITSANDBYTES,
        "is_paged": False,
    }


class AdamW(Adam):
    """Adam with a default weight decay of 0.01."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**Adam.DEFAULTS, "weight_decay": 1e-2}


class SGD(PlainSGD):
    """SGD with momentum."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": REQUIRED,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        **OF_BITSANDBYTES,
    }


class PytorchLARS(PlainLARS):
    """LARS with a default learning rate of 0.01."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in PlainLARS.DEFAULTS.items() if name not in OF_BITSANDBYTES},
        "lr": 0.01,
    }


class LAMB(ByParameter):
    """Adam with decoupled weight decay; the norm of an update is at most ``max_unorm`` times that of its parameter."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "adam_w_mode": True,
        **OF_BITSANDBYTES,
        "block_wise": False,
        "max_unorm": 1.0,
    }

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        update = self._adam(parameter, gradient, group, 1 - group["betas"][0])
        scaled = update * norm_limit(parameter, update, group["max_unorm"]) + group["weight_decay"] * parameter
        parameter.sub_((group["lr"] * scaled).to(parameter.dtype))


class RMSprop(KernelOptimizer, torch.optim.RMSprop):
    """RMSprop; ``momentum`` has no effect, as in the kernels."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
        **OF_BITSANDBYTES,
    }

    def _initialize(self, params: Parameters, **options: Any) -> None:
        super()._initialize(params, **{**options, "momentum": 0.0})


class Adagrad(KernelOptimizer, torch.optim.Adagrad):
    """Adagrad."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
        **OF_BITSANDBYTES,
    }


class GlobalOptimManager:
    """Settings of parameters whose states stay in 32 bits; they have no effect, as all states are in 32 bits here."""

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
_OPTIMIZERS = {"SGD": SGD, "LAMB": LAMB, "LARS": PlainLARS, "RMSprop": RMSprop, "Adagrad": Adagrad}


def _variant(kind: type[KernelOptimizer], paged: str, bits: str) -> type[KernelOptimizer]:
    """Return the variant of an optimizer whose name says that it is paged, or its bits, with its arguments.

    Most variants lack the arguments ``optim_bits`` and ``is_paged`` that their name fixes.

    Args:
        kind: the optimizer.
        paged: ``"Paged"``, or empty.
        bits: ``"8bit"``, ``"32bit"``, or empty.
    """
    defaults = dict(kind.DEFAULTS)
    if bits and kind not in (Adam, AdamW, Adagrad):
        defaults.pop("optim_bits", None)
    if paged and kind is not Adam:
        defaults.pop("is_paged", None)
    if kind is Adagrad and bits == "8bit":
        defaults["optim_bits"] = 8
    return type(f"{paged}{kind.__name__}{bits}", (kind,), {"DEFAULTS": defaults, "__doc__": kind.__doc__})


EXTENSIONS: dict[str, Names] = {
    "bitsandbytes": {
        "__version__": "0.48.0",
        **{
            f"optim.{paged}{name}{bits}": _variant(kind, paged, bits)
            for name, kind in _PAGED.items()
            for paged in ("", "Paged")
            for bits in _BITS
        },
        **{f"optim.{name}{bits}": _variant(kind, "", bits) for name, kind in _OPTIMIZERS.items() for bits in _BITS},
        **{
            f"optim.{name.lower()}.{name}{bits}": _variant(kind, "", bits)
            for name, kind in (_PAGED | _OPTIMIZERS).items()
            for bits in _BITS
        },
        "optim.PytorchLARS": PytorchLARS,
        "optim.GlobalOptimManager": GlobalOptimManager,
        **bitsandbytes_layers.NAMES,
    }
}
