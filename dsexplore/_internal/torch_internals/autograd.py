"""Autograd: the running backward, the nodes of the graph, their sequence numbers, and hooks.

Functions of torch's C++ code are bound without a wrapper, because some are called for each module and each collective.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from dsexplore._internal.torch_internals.names import TorchName, internal

current_graph_task: Callable[[], int] = internal("torch._C:_current_graph_task_id", otherwise=lambda: -1)
"""Return the number of the backward that runs in this thread; -1 if none runs."""


def is_in_backward() -> bool:
    """Return True while this thread runs a backward, in which checkpointed modules are recomputed."""
    return current_graph_task() != -1


current_node: Callable[[], Any] = internal("torch._C:_current_autograd_node", otherwise=lambda: None)
"""Return the autograd node that runs in this thread; None if none runs."""

next_node_number: Callable[[], int] = internal("torch._C._autograd:_get_sequence_nr", otherwise=lambda: 0)
"""Return the sequence number that the next autograd node of this thread gets."""

node_number: Callable[[Any], int] = methodcaller("_sequence_nr")
"""Return the sequence number of an autograd node."""

with torch.inference_mode(False):  # this module may be imported in inference mode
    AccumulateGrad: Any = type(get_gradient_edge(torch.empty(0, device="cpu", requires_grad=True)).node)
"""Class of the nodes that accumulate a parameter's gradient; the parameter is their ``variable``."""


def gradient_hooks(tensor: Any) -> list[Callable[..., Any]]:
    """Return the hooks of a tensor's gradient, and those that run after a parameter has accumulated its gradient."""
    accumulated = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    return [*(tensor._backward_hooks or {}).values(), *accumulated.values()]


def put_hook_first(tensor: Any, hook: Callable[[Any], Any]) -> None:
    """Register a hook that gets a tensor's gradient before the hooks that are already registered."""
    tensor.register_hook(hook)
    hooks = tensor._backward_hooks
    for earlier in list(hooks)[:-1]:
        hooks[earlier] = hooks.pop(earlier)


RUN_BACKWARD = TorchName("torch.autograd.graph:_engine_run_backward")
"""Function by which all Python code of torch calls the engine."""

APPLY_FUNCTION = TorchName("torch.autograd:Function.apply")
RUN_NODE = TorchName("torch.autograd.function:BackwardCFunction.apply")
RUN_NODE_BOXED = TorchName("torch.autograd.function:BackwardCFunction.apply_boxed", since="2.12")
"""Methods by which the engine calls the backward of a Python function: with its gradients, or with a list of them."""

SAVE_ON_CPU_INIT = TorchName("torch.autograd.graph:save_on_cpu.__init__")

DESCRIBE_SAVED = TorchName("torch.utils.checkpoint:_default_meta_extractor")
"""Function that describes a checkpointed tensor, to compare those of forward and recomputation."""

functorch_level: Callable[[], Any] = internal("torch._C:_functorch.peek_interpreter_stack", otherwise=lambda: None)
"""Return the innermost transform of ``torch.func`` that runs in this thread; None if none runs."""

AUTOCAST_ENTER = TorchName("torch:autocast.__enter__")
AUTOCAST_EXIT = TorchName("torch:autocast.__exit__")
