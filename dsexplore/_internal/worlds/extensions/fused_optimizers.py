"""Optimizers that extensions implement as fused kernels: Adam, SGD, LAMB, Lion, LARS, AdEMAMix and NovoGrad.

They hold the same states as the kernels, averages in fp32, and send nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any, ClassVar

import torch
from torch import Tensor

Parameters = Iterable[Any]
Betas = tuple[float, float]

REQUIRED = Parameter.empty
"""Marks an argument without a default."""
_WITHOUT_EFFECT = {
    *("set_grad_none", "capturable", "master_weights", "master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    *("use_decoupled_grad", "store_param_remainders", "materialize_master_grads", "wd_after_momentum"),
    *("reduced_precision_dtype", "optim_bits", "args", "min_8bit_size", "percentile_clipping", "block_wise"),
    "is_paged",
}
"""Arguments of fused kernels that have no effect here."""
OF_BITSANDBYTES: Mapping[str, Any] = {
    "optim_bits": 32,
    "args": None,
    "min_8bit_size": 4096,
    "percentile_clipping": 100,
    "block_wise": True,
}
"""The last arguments, with defaults, of most optimizers of bitsandbytes."""


class KernelOptimizer(torch.optim.Optimizer):
    """An optimizer with the arguments of a fused kernel, which a subclass lists in `DEFAULTS`."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """{argument: its default}, in the extension's order, without ``params``."""
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        arguments = {"params": REQUIRED, **cls.DEFAULTS}
        cls.__signature__ = Signature(
            [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value) for name, value in arguments.items()]
        )

    def __init__(self, *values: Any, **named: Any) -> None:
        try:
            bound = self.__signature__.bind(*values, **named)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}(): {error}") from None
        bound.apply_defaults()
        options = {name: value for name, value in bound.arguments.items() if name not in _WITHOUT_EFFECT}
        self._initialize(options.pop("params"), **options)

    def _initialize(self, params: Parameters, **options: Any) -> None:
        """Initialize torch's optimizer, the next base class, with the arguments that have an effect."""
        super().__init__(params, **options)


class PlainAdam(KernelOptimizer, torch.optim.AdamW):
    """Adam, with decoupled weight decay unless ``adam_w_mode`` is False.

    ``bias_correction`` has no effect: averages are always corrected for their start at 0.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "adam_w_mode": True,
        "weight_decay": 0.0,
        "amsgrad": False,
        "set_grad_none": True,
        "capturable": False,
        "master_weights": False,
    }

    def _initialize(self, params: Parameters, **options: Any) -> None:
        is_corrected, is_decoupled = (options.pop(name, True) for name in ("bias_correction", "adam_w_mode"))
        super()._initialize(params, **options)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = is_decoupled
            group.setdefault("bias_correction", is_corrected)


class PlainSGD(KernelOptimizer, torch.optim.SGD):
    """SGD with momentum; ``wd_after_momentum`` is not computed."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": REQUIRED,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "wd_after_momentum": False,
        "materialize_master_grads": True,
        "set_grad_none": False,
    }


class ByParameter(KernelOptimizer):
    """Base class of optimizers that update one parameter after the other, with averages in fp32."""

    def _initialize(self, params: Parameters, **options: Any) -> None:
        torch.optim.Optimizer.__init__(self, params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._prepare()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.float(), group)
        return loss

    def _prepare(self) -> None:
        """Prepare a step, before the first parameter is updated."""

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter in place, from its gradient in fp32."""
        raise NotImplementedError

    def _average(self, parameter: Tensor, name: str) -> Tensor:
        """Return an average from a parameter's state; zeros at first."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        average: Tensor = state[name]
        return average

    def _adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], weight: float) -> Tensor:
        """Update the averages of Adam, and return its update; `weight` is that of the gradient in its average."""
        first, second = group["betas"]
        average, square = self._average(parameter, "exp_avg"), self._average(parameter, "exp_avg_sq")
        average.mul_(first).add_(gradient, alpha=weight)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        if group["bias_correction"]:
            average, square = average / (1 - first ** group["step"]), square / (1 - second ** group["step"])
        update: Tensor = average / (square.sqrt() + group["eps"])
        return update


