"""Linear layers with activations that Apex and FlashAttention fuse, in plain torch.

Parameters have the same names and shapes as in these packages; options that choose kernels have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """Return GELU with the tanh approximation, as the kernels compute it."""
    return functional.gelu(x, approximate="tanh")


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """Return ``silu(x) * y``."""
    return functional.silu(x) * y


_ACTIVATIONS: dict[str, Activation] = {"none": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid}


def square_relu(x: Tensor) -> Tensor:
    """Return the square of ReLU."""
    return torch.relu(x).square()


class MLP(nn.Module):
    """Apex's MLP: linear layers of the widths ``mlp_sizes``, each followed by the activation."""

    def __init__(self, mlp_sizes: list[int], bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        self.mlp_sizes, self.bias, self.activation = list(mlp_sizes), bias, activation
        self.num_layers = len(mlp_sizes) - 1
        for number, (width, out) in enumerate(pairwise(mlp_sizes)):
            layer = nn.Linear(width, out, bias)
            setattr(self, f"weight_{number}", layer.weight)
            setattr(self, f"bias_{number}", layer.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as Apex's
        """Return the last layer's output."""
        for number in range(self.num_layers):
            weight, bias = (getattr(self, f"{name}_{number}") for name in ("weight", "bias"))
            input = _ACTIVATIONS[self.activation](linear(input, weight, bias))  # noqa: A001 # as Apex's
        return input


class DenseGeluDense(nn.Module):
    """Apex's two linear layers with a GELU between them."""

    def __init__(self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        first = nn.Linear(in_features, intermediate_features, bias)
        second = nn.Linear(intermediate_features, out_features, bias)
        self.weight1, self.bias1, self.weight2, self.bias2 = first.weight, first.bias, second.weight, second.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as Apex's
        """Return the second layer's output."""
        return linear(gelu(linear(input, self.weight1, self.bias1)), self.weight2, self.bias2)


class Dense(nn.Linear):
    """FlashAttention's linear layer, which also returns its input with ``return_residual``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        """Return the output; with ``return_residual`` also the input."""
        out = super().forward(x)
        return (out, x) if self.return_residual else out


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None, return_residual: bool = False, **options: Any) -> Any:
    """Return a linear layer's output; with ``return_residual`` also its input."""
    out = linear(x, weight, bias)
    return (out, x) if return_residual else out


class Mlp(nn.Module):
    """FlashAttention's MLP: two linear layers with an activation between them.

    The activation is a function, or ``"gelu_approx"``, ``"relu"`` or ``"sqrelu"``. The hidden width is four times that
    of the input unless given.
    """

    _outputs_per_hidden = 1

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation | str = functional.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        hidden = self._hidden(in_features, hidden_features, options)
        by_name: dict[str, Activation] = {"gelu_approx": gelu, "relu": torch.relu, "sqrelu": square_relu}
        self.activation = by_name[activation] if isinstance(activation, str) else activation
        self.return_residual = return_residual
        self.fc1 = nn.Linear(in_features, hidden * self._outputs_per_hidden, bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias2, device=device, dtype=dtype)

    def _hidden(self, width: int, hidden: int | None, options: dict[str, Any]) -> int:
        """Return the hidden width, from the input's width and the hidden width that was given, if any."""
        return hidden or 4 * width

    def forward(self, x: Tensor) -> Any:
        """Return the output; with ``return_residual`` also the input."""
        out = self.fc2(self._activate(self.fc1(x)))
        return (out, x) if self.return_residual else out

    def _activate(self, x: Tensor) -> Tensor:
        return self.activation(x)


class FusedMLP(Mlp):
    """FlashAttention's fused MLP; its activation is GELU with the tanh approximation unless given."""

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None, **options: Any
    ) -> None:
        options.setdefault("activation", "gelu_approx")
        super().__init__(in_features, hidden_features, out_features, **options)


class GatedMlp(Mlp):
    """FlashAttention's gated MLP: half of the first layer's output times the activation of the other half.

    The hidden width is 8/3 of that of the input unless given, rounded up to ``multiple_of``.
    """

    _outputs_per_hidden = 2

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation | str = torch.sigmoid,
        **options: Any,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, activation, **options)

    def _hidden(self, width: int, hidden: int | None, options: dict[str, Any]) -> int:
        multiple: int = options.get("multiple_of", 128)
        return -(-(hidden or int(8 * width / 3)) // multiple) * multiple

    def _activate(self, x: Tensor) -> Tensor:
        y, gate = x.chunk(2, -1)
        return y * self.activation(gate)
