"""Record the tensors of a model in training, by hooks on modules, on their outputs, and on optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.numerics.numeric_records import Draw, DTensorPlace, NumericRecord, Phase, RunRecord
from dsexplore._internal.placement_text import read
from dsexplore._internal.torch_internals.autograd import is_in_backward
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.modules import unwrapped, without_wrappers

MOST_OUTPUTS = 4
"""Number of tensors of one output that are recorded."""


class Rounding:
    """Random rounding, which changes each value by one unit in the last place, as another order of summation may."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, value: Tensor) -> Tensor:
        """Return the value with random rounding."""
        if not value.is_floating_point() or isinstance(value, DTensor):
            return value
        signs = torch.randint(0, 2, value.shape, generator=self._generator, dtype=torch.int8).to(value.dtype) * 2 - 1
        return value + value.detach() * signs * torch.finfo(value.dtype).eps


class ObservedRun:
    """Recorder of the outputs of modules, gradients and parameters of each step.

    Args:
        model: model, which DDP and other wrappers may contain.
        record: record to append to.
        names: {path of a module in this model: its path in the reference}, for paths that differ.
        keeps_sources: whether to record the modules from whose outputs each output is computed.
        rounding: rounding of the outputs of leaf modules and of their gradients; None for no change.
        is_foreign: function that returns True during module calls that the program did not make.
    """

    def __init__(
        self,
        model: nn.Module,
        record: RunRecord,
        names: dict[str, str],
        *,
        keeps_sources: bool = False,
        rounding: Rounding | None = None,
        is_foreign: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = plain_model(model)
        self.record = record
        self.step = 0
        self._names = names
        self._rounding = rounding
        self._is_foreign = is_foreign
        self._calls: Counter[str] = Counter()
        self._open: list[str] = []
        """Modules whose forward is running, outermost first."""
        self._recomputed: list[str] = []
        """Modules that are being recomputed in backward."""
        self._modules_of_nodes: dict[Any, str] | None = {} if keeps_sources else None
        """{autograd node of an output: path of the module}."""
        self._with_gradient: set[str] = set()
        """Parameters whose gradients of this step are recorded."""

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Install the hooks for the duration of the block."""
        handles: list[Any] = [register_optimizer_step_pre_hook(self._before_optimizer)]
        for path, module in self.model.named_modules():
            if unwrapped(module) is module:
                name = self._names.get(without_wrappers(path), without_wrappers(path))
                is_leaf = not any(True for _ in module.children())
                handles.append(module.register_forward_pre_hook(partial(self._enter_module, name)))
                handles.append(module.register_forward_hook(partial(self._record_output, name, is_leaf)))
                handles.append(module.register_forward_hook(partial(self._leave_module, name), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_step(self) -> None:
        """Record the parameters, and gradients that no torch optimizer has read."""
        self._record_gradients()
        for name, parameter in parameters_of(self.model, self._names):
            self._add(phase="optimizer", module=name.rpartition(".")[0], name=name, call=0, inside=(), tensor=parameter)
        self.step += 1
        self._calls.clear()
        self._with_gradient.clear()
        if self._modules_of_nodes is not None:
            self._modules_of_nodes.clear()

    def running_module(self) -> str | None:
        """Return the path of the running module; None outside of all, or in calls that the program did not make."""
        if self._is_foreign():
            return None
        running = self._recomputed if is_in_backward() else self._open
        return running[-1] if running else None

    def record_draw(self, function: str, values: Tensor) -> None:
        """Record the result of a random function in a module or in a recomputation."""
        module, is_recomputed = self.running_module(), is_in_backward()
        if module is None and not (is_recomputed and torch.is_grad_enabled()):
            return  # random data, initial values, or noise on gradients
        module = module or ""
        value, place = local_part(values)
        call = 0 if is_recomputed else self._calls[module]
        self.record.draws.append(
            Draw(
                step=self.step,
                module=module,
                call=call,
                function=function,
                values=value,
                is_dtensor=place is not None,
                is_recomputed=is_recomputed,
            )
        )

    def _enter_module(self, name: str, _module: nn.Module, _args: Any) -> None:
        if self._is_foreign():
            return
        if is_in_backward():
            self._recomputed.append(name)
        else:
            self._open.append(name)
            self._recomputed.clear()

    def _leave_module(self, name: str, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Mark the end of a module's recomputation, also if it ends early."""
        if is_in_backward():
            _end_call(self._recomputed, name)

    def _is_recorded(self) -> bool:
        """Return True in calls that the program made itself, but not while backward recomputes them."""
        return not is_in_backward() and not self._is_foreign()

    def _record_output(self, name: str, is_leaf: bool, _module: nn.Module, _args: Any, output: Any) -> Any:
        """Record the tensors of an output, and their gradients later; return the rounded output, or None."""
        if not self._is_recorded():
            return None
        _end_call(self._open, name)
        call, inside = self._calls[name], tuple(self._open)
        self._calls[name] += 1
        rounded: Tensor | None = None
        if is_leaf and self._rounding is not None and isinstance(output, Tensor):
            rounded = self._rounding(output)
        floats = [leaf for leaf in tensors_in([output if rounded is None else rounded]) if leaf.is_floating_point()]
        for number, tensor in enumerate(floats[:MOST_OUTPUTS]):
            label = f"output {number}" if number else "output"
            self._add(
                phase="forward",
                module=name,
                name=label,
                call=call,
                inside=inside,
                tensor=tensor,
                sources=self._sources(name, tensor),
            )
            if tensor.requires_grad:
                tensor.register_hook(partial(self._record_gradient, name, label, call, inside))
        return rounded

    def _sources(self, name: str, tensor: Tensor) -> tuple[str, ...] | None:
        """Return the modules from whose outputs `tensor` is computed, and register it as an output of `name`."""
        if self._modules_of_nodes is None or tensor.grad_fn is None:
            return None
        sources: dict[str, None] = {}
        seen, nodes = {tensor.grad_fn}, [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node in self._modules_of_nodes:
                sources[self._modules_of_nodes[node]] = None
                continue
            after = [function for function, _ in node.next_functions if function is not None and function not in seen]
            seen.update(after)
            nodes += after
        self._modules_of_nodes[tensor.grad_fn] = name
        return tuple(sources)

    def _record_gradient(
        self, name: str, label: str, call: int, inside: tuple[str, ...], gradient: Tensor
    ) -> Tensor | None:
        self._add(phase="backward", module=name, name=label, call=call, inside=inside, tensor=gradient)
        return self._rounding(gradient) if self._rounding is not None else None

    def _before_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record the gradients that an optimizer reads; all of the model's if it holds none of the parameters."""
        of_optimizer = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        of_model = {id(parameter) for _, parameter in parameters_of(self.model, {})}
        self._record_gradients((of_optimizer & of_model) or of_model)

    def _record_gradients(self, ids: set[int] | None = None) -> None:
        """Record the gradients of parameters with these ids that are not recorded yet; None for all."""
        for name, parameter in parameters_of(self.model, self._names):
            if parameter.grad is None or name in self._with_gradient or (ids is not None and id(parameter) not in ids):
                continue
            self._with_gradient.add(name)
            self._add(
                phase="gradient", module=name.rpartition(".")[0], name=name, call=0, inside=(), tensor=parameter.grad
            )

    def _add(
        self,
        *,
        phase: Phase,
        module: str,
        name: str,
        call: int,
        inside: tuple[str, ...],
        tensor: Tensor,
        sources: tuple[str, ...] | None = None,
    ) -> None:
        """Append a record of a tensor."""
        value, place = local_part(tensor)
        self.record.records.append(
            NumericRecord(
                step=self.step,
                phase=phase,
                module=module,
                name=name,
                call=call,
                inside=inside,
                value=value,
                place=place,
                sources=sources,
            )
        )


def _end_call(running: list[str], name: str) -> None:
    """Remove a module's latest call from the stack of running ones, with the calls inside it, if it is there."""
    if name in running:
        del running[len(running) - 1 - running[::-1].index(name) :]


def plain_model(model: nn.Module) -> nn.Module:
    """Return the model without DDP and other wrappers."""
    inner = unwrapped(model)
    return plain_model(inner.module) if isinstance(inner, DistributedDataParallel) else inner


def parameters_of(model: nn.Module, names: dict[str, str]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name in the reference, parameter); a tied parameter under each of its names."""
    for path, parameter in model.named_parameters(remove_duplicate=False):
        module, _, name = without_wrappers(path).rpartition(".")
        module = names.get(module, module)
        yield f"{module}.{name}" if module else name, parameter


def local_part(tensor: Tensor) -> tuple[Tensor, DTensorPlace | None]:
    """Return a CPU copy of this rank's part of a tensor, and its place in the whole if it is a DTensor."""
    place = None
    with torch.no_grad():
        if isinstance(tensor, DTensor):
            placements = tuple(map(read, tensor.placements))
            place = DTensorPlace(
                shape=tuple(tensor.shape), placements=placements, ranks=tensor.device_mesh.mesh.clone()
            )
            tensor = local_tensor(tensor)
        return tensor.detach().to("cpu", copy=True), place
