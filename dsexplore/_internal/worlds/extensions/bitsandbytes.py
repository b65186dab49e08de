"""Stand-ins for ``bitsandbytes.optim``: its optimizers with averages in fp32 rather than in 8 bits.

Names are those of https://github.com/bitsandbytes-foundation/bitsandbytes. Both Adams decouple weight decay.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dsexplore._internal.worlds.extensions.fused_optimizers import Betas, Parameters, PlainAdam, PlainSGD
from dsexplore._internal.worlds.extensions.registry import Names


class Adam(PlainAdam):
    """Adam; further options are of the kernels."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *bits: Any,
        **options: Any,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)


class AdamW(Adam):
    """Adam whose weight decay is 0.01 unless given."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *more: Any,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, *more, **options)


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


EXTENSIONS: dict[str, Names] = {
    "bitsandbytes": {
        "__version__": "0.48.0",
        **{
            f"optim.{paged}{kind.__name__}{bits}": kind
            for kind in (Adam, AdamW)
            for paged in ("", "Paged")
            for bits in ("", "8bit", "32bit")
        },
        **{f"optim.SGD{bits}": PlainSGD for bits in ("", "8bit", "32bit")},
        "optim.GlobalOptimManager": GlobalOptimManager,
    }
}
