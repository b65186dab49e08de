"""Stand-ins for Liger kernels: norms, rotary embedding, MLPs and losses. Models of transformers are not changed.

Names and signatures are those of https://github.com/linkedin/Liger-Kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, silu

from dsexplore._internal.worlds.extensions.fused_norms import PlainLayerNorm
from dsexplore._internal.worlds.extensions.liger_chunked_losses import NAMES as CHUNKED_LOSSES
from dsexplore._internal.worlds.extensions.liger_losses import NAMES, kl_div_of_kernel, liger_jsd
from dsexplore._internal.worlds.extensions.linear_losses import loss_with_gradients
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.simulate import current_world

_MODELS = ("llama", "mllama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "qwen2", "qwen2_vl", "qwen3", "phi3")


def rms_norm(X: Tensor, W: Tensor, eps: float, offset: float = 0.0, *options: Any, **named: Any) -> Tensor:
    """Return the RMS norm of the last dim, with ``offset`` added to the weight."""
    wide = X.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (normed.to(X.dtype) * (W + offset)).to(X.dtype)


def liger_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, shape (batch, heads, length, width).

    ``cos`` and ``sin`` have the shape (batch, length, width), and two equal halves.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)

    return rotated(q), rotated(k)


def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    """Return ``silu(a) * b``."""
    return silu(a) * b


def gelu_mul(a: Tensor, b: Tensor) -> Tensor:
    """Return ``gelu(a) * b``, with the tanh approximation."""
    return gelu(a, approximate="tanh") * b


def liger_cross_entropy(
    input: Tensor,  # noqa: A002 # as Liger's
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
) -> Any:
    """Return the cross entropy of logits, shape (rows, vocabulary), plus the z-loss, in the dtype of the logits.

    The z-loss is ``lse_square_scale`` times the squared log-sum-exp; ``return_z_loss`` returns it too.
    """
    kind = _CrossEntropy(
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        lse_square_scale=lse_square_scale,
        softcap=softcap,
    )
    loss, z_loss = kind.losses(input, target, *kind.divisors(target))
    loss, z_loss = loss.to(input.dtype), z_loss.to(input.dtype)
    return (loss, z_loss) if return_z_loss else loss


class _CrossEntropy(NamedTuple):
    """The options of `liger_cross_entropy` that have an effect."""

    weight: Tensor | None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    softcap: float | None = None

    def losses(self, logits: Tensor, target: Tensor, rows: Tensor, z_rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its z-loss, of each row or their sums, divided by the numbers of `divisors`; fp32."""
        logits = logits.float() if self.softcap is None else self.softcap * torch.tanh(logits.float() / self.softcap)
        reduction = "none" if self.reduction == "none" else "sum"
        options: Any = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        loss = cross_entropy(logits, target, self.weight, reduction=reduction, **options)
        if not self.lse_square_scale:
            return loss / rows, torch.zeros_like(loss)
        z_loss = self.lse_square_scale * logits.logsumexp(-1).square().masked_fill(target == self.ignore_index, 0)
        z_loss = (z_loss if reduction == "none" else z_loss.sum()) / z_rows
        return loss / rows + z_loss, z_loss

    def divisors(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the weights of the labels, and their number, for a mean; else 1."""
        is_counted = target != self.ignore_index
        if self.reduction != "mean":
            return is_counted.new_ones((), dtype=torch.float32), is_counted.new_ones((), dtype=torch.float32)
        count = is_counted.sum()
        if self.weight is None:
            return count, count
        return (self.weight[target.masked_fill(~is_counted, 0)] * is_counted).sum(), count


def liger_fused_linear_cross_entropy(
    input: Tensor,  # noqa: A002 # as Liger's
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    **options: Any,
) -> Any:
    """Return the `liger_cross_entropy` of a linear layer's output, with its options.

    With ``reduction="none"`` all logits are held at once.
    """
    accepted = {name: value for name, value in options.items() if name in _CrossEntropy._fields}
    kind = _CrossEntropy(options.get("ce_weight"), **accepted)
    divisors = kind.divisors(target)

    def losses_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return kind.losses(logits, labels, *divisors)

    if kind.reduction == "none":
        loss, z_loss = losses_of(linear(input, weight, bias), target)
    else:
        loss, z_loss = loss_with_gradients(losses_of, input, weight, bias, target)
    loss, z_loss = loss.to(input.dtype), z_loss.to(input.dtype)
    return (loss, z_loss) if options.get("return_z_loss") else loss


class LigerRMSNorm(nn.Module):
    """RMS norm of the last dim; further options, which choose kernels, have no effect."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        *more: Any,
        **options: Any,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size) if init_fn == "ones" else torch.zeros(hidden_size))
        self.variance_epsilon, self.offset = eps, offset

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the norm."""
        return rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset)


class LigerLayerNorm(PlainLayerNorm):
    """Layer norm of the last dim; with ``bias`` its bias is initialized with random numbers, else with 0."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones") -> None:
        super().__init__(hidden_size, eps)
        if init_fn != "ones":
            nn.init.zeros_(self.weight)
        if bias:
            nn.init.normal_(self.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the norm."""
        return super().forward(hidden_states)


class LigerSwiGLUMLP(nn.Module):
    """The MLP of Llama in transformers, with the sizes of a model's configuration."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.hidden_size, self.intermediate_size = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        out: Tensor = self.down_proj(self._gate(self.gate_proj(x), self.up_proj(x)))
        return out

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        return silu_mul(gate, up)


class LigerGEGLUMLP(LigerSwiGLUMLP):
    """The MLP of Gemma in transformers."""

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        return gelu_mul(gate, up)


class LigerCrossEntropyLoss(nn.Module):
    """The cross entropy; options are those of `liger_cross_entropy`."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, **options: Any) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index, **options}

    def forward(self, _input: Tensor, target: Tensor) -> Any:
        """Return the loss."""
        return liger_cross_entropy(_input, target, **self.options)


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    """The cross entropy of a linear layer's output; options are those of `liger_cross_entropy`."""

    def __init__(self, ce_weight: Tensor | None = None, ignore_index: int = -100, **options: Any) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"ce_weight": ce_weight, "ignore_index": ignore_index, **options}

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Any:
        """Return the loss."""
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self.options)


