"""Stand-ins for ``transformer_engine.pytorch``: functions, FP8 contexts and recipes, and the table of all names.

Names and signatures are those of https://github.com/NVIDIA/TransformerEngine. Nothing is computed in FP8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dsexplore._internal.worlds.extensions.apex import EXTENSIONS as APEX
from dsexplore._internal.worlds.extensions.apex import multi_tensor_l2norm, multi_tensor_scale
from dsexplore._internal.worlds.extensions.fused_optimizers import PlainAdam, PlainSGD
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.extensions.transformer_engine_experts import NAMES
from dsexplore._internal.worlds.extensions.transformer_engine_layers import (
    DotProductAttention,
    LayerNorm,
    LayerNormLinear,
    LayerNormMLP,
    Linear,
    MultiheadAttention,
    RMSNorm,
    TransformerLayer,
)
from dsexplore._internal.worlds.extensions.vocabulary_loss import cross_entropy_of_shards
from dsexplore._internal.worlds.simulate import current_world

_IN_FP8 = (
    "transformer_engine: FP8 layers ran in the dtype of their inputs, and the maxima that FP8 recipes all_reduce were "
    "not sent"
)


class Format(Enum):
    """Formats of FP8."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


class Recipe:
    """A recipe of FP8; its options are kept as attributes and have no effect."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.fp8_format = options.get("fp8_format", Format.HYBRID)
        for name, value in options.items():
            setattr(self, name, value)


@contextmanager
def fp8_autocast(enabled: bool = True, *args: Any, **options: Any) -> Iterator[None]:
    """Note for the trace that nothing is computed in FP8."""
    world = current_world()
    if enabled and world is not None:
        world.remarks.note(_IN_FP8)
    yield


@contextmanager
def fp8_model_init(*args: Any, **options: Any) -> Iterator[None]:
    """Keep parameters in their dtype."""
    yield


def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Checkpoint a function as torch does; Transformer Engine's own options are left out."""
    own_options = ("distribute_saved_activations", "get_rng_state_tracker", "tp_group", "use_reentrant")
    accepted = {name: value for name, value in options.items() if name not in own_options}
    return torch_checkpoint(function, *args, use_reentrant=options.get("use_reentrant", True), **accepted)


def parallel_cross_entropy(
    _input: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: dist.ProcessGroup | None = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
) -> Tensor:
    """Return the loss of each token in fp32, or with ``reduce_loss`` their mean.

    The logits have the shape (batch, length, words of this rank).
    """
    losses, _ = cross_entropy_of_shards(
        _input.float().flatten(0, -2), target.flatten(), label_smoothing, ignore_idx, dist_process_group
    )
    return losses.sum() / (target != ignore_idx).sum() if reduce_loss else losses.view(target.shape)


class FusedAdam(PlainAdam):
    """Adam, with decoupled weight decay unless ``adam_w_mode`` is False."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "bias_correction": True,
        "adam_w_mode": True,
        "capturable": False,
        "master_weights": False,
        "master_weight_dtype": torch.float32,
        "exp_avg_dtype": torch.float32,
        "exp_avg_sq_dtype": torch.float32,
        "use_decoupled_grad": False,
        "store_param_remainders": False,
        "set_grad_none": None,
    }


class FusedSGD(PlainSGD):
    """SGD with momentum."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**PlainSGD.DEFAULTS, "set_grad_none": None}


class CudaRNGStatesTracker:
    """Keeps the seeds of named generators; `fork` uses none, as random numbers differ from a GPU's anyway."""

    def __init__(self) -> None:
        self.states_: dict[str, int] = {}

    def reset(self) -> None:
        """Remove all generators."""
        self.states_ = {}

    def get_states(self) -> dict[str, int]:
        """Return {name: seed}."""
        return dict(self.states_)

    def set_states(self, states: dict[str, int]) -> None:
        """Replace all generators by {name: seed}."""
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """Add a generator.

        Raises:
            RuntimeError: there is one with this name.
        """
        if name in self.states_:
            raise RuntimeError(f"RNG state {name} already exists")
        self.states_[name] = seed

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Check that a generator was added, and run the block.

        Raises:
            KeyError: there is no generator with this name.
        """
        if name not in self.states_:
            raise KeyError(f"{name} was not added to the RNG states")
        yield


_LAYERS: Names = {
    function.__name__: function
    for function in (
        Linear,
        LayerNormLinear,
        LayerNormMLP,
        LayerNorm,
        RMSNorm,
        DotProductAttention,
        MultiheadAttention,
        TransformerLayer,
    )
}
_RECIPES: Names = {
    **dict.fromkeys(("Recipe", "DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling"), Recipe),
    "Float8BlockScaling": Recipe,
    "Format": Format,
}

EXTENSIONS: dict[str, Names] = {
    "transformer_engine": {
        "__version__": "2.8.0",
        **{f"pytorch.{name}": layer for name, layer in _LAYERS.items()},
        **{f"common.recipe.{name}": kind for name, kind in _RECIPES.items()},
        "pytorch.fp8_autocast": fp8_autocast,
        "pytorch.autocast": fp8_autocast,
        "pytorch.fp8_model_init": fp8_model_init,
        "pytorch.checkpoint": checkpoint,
        **NAMES,
        "pytorch.attention.DotProductAttention": DotProductAttention,
        "pytorch.attention.MultiheadAttention": MultiheadAttention,
        "pytorch.fp8.fp8_autocast": fp8_autocast,
        "pytorch.fp8.fp8_model_init": fp8_model_init,
        "pytorch.distributed.checkpoint": checkpoint,
        "pytorch.distributed.CudaRNGStatesTracker": CudaRNGStatesTracker,
        "pytorch.CudaRNGStatesTracker": CudaRNGStatesTracker,
        "pytorch.cross_entropy.parallel_cross_entropy": parallel_cross_entropy,
        "pytorch.parallel_cross_entropy": parallel_cross_entropy,
        "pytorch.optimizers.FusedAdam": FusedAdam,
        "pytorch.optimizers.FusedSGD": FusedSGD,
        "pytorch.optimizers.multi_tensor_applier": APEX["apex"]["multi_tensor_apply.multi_tensor_applier"],
        "pytorch.optimizers.multi_tensor_l2norm": multi_tensor_l2norm,
        "pytorch.optimizers.multi_tensor_scale": multi_tensor_scale,
    }
}
