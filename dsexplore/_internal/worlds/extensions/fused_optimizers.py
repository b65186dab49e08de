"""Optimizers as fused kernels compute them: torch's own Adam and SGD, and LAMB, under the names of extensions.

They send nothing; what they hold is what the kernels hold, an average of each gradient and of its square in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Parameters = Iterable[Any]
Betas = tuple[float, float]


class PlainAdam(torch.optim.AdamW):
    """Adam, with decoupled weight decay unless ``adam_w_mode`` is False.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: whether averages are corrected for their start; only with it.
        betas: of the averages.
        eps: added to the root.
        adam_w_mode: whether weight decay is decoupled.
        weight_decay: its factor.
        amsgrad: whether the largest average counts.
        set_grad_none: whether gradients are freed, as torch does.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = adam_w_mode
            group.setdefault("bias_correction", bias_correction)


class PlainSGD(torch.optim.SGD):
    """SGD with momentum.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        momentum: its factor.
        dampening: of the momentum.
        weight_decay: its factor.
        nesterov: whether the momentum looks ahead.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)


class PlainLAMB(torch.optim.Optimizer):
    """LAMB: Adam whose update of each parameter has the norm of that parameter (https://arxiv.org/abs/1904.00962).

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: whether averages are corrected for their start.
        betas: of the averages.
        eps: added to the root.
        weight_decay: its factor.
        max_grad_norm: gradients are scaled to this norm if theirs is larger; 0 for never.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        clip = self._clip()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.float() / clip, group)
        return loss

    def _clip(self) -> Tensor:
        """Return the divisor that limits the gradients' norm to ``max_grad_norm``."""
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        largest = self.defaults["max_grad_norm"]
        if not gradients or not largest:
            return torch.ones(())
        norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm()
        clip: Tensor = (norm / largest).clamp(min=1.0)
        return clip

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        first, second = group["betas"]
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        corrected = (1 - first ** group["step"], 1 - second ** group["step"]) if group["bias_correction"] else (1, 1)
        update = (average / corrected[0]) / ((square / corrected[1]).sqrt() + group["eps"])
        update = update + group["weight_decay"] * parameter
        norm, update_norm = parameter.float().norm(), update.norm()
        ratio = torch.where((norm > 0) & (update_norm > 0), norm / update_norm, torch.ones_like(norm))
        parameter.sub_((group["lr"] * ratio * update).to(parameter.dtype))