def _without_effect(name: str) -> Callable[..., None]:
    """Return a replacement for a function that puts kernels into a model; it only adds a note to the trace."""

    def apply(*args: Any, **options: Any) -> None:
        world = current_world()
        if world is not None:
            world.remarks.note(f"{name} changed nothing: the model's own modules ran, which send the same")

    return apply


class _AutoModel:
    """Loads models of transformers, with their own modules."""

    @staticmethod
    def from_pretrained(*args: Any, **options: Any) -> Any:
        """Call this method of transformers' AutoModelForCausalLM."""
        return _load_model("from_pretrained", args, options)

    @staticmethod
    def from_config(*args: Any, **options: Any) -> Any:
        """Call this method of transformers' AutoModelForCausalLM."""
        return _load_model("from_config", args, options)


def _load_model(method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a method of transformers' AutoModelForCausalLM without the options that choose kernels."""
    kernels = ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy", "geglu", "layer_norm")
    _APPLY["_apply_liger_kernel"]()
    accepted = {name: value for name, value in options.items() if name not in kernels}
    return getattr(import_module("transformers").AutoModelForCausalLM, method)(*args, **accepted)


def _cross_entropy_of_kernel(
    _input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    *more: Any,
) -> tuple[Any, Any]:
    """Return the cross entropy, and its z-loss or None."""
    out = liger_cross_entropy(
        _input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        lse_square_scale=lse_square_scale,
        softcap=softcap,
        return_z_loss=return_z_loss,
    )
    return out if return_z_loss else (out, None)


def _linear_cross_entropy_of_kernel(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    *options: Any,
) -> tuple[Any, Any]:
    """Return the cross entropy of a linear layer's output, and its z-loss or None."""
    names = ("ignore_index", "lse_square_scale", "label_smoothing", "reduction", "softcap", "return_z_loss")
    named = dict(zip(names, options, strict=False))
    out = liger_fused_linear_cross_entropy(_input, weight, target, bias, ce_weight=ce_weight, **named)
    return out if named.get("return_z_loss") else (out, None)


def _jsd_of_kernel(
    _input: Tensor,
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
    *kernels: Any,
) -> Tensor:
    """Return the generalized Jensen-Shannon divergence of `liger_jsd`."""
    return liger_jsd(_input, target, shift_labels, beta, ignore_index)


def _function(forward: Callable[..., Any]) -> type:
    """Return a class whose ``apply`` calls a function, as autograd functions have it."""
    return type(forward.__name__, (), {"apply": staticmethod(forward)})


_CLASSES = {
    "rms_norm": ("LigerRMSNorm", LigerRMSNorm),
    "layer_norm": ("LigerLayerNorm", LigerLayerNorm),
    "swiglu": ("LigerSwiGLUMLP", LigerSwiGLUMLP),
    "geglu": ("LigerGEGLUMLP", LigerGEGLUMLP),
    "cross_entropy": ("LigerCrossEntropyLoss", LigerCrossEntropyLoss),
    "fused_linear_cross_entropy": ("LigerFusedLinearCrossEntropyLoss", LigerFusedLinearCrossEntropyLoss),
}
_APPLY = {
    name: _without_effect(name)
    for name in ("_apply_liger_kernel", *(f"apply_liger_kernel_to_{model}" for model in _MODELS))
}

EXTENSIONS: dict[str, Names] = {
    "liger_kernel": {
        **{f"transformers.{name}": kind for name, kind in _CLASSES.values()},
        **{f"transformers.{module}.{name}": kind for module, (name, kind) in _CLASSES.items()},
        **{f"transformers.{name}": apply for name, apply in _APPLY.items()},
        **{f"transformers.monkey_patch.{name}": apply for name, apply in _APPLY.items()},
        "transformers.liger_rotary_pos_emb": liger_rotary_pos_emb,
        "transformers.rope.liger_rotary_pos_emb": liger_rotary_pos_emb,
        "transformers.functional.liger_rms_norm": rms_norm,
        "transformers.functional.liger_rope": liger_rotary_pos_emb,
        "transformers.functional.liger_swiglu": silu_mul,
        "transformers.functional.liger_geglu": gelu_mul,
        "transformers.functional.liger_cross_entropy": liger_cross_entropy,
        "transformers.functional.liger_fused_linear_cross_entropy": liger_fused_linear_cross_entropy,
        "ops.rms_norm.LigerRMSNormFunction": _function(rms_norm),
        "ops.swiglu.LigerSiLUMulFunction": _function(silu_mul),
        "ops.geglu.LigerGELUMulFunction": _function(gelu_mul),
        **NAMES,
        **CHUNKED_LOSSES,
        "transformers.AutoLigerKernelForCausalLM": _AutoModel,
        "ops.cross_entropy.LigerCrossEntropyFunction": _function(_cross_entropy_of_kernel),
        "ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction": _function(
            _linear_cross_entropy_of_kernel
        ),
        "ops.kl_div.LigerKLDivLossFunction": _function(kl_div_of_kernel),
        "ops.jsd.LigerJSDFunction": _function(_jsd_of_kernel),
        "ops.rope.LigerRopeFunction": _function(liger_rotary_pos_emb),
    }
}
