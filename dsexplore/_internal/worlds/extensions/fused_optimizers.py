"""Optimizers as fused kernels compute them: torch's own Adam and SGD, LAMB and others, under the names of extensions.

They send nothing; what they hold is what the kernels hold, averages in fp32.
"""

from __future__ import annotations

import math
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


class _ByParameter(torch.optim.Optimizer):
    """An optimizer that updates one parameter after another, with averages in fp32."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.float(), group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _average(self, parameter: Tensor, name: str) -> Tensor:
        """Return an average of a parameter's state, which begins with 0."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        average: Tensor = state[name]
        return average


class PlainLAMB(_ByParameter):
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
        self._divisor = self._clip()
        return super().step(closure)

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
        gradient = gradient / self._divisor
        first, second = group["betas"]
        average, square = self._average(parameter, "exp_avg"), self._average(parameter, "exp_avg_sq")
        average.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        corrected = (1 - first ** group["step"], 1 - second ** group["step"]) if group["bias_correction"] else (1, 1)
        update = (average / corrected[0]) / ((square / corrected[1]).sqrt() + group["eps"])
        scaled = self._scaled(parameter, update, group["weight_decay"] * parameter)
        parameter.sub_((group["lr"] * scaled).to(parameter.dtype))

    def _scaled(self, parameter: Tensor, update: Tensor, decay: Tensor) -> Tensor:
        """Return the update, with weight decay, of the norm of its parameter."""
        update = update + decay
        norm, update_norm = parameter.float().norm(), update.norm()
        return update * torch.where((norm > 0) & (update_norm > 0), norm / update_norm, torch.ones_like(norm))


class PlainLion(_ByParameter):
    """Lion: the sign of an average of gradients (https://arxiv.org/abs/2302.06675).

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: of the update and of the average.
        weight_decay: its factor, decoupled.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        *more: Any,
        **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        average = self._average(parameter, "exp_avg")
        update = average.lerp(gradient, 1 - first).sign_()
        average.lerp_(gradient, 1 - second)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_((group["lr"] * update).to(parameter.dtype))


class PlainLARS(_ByParameter):
    """SGD whose update of each parameter has at most a part of that parameter's norm.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        momentum: its factor.
        dampening: of the momentum.
        weight_decay: its factor.
        nesterov: whether the momentum looks ahead.
        max_unorm: the part.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *more: Any,
        max_unorm: float = 0.02,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "max_unorm": max_unorm,
        }
        super().__init__(params, defaults)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        gradient = gradient + group["weight_decay"] * parameter
        momentum = self._average(parameter, "momentum_buffer")
        dampening = group["dampening"] if group["step"] > 1 else 0
        momentum.mul_(group["momentum"]).add_(gradient, alpha=1 - dampening)
        update = gradient + group["momentum"] * momentum if group["nesterov"] else momentum
        update = update * at_most(parameter, update, group["max_unorm"])
        parameter.sub_((group["lr"] * update).to(parameter.dtype))


def at_most(parameter: Tensor, update: Tensor, part: float) -> Tensor:
    """Return the factor that limits an update's norm to a part of the parameter's."""
    factor: Tensor = part * parameter.float().norm() / update.norm()
    return factor.clamp(max=1.0).nan_to_num(1.0)


class PlainAdEMAMix(_ByParameter):
    """AdEMAMix: Adam with a second, slower average of gradients (https://arxiv.org/abs/2409.03137).

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: of the average, of the squares, and of the slow average.
        alpha: factor of the slow average.
        t_alpha: number of steps in which alpha grows to its value.
        t_beta3: number of steps in which the third beta grows to its value.
        eps: added to the root.
        weight_decay: its factor, decoupled.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *more: Any,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "t_alpha": t_alpha, "t_beta3": t_beta3, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        step, (first, second, third) = group["step"], group["betas"]
        alpha = group["alpha"] * min(1.0, step / (group["t_alpha"] or step))
        if group["t_beta3"]:
            begin, end, part = math.log(first), math.log(third), step / group["t_beta3"]
            third = min(math.exp(begin * end / ((1 - part) * end + part * begin)), third) if part < 1 else third
        fast, slow, square = (self._average(parameter, name) for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq"))
        fast.lerp_(gradient, 1 - first)
        slow.lerp_(gradient, 1 - third)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**step)).sqrt() + group["eps"]
        update = (fast / (1 - first**step) + alpha * slow) / root + group["weight_decay"] * parameter
        parameter.sub_((group["lr"] * update).to(parameter.dtype))


class PlainNovoGrad(_ByParameter):
    """NovoGrad: gradients divided by an average of their norm, one a parameter (https://arxiv.org/abs/1905.11286).

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: whether averages are corrected for their start.
        betas: of the averages.
        eps: added to the norm.
        weight_decay: its factor.
        amsgrad: refused by the kernels.
        reg_inside_moment: whether weight decay is in the average.
        grad_averaging: whether gradients enter the average with a factor.
        options: of the kernels.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        more = {"reg_inside_moment": reg_inside_moment, "grad_averaging": grad_averaging}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, **more})

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        step, (first, second), state = group["step"], group["betas"], self.state[parameter]
        norm = gradient.norm().square()
        state["exp_avg_sq"] = square = norm if step == 1 else state["exp_avg_sq"].lerp(norm, 1 - second)
        corrected = (1 - first**step, 1 - second**step) if group["bias_correction"] else (1, 1)
        denominator = (square / corrected[1]).sqrt() + group["eps"]
        decay = group["weight_decay"] * parameter
        if group["reg_inside_moment"]:
            gradient = gradient / denominator + decay
        average = self._average(parameter, "exp_avg")
        average.mul_(first).add_(gradient, alpha=1 - first if group["grad_averaging"] else 1)
        update = average / corrected[0]
        if not group["reg_inside_moment"]:
            update = update / denominator + decay
        parameter.sub_((group["lr"] * update).to(parameter.dtype))
