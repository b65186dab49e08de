"""Stand-ins for ``apex.fp16_utils``, for older training scripts: float16 models, with float32 copies of parameters.

Names and signatures are those of https://github.com/NVIDIA/apex before its ``amp``. The copies are called masters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from dsexplore._internal.worlds.extensions.registry import Names

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Parameters = Sequence[Tensor]


class ToHalf(nn.Module):
    """Casts its input to float16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as Apex's
        """Return ``input`` in float16."""
        return input.half()


def batch_norms_to_float(module: nn.Module) -> nn.Module:
    """Convert the batch norms of a model to float32, and return the model."""
    for part in module.modules():
        if isinstance(part, _BATCH_NORMS):
            part.float()
    return module


def network_to_half(network: nn.Module) -> nn.Sequential:
    """Convert a model to float16, except its batch norms, and return it after a cast of the input."""
    return nn.Sequential(ToHalf(), batch_norms_to_float(network.half()))


def prep_param_lists(model: nn.Module, flat_master: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters that are trained, and their masters: one per parameter, or a single flat one."""
    params: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not flat_master:
        return params, [parameter.detach().clone().float().requires_grad_() for parameter in params]
    flat = nn.Parameter(parameters_to_vector([parameter.detach() for parameter in params]).float())
    flat.grad = torch.empty_like(flat)
    return params, [flat]


@torch.no_grad()
def model_grads_to_master_grads(model_params: Parameters, master_params: Parameters, flat_master: bool = False) -> None:
    """Set the gradients of masters to those of the parameters, in float32."""
    if flat_master:
        gradients = [parameter.grad for parameter in model_params if parameter.grad is not None]
        master_params[0].grad = parameters_to_vector(gradients).float()
        return
    for parameter, master in zip(model_params, master_params, strict=True):
        master.grad = None if parameter.grad is None else parameter.grad.float()


@torch.no_grad()
def master_params_to_model_params(
    model_params: Parameters, master_params: Parameters, flat_master: bool = False
) -> None:
    """Copy the values of masters to the parameters."""
    if flat_master:
        parts = [torch.empty_like(parameter, dtype=torch.float32) for parameter in model_params]
        vector_to_parameters(master_params[0].detach(), parts)
        master_params = parts
    for parameter, master in zip(model_params, master_params, strict=True):
        parameter.copy_(master)


def to_python_float(t: Tensor) -> float:
    """Return the value of a tensor with one element."""
    return t.item()


class FP16Optimizer:
    """Wraps an optimizer to update masters of the parameters that are in float16.

    With ``dynamic_loss_scale``, for which Apex would search a scale, it is 1, and no step is skipped.
    """

    overflow = False

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        *more: Any,
        **options: Any,
    ) -> None:
        self.optimizer = init_optimizer
        self.loss_scale = 1.0 if dynamic_loss_scale else static_loss_scale
        self.halves: list[Tensor] = []
        self.masters: list[Tensor] = []
        for group in init_optimizer.param_groups:
            group["params"] = [self._master(parameter) for parameter in group["params"]]
        self.params = [parameter for group in init_optimizer.param_groups for parameter in group["params"]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def _master(self, parameter: Tensor) -> Tensor:
        """Return a new master of a float16 parameter; any other parameter unchanged."""
        if parameter.dtype != torch.float16 or not parameter.requires_grad:
            return parameter
        self.halves.append(parameter)
        self.masters.append(parameter.detach().clone().float().requires_grad_())
        return self.masters[-1]

    def zero_grad(self, set_grads_to_None: bool = False) -> None:  # Apex's name
        """Free the gradients."""
        for parameter in (*self.halves, *self.params):
            parameter.grad = None

    def backward(self, loss: Tensor, update_master_grads: bool = True, retain_graph: bool = False) -> None:
        """Compute gradients of the scaled loss, and those of the masters."""
        (loss.float() * self.loss_scale).backward(retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self) -> None:
        """Set the gradients of the masters, and divide all gradients by the loss scale."""
        model_grads_to_master_grads(self.halves, self.masters)
        for parameter in self.params:
            if parameter.grad is not None:
                parameter.grad.div_(self.loss_scale)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clip the gradients to a norm, and return the norm that they had."""
        return clip_grad_norm_(self.params, max_norm, norm_type)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the masters, and copy their values to the parameters."""
        out = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        master_params_to_model_params(self.halves, self.masters)
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the masters."""
        return {"optimizer_state_dict": self.optimizer.state_dict(), "fp32_from_fp16": self.masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        with torch.no_grad():
            for master, saved in zip(self.masters, state["fp32_from_fp16"], strict=True):
                master.copy_(saved)


_FUNCTIONS = (network_to_half, prep_param_lists, model_grads_to_master_grads, master_params_to_model_params)
NAMES: Names = {
    **{f"fp16_utils.{function.__name__}": function for function in (*_FUNCTIONS, to_python_float)},
    "fp16_utils.BN_convert_float": batch_norms_to_float,
    "fp16_utils.tofp16": ToHalf,
    "fp16_utils.FP16_Optimizer": FP16Optimizer,
}
