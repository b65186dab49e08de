"""Autograd: the backward that runs, the nodes of the graph, and their numbers.

Functions of torch's C++ code are bound as they are, since some are called for each module and each collective.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

from dsexplore.torch_internals.names import internal

current_graph_task: Callable[[], int] = internal("torch._C:_current_graph_task_id", otherwise=lambda: -1)
"""Return the number of the backward that runs in this thread; -1 for none."""

current_node: Callable[[], Any] = internal("torch._C:_current_autograd_node", otherwise=lambda: None)
"""Return the autograd node that runs in this thread; None for none."""

next_node_number: Callable[[], int] = internal("torch._C._autograd:_get_sequence_nr", otherwise=lambda: 0)
"""Return the sequence number that the next autograd node of this thread gets."""

node_number: Callable[[Any], int] = methodcaller("_sequence_nr")
"""Return the sequence number of an autograd node."""

AccumulateGrad: Any = internal("torch._C:_functions.AccumulateGrad")
"""The class of the nodes that accumulate a parameter's gradient, which is their ``variable``."""
