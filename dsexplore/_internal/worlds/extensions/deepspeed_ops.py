"""Stand-ins for the ops that DeepSpeed compiles for its optimizers: Adam, LAMB, Lion and Adagrad, for GPUs and CPUs.

DeepSpeed's own optimizers call these ops. Their signatures are those of its C++ sources
(https://github.com/deepspeedai/DeepSpeed, ``csrc``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.extensions.registry import Names, registered_package

Lists = Sequence[Sequence[Tensor]]


def adam(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    square: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
    decoupled: bool,
    corrected: bool,
    weight_decay: float,
) -> None:
    """Take a step of Adam in place.

    Args:
        parameter: parameter, which is updated.
        gradient: gradient of the parameter.
        average: running average of the gradient, which is updated.
        square: running average of the squared gradient, which is updated.
        lr: learning rate.
        betas: decay rates of the two averages.
        eps: number added to the denominator.
        step: number of the step, from 1.
        decoupled: True for AdamW's weight decay, False to add it to the gradient.
        corrected: True to correct the averages for their start at 0.
        weight_decay: weight decay coefficient.
    """
    gradient = gradient.float()
    if not decoupled:
        gradient = gradient + weight_decay * parameter.float()
    average.copy_(average.float().lerp(gradient, 1 - betas[0]))
    square.copy_(square.float().mul(betas[1]).addcmul(gradient, gradient, value=1 - betas[1]))
    first, second = (1 - betas[0] ** step, 1 - betas[1] ** step) if corrected else (1.0, 1.0)
    update = (average.float() / first) / ((square.float() / second).sqrt() + eps)
    if decoupled:
        update = update + weight_decay * parameter.float()
    parameter.copy_(parameter.float() - lr * update)


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Take a step of Adam; the lists hold gradients, parameters, averages, and averages of squares."""
    for gradient, parameter, average, square in zip(*tensor_lists, strict=True):
        adam(
            *(parameter, gradient, average, square),
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            step=step,
            decoupled=bool(mode),
            corrected=bool(bias_correction),
            weight_decay=weight_decay,
        )


class AdamOnCPU:
    """The functions of ``cpu_adam_op``, which remember for each optimizer whether its weight decay is decoupled."""

    def __init__(self) -> None:
        self._is_decoupled: dict[int, bool] = {}

    def create_adam(
        self,
        optimizer_id: int,
        alpha: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        adamw_mode: bool = True,
        should_log: bool = False,
    ) -> int:
        """Register an optimizer."""
        self._is_decoupled[optimizer_id] = adamw_mode
        return 0

    @torch.no_grad()
    def adam_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        bias_correction: bool,
        params: Tensor,
        grads: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
    ) -> int:
        """Take a step of Adam."""
        adam(
            *(params, grads, exp_avg, exp_avg_sq),
            lr=lr,
            betas=(beta1, beta2),
            eps=epsilon,
            step=step,
            decoupled=self._is_decoupled[optimizer_id],
            corrected=bias_correction,
            weight_decay=weight_decay,
        )
        return 0

    def destroy_adam(self, optimizer_id: int) -> int:
        """Forget an optimizer."""
        self._is_decoupled.pop(optimizer_id, None)
        return 0


@torch.no_grad()
def lamb(
    p: Tensor,
    p_copy: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    grad_scale: float,
    step: int,
    mode: int,
    bias_correction: int,
    decay: float,
) -> Tensor:
    """Take a step of LAMB, and return the trust ratio, clamped to the two coefficients."""
    gradient = g.float() / grad_scale
    m.copy_(m * beta1 + (1 - beta1) * gradient)
    v.copy_(v * beta2 + (1 - beta2) * gradient * gradient)
    size = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step) if bias_correction else lr
    root = (v + eps).sqrt() if mode == 0 else v.sqrt() + eps
    update = m / root + decay * p
    norm, update_norm = p.norm(), update.norm()
    ratio = torch.where((norm > 0) & (update_norm > 0), norm / update_norm, torch.ones_like(norm))
    ratio = ratio.clamp(min_coeff, max_coeff)
    p.sub_(size * ratio * update)
    if p_copy.numel():
        p_copy.copy_(p)
    return ratio


@torch.no_grad()
def multi_tensor_lion(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """Take a step of Lion; the lists hold gradients, parameters and averages."""
    for gradient, parameter, average in zip(*tensor_lists, strict=True):
        direction = (beta1 * average + (1 - beta1) * gradient).sign()
        parameter.sub_(lr * (direction + weight_decay * parameter))
        average.copy_(beta2 * average + (1 - beta2) * gradient)


@torch.no_grad()
def lion_update(
    optimizer_id: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    params: Tensor,
    grads: Tensor,
    exp_avg: Tensor,
) -> int:
    """Take a step of Lion on a CPU."""
    multi_tensor_lion(0, grads, [[grads], [params], [exp_avg]], lr, beta1, beta2, step, weight_decay)
    return 0


@torch.no_grad()
def adagrad_update(
    optimizer_id: int,
    step: int,
    lr: float,
    epsilon: float,
    weight_decay: float,
    params: Tensor,
    grads: Tensor,
    exp_avg_sq: Tensor,
) -> int:
    """Take a step of Adagrad on a CPU."""
    gradient = grads.float() + weight_decay * params.float()
    exp_avg_sq.add_(gradient * gradient)
    params.copy_(params.float() - lr * gradient / (exp_avg_sq.float().sqrt() + epsilon))
    return 0


def _do_nothing(*args: object) -> int:
    """Do nothing: Lion and Adagrad keep no state by optimizer."""
    return 0


_ADAM_ON_CPU = AdamOnCPU()

EXTENSIONS: dict[str, Names] = {
    "deepspeed.ops.adam.fused_adam_op": {"multi_tensor_adam": multi_tensor_adam},
    "deepspeed.ops.adam.cpu_adam_op": {
        "create_adam": _ADAM_ON_CPU.create_adam,
        "adam_update": _ADAM_ON_CPU.adam_update,
        "destroy_adam": _ADAM_ON_CPU.destroy_adam,
    },
    "deepspeed.ops.lamb.fused_lamb_op": {"lamb": lamb},
    "deepspeed.ops.lion.fused_lion_op": {"multi_tensor_lion": multi_tensor_lion},
    "deepspeed.ops.lion.cpu_lion_op": {
        "create_lion": _do_nothing,
        "lion_update": lion_update,
        "destroy_lion": _do_nothing,
    },
    "deepspeed.ops.adagrad.cpu_adagrad_op": {
        "create_adagrad": _do_nothing,
        "adagrad_update": adagrad_update,
        "destroy_adagrad": _do_nothing,
    },
}


def _load(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap DeepSpeed's load of an op to import the op's stand-in."""

    @wraps(original)
    def load(self: Any, verbose: bool = True) -> Any:
        """Load the stand-in for an op; compile the op only if it has none."""
        module = self.absolute_name()
        return original(self, verbose) if registered_package(module) is None else import_module(module)

    return load


PATCHES: tuple[Entry, ...] = (
    Patch(
        TorchName("deepspeed.ops.op_builder.builder:OpBuilder.load"),
        "it compiles ops, which needs a GPU, or minutes",
        _load,
        when="cuda traffic",
    ),
)
