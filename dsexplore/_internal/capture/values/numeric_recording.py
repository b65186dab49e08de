"""`NumericRecording` records summaries of module outputs, of their gradients, and of parameter gradients.

Summaries stay on their devices until there are some thousands, and are then read together, so that the program rarely
waits for a device. A summary takes a few passes over a tensor. A tensor that several modules return in turn is
summarized once.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dsexplore._internal import placement_text
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.content.recorded_tables import Columns
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.values import tensor_summary
from dsexplore._internal.capture.values.tensor_summary import FLOATS, Projections, Summary, summarize
from dsexplore._internal.torch_internals.autograd import is_in_backward
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.modules import own_parameters
from dsexplore._internal.torch_internals.tensors import version_of

MOST_OUTPUTS = 4
"""Maximum number of tensors of one output that are summarized."""
TOGETHER = 4096
"""Number of summaries that are read from their devices together."""


@dataclass(frozen=True, slots=True)
class SummarizedTensor:
    """The tensor that a summary describes."""

    step: int
    phase: str
    module: ModuleEntry
    name: str
    """``output``, ``output 1`` and so on; for the gradient of a parameter, its name in the module."""
    call: int
    """The number of the module's call in its step."""
    dtype: str
    placements: str
    """``"S(0),R"``; empty for a plain tensor."""
    count: int
    """Number of elements of this rank's local tensor."""


class NumericRecording:
    """The summaries of one recording.

    Args:
        modules: the modules of the recording, and which of them runs.
        steps: a list that grows by one at the end of each step.
        warn: called with a subject and a message if a tensor cannot be summarized.
    """

    def __init__(self, modules: Modules, steps: Sequence[int], warn: Callable[[str, str], None]) -> None:
        self.summarized: list[SummarizedTensor] = []
        self.floats: list[list[float]] = []
        """`tensor_summary.FLOATS` of each summary that has been read from its device."""
        self.hashes: list[int] = []
        """The hash of each summary that has been read from its device."""
        self._modules, self._steps, self._warn = modules, steps, warn
        self._pending: list[Summary] = []
        self._projections = Projections()
        self._calls: Counter[tuple[int, int]] = Counter()
        """{(id of a module's entry, step): number of calls}."""
        self._latest: tuple[weakref.ref[Tensor], int, Summary] | None = None
        """(tensor, its version, summary) of the tensor that was summarized last."""
        self._exit = ExitStack()

    def start(self) -> None:
        """Begin to summarize gradients of parameters; the recorder calls `returned` for outputs."""
        self._exit.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)

    def stop(self) -> None:
        """End the recording and read the last summaries from their devices."""
        self._exit.close()
        self._latest = None
        self.read()

    def read(self) -> None:
        """Read the pending summaries; waits for their devices."""
        pending, self._pending = self._pending, []
        floats, hashes = tensor_summary.read(pending)
        self.floats += floats
        self.hashes += hashes

    def returned(self, module: ModuleEntry, output: Any) -> None:
        """Summarize the output of a module, and the output's gradients once they are computed."""
        if is_in_backward():  # a recomputation
            return
        step = len(self._steps)
        call = self._calls[id(module), step]
        self._calls[id(module), step] += 1
        floats = [tensor for tensor in tensors_in([output]) if tensor.is_floating_point()]
        for number, tensor in enumerate(floats[:MOST_OUTPUTS]):
            name = f"output {number}" if number else "output"
            self._add(tensor, phase=self._modules.own.calls.forward, module=module, name=name, call=call)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient, module, name, call))

    def _gradient(self, module: ModuleEntry, name: str, call: int, gradient: Tensor) -> None:
        self._add(gradient, phase="backward", module=module, name=name, call=call)

    def _before_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Summarize the gradients that an optimizer is about to read; torch calls this as a hook."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in self._modules.in_order():
            alive = module.reference()
            if alive is None:
                continue
            for name, parameter in own_parameters(alive).items():
                if id(parameter) in held and parameter is not None and parameter.grad is not None:
                    held.remove(id(parameter))
                    self._add(parameter.grad, phase="gradient", module=module, name=name, call=0)

    def join_steps(self) -> None:
        """Assign all summaries so far to one step."""
        self.summarized = [replace(tensor, step=0) for tensor in self.summarized]

    def columns(self, rank: int) -> Columns:
        """Return {column of `schema.NUMERICS`: one value per summary}."""
        self.read()
        names = {id(tensor.module): tensor.module.name for tensor in self.summarized}  # a name is formed at each access
        floats = list(zip(*self.floats, strict=True)) or [()] * len(FLOATS)
        return {
            "rank": [rank] * len(self.summarized),
            "step": [tensor.step for tensor in self.summarized],
            "seq": list(range(len(self.summarized))),
            "phase": [tensor.phase for tensor in self.summarized],
            "module": [names[id(tensor.module)] for tensor in self.summarized],
            "name": [tensor.name for tensor in self.summarized],
            "call": [tensor.call for tensor in self.summarized],
            "dtype": [tensor.dtype for tensor in self.summarized],
            "placements": [tensor.placements for tensor in self.summarized],
            "count": [tensor.count for tensor in self.summarized],
            **{name: list(values) for name, values in zip(FLOATS, floats, strict=True)},
            "hash": list(self.hashes),
        }

    def _add(self, tensor: Tensor, *, phase: str, module: ModuleEntry, name: str, call: int) -> None:
        """Summarize a tensor, unless it has no values; an error is warned of and does not reach the program."""
        try:
            placements = placement_text.joined(tensor.placements) if isinstance(tensor, DTensor) else ""
            local = local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
            if not local.numel() or local.device.type == "meta" or isinstance(local, FakeTensor):
                return
            summary = self._summary(local)
        except Exception as fault:
            self._warn("numerics", f"dsexplore could not summarize the {name} of {module.name}: {fault!r}")
            return
        dtype = str(local.dtype).removeprefix("torch.")
        self.summarized.append(
            SummarizedTensor(
                step=len(self._steps),
                phase=phase,
                module=module,
                name=name,
                call=call,
                dtype=dtype,
                placements=placements,
                count=local.numel(),
            )
        )
        self._pending.append(summary)
        if len(self._pending) >= TOGETHER:
            self.read()

    def _summary(self, tensor: Tensor) -> Summary:
        """Return the summary of a tensor; the latest one again, if the tensor is the same and has not changed."""
        if self._latest is not None:
            reference, version, latest = self._latest
            if reference() is tensor and version == version_of(tensor):
                return latest
        summary = summarize(tensor, self._projections)
        self._latest = weakref.ref(tensor), version_of(tensor), summary
        return summary