class PlainLAMB(ByParameter):
    """LAMB: Adam whose update of each parameter has the norm of that parameter (https://arxiv.org/abs/1904.00962).

    As in Apex, parameters without weight decay are updated by Adam unless ``use_nvlamb``, and gradients are clipped to
    the norm ``max_grad_norm``, unless it is 0.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "amsgrad": False,
        "adam_w_mode": True,
        "grad_averaging": True,
        "set_grad_none": True,
        "max_grad_norm": 1.0,
        "use_nvlamb": False,
    }

    def _prepare(self) -> None:
        """Compute the divisor that limits the gradients' norm to ``max_grad_norm``."""
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        largest, self._divisor = self.defaults["max_grad_norm"], torch.ones(())
        if gradients and largest:
            norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm()
            self._divisor = (norm / largest).clamp(min=1.0)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        gradient = gradient / self._divisor
        decay = group["weight_decay"] * parameter
        if not group["adam_w_mode"]:
            gradient = gradient + decay
        update = self._adam(parameter, gradient, group, 1 - group["betas"][0] if group["grad_averaging"] else 1)
        if group["adam_w_mode"]:
            update = update + decay
        if group["use_nvlamb"] or group["weight_decay"]:
            norm, update_norm = parameter.float().norm(), update.norm()
            update = update * torch.where((norm > 0) & (update_norm > 0), norm / update_norm, torch.ones_like(norm))
        parameter.sub_((group["lr"] * update).to(parameter.dtype))


class PlainLion(ByParameter):
    """Lion: the sign of an average of gradients (https://arxiv.org/abs/2302.06675); weight decay is decoupled."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-4,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
        **OF_BITSANDBYTES,
        "is_paged": False,
    }

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        average = self._average(parameter, "exp_avg")
        update = average.lerp(gradient, 1 - first).sign_()
        average.lerp_(gradient, 1 - second)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_((group["lr"] * update).to(parameter.dtype))


class PlainLARS(ByParameter):
    """SGD; the norm of an update is at most ``max_unorm`` times that of its parameter, or unlimited with 0."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": REQUIRED,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "optim_bits": 32,
        "args": None,
        "min_8bit_size": 4096,
        "percentile_clipping": 100,
        "max_unorm": 0.02,
    }

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        gradient = gradient + group["weight_decay"] * parameter
        momentum = self._average(parameter, "momentum_buffer")
        dampening = group["dampening"] if group["step"] > 1 else 0
        momentum.mul_(group["momentum"]).add_(gradient, alpha=1 - dampening)
        update = gradient + group["momentum"] * momentum if group["nesterov"] else momentum
        update = update * norm_limit(parameter, update, group["max_unorm"])
        parameter.sub_((group["lr"] * update).to(parameter.dtype))


def norm_limit(parameter: Tensor, update: Tensor, ratio: float) -> Tensor:
    """Return the factor that limits an update's norm to so many times the parameter's norm; 1 for ``ratio=0``."""
    if not ratio:
        return torch.ones(())
    factor: Tensor = ratio * parameter.float().norm() / update.norm()
    return factor.clamp(max=1.0).nan_to_num(1.0)


class PlainAdEMAMix(ByParameter):
    """AdEMAMix: Adam with a second, slower average of gradients (https://arxiv.org/abs/2409.03137).

    ``alpha`` is the factor of the slow average, and the third beta its decay rate; they grow to their values in
    ``t_alpha`` and ``t_beta3`` steps. Weight decay is decoupled.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999, 0.9999),
        "alpha": 5.0,
        "t_alpha": None,
        "t_beta3": None,
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "optim_bits": 32,
        "min_8bit_size": 4096,
        "is_paged": False,
    }

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


class PlainNovoGrad(ByParameter):
    """NovoGrad: gradients divided by a running average of their norm, per parameter (https://arxiv.org/abs/1905.11286).

    ``reg_inside_moment`` adds weight decay to the gradient, before it is averaged. ``grad_averaging`` weights gradients
    by ``1 - beta1`` in the average. The norm is the 2-norm, or with ``norm_type=0`` the maximum norm; its average
    begins as the first norm, or with ``init_zero`` as 0.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "reg_inside_moment": False,
        "grad_averaging": True,
        "norm_type": 2,
        "init_zero": False,
        "set_grad_none": True,
    }

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        step, (first, second), state = group["step"], group["betas"], self.state[parameter]
        has_squares = group["norm_type"] == 2
        norm = gradient.norm().square() if has_squares else gradient.abs().max()
        before = state.get("exp_avg_sq", torch.zeros_like(norm) if group["init_zero"] else norm)
        state["exp_avg_sq"] = average_norm = before.lerp(norm, 1 - second)
        first_correction, second_correction = 1.0, 1.0
        if group["bias_correction"]:
            first_correction, second_correction = 1 - first**step, 1 - second**step
        denominator = average_norm.sqrt() if has_squares else average_norm
        denominator = denominator / second_correction**0.5 + group["eps"]
        decay = group["weight_decay"] * parameter
        if group["reg_inside_moment"]:
            gradient = gradient / denominator + decay
        average = self._average(parameter, "exp_avg")
        average.mul_(first).add_(gradient, alpha=1 - first if group["grad_averaging"] else 1)
        update = average / first_correction
        if not group["reg_inside_moment"]:
            update = update / denominator + decay
        parameter.sub_((group["lr"] * update).to(parameter.dtype))
