"""Record what a model computes while a program trains it: hooks on its modules, on their outputs, on optimizers."""

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

from dsexplore.capture.ops import tensors_in
from dsexplore.numerics.numeric_records import Draw, DTensorPlace, NumericRecord, Phase, RunRecord
from dsexplore.placement_text import read
from dsexplore.torch_internals.autograd import current_graph_task
from dsexplore.torch_internals.dtensor import local_tensor
from dsexplore.torch_internals.modules import unwrapped, without_wrappers

MOST_OUTPUTS = 4
"""Tensors of one output that are recorded."""


class Rounding:
    """Rounds at random: changes values by one unit in the last place, up or down, as another order of summation may."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, value: Tensor) -> Tensor:
        """Return the value, rounded otherwise."""
        if not value.is_floating_point() or isinstance(value, DTensor):
            return value
        signs = torch.randint(0, 2, value.shape, generator=self._generator, dtype=torch.int8).to(value.dtype) * 2 - 1
        return value + value.detach() * signs * torch.finfo(value.dtype).eps


class ObservedRun:
    """Records the calls of a model's modules, the gradients, and the parameters, step by step.

    Args:
        model: wrappers such as DDP around it are looked through.
        record: where it is written.
        names: {path of a module here: its path in the reference}, where these differ.
        keeps_sources: whether outputs are recorded with the modules whose outputs they are computed of.
        rounding: applied to what innermost modules return and to its gradients; None for no change.
        passes_over: returns True while calls of modules are none of the program's own.
    """

    def __init__(
        self,
        model: nn.Module,
        record: RunRecord,
        names: dict[str, str],
        *,
        keeps_sources: bool = False,
        rounding: Rounding | None = None,
        passes_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = plain_model(model)
        self.record = record
        self.step = 0
        self._names = names
        self._rounding = rounding
        self._passes_over = passes_over
        self._calls: Counter[str] = Counter()
        self._open: list[str] = []
        self._open_again: list[str] = []
        """Modules that run in backward, where they are computed again."""
        self._makers: dict[Any, str] | None = {} if keeps_sources else None
        """{autograd node of an output: path of the module}."""
        self._with_gradient: set[str] = set()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Record while the block runs."""
        handles: list[Any] = [register_optimizer_step_pre_hook(self._before_optimizer)]
        for path, module in self.model.named_modules():
            if unwrapped(module) is module:
                name = self._names.get(without_wrappers(path), without_wrappers(path))
                is_leaf = not any(True for _ in module.children())
                handles.append(module.register_forward_pre_hook(partial(self._begins, name)))
                handles.append(module.register_forward_hook(partial(self._returned, name, is_leaf)))
                handles.append(module.register_forward_hook(partial(self._left, name), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_step(self) -> None:
        """Record gradients that no optimizer of torch has taken, and the parameters."""
        self._record_gradients()
        for name, parameter in parameters_of(self.model, self._names):
            self._add("optimizer", name.rpartition(".")[0], name, 0, (), parameter)
        self.step += 1
        self._calls.clear()
        self._with_gradient.clear()
        if self._makers is not None:
            self._makers.clear()

    def running_module(self) -> str | None:
        """Return the path of the module that runs; None outside of all, or where what runs is not the program's."""
        if self._passes_over():
            return None
        running = self._open_again if current_graph_task() != -1 else self._open
        return running[-1] if running else None

    def drew(self, function: str, values: Tensor) -> None:
        """Record what a random function drew, inside of a module or in what is computed again."""
        module, is_recomputed = self.running_module(), current_graph_task() != -1
        if module is None and not (is_recomputed and torch.is_grad_enabled()):
            return  # of data, of initial values, or of gradients
        module = module or ""
        value, place = local_part(values)
        call = 0 if is_recomputed else self._calls[module]
        self.record.draws.append(Draw(self.step, module, call, function, value, place is not None, is_recomputed))

    def _begins(self, name: str, _module: nn.Module, _args: Any) -> None:
        if not self._is_passed_over():
            self._open.append(name)
            self._open_again.clear()
        elif not self._passes_over():
            self._open_again.append(name)

    def _left(self, name: str, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Note that a module that was computed again is done, also where this is ended early."""
        if current_graph_task() != -1 and name in self._open_again:
            del self._open_again[len(self._open_again) - 1 - self._open_again[::-1].index(name) :]

    def _is_passed_over(self) -> bool:
        """Return True in a module that is computed again in backward, and in what `passes_over` says."""
        return current_graph_task() != -1 or self._passes_over()

    def _returned(self, name: str, is_leaf: bool, _module: nn.Module, _args: Any, output: Any) -> Any:
        if self._is_passed_over():
            return None
        if name in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(name) :]
        call, inside = self._calls[name], tuple(self._open)
        self._calls[name] += 1
        if is_leaf and self._rounding is not None and isinstance(output, Tensor):
            output = self._rounding(output)
        floats = [leaf for leaf in tensors_in([output]) if leaf.is_floating_point()]
        for number, tensor in enumerate(floats[:MOST_OUTPUTS]):
            label = f"output {number}" if number else "output"
            self._add("forward", name, label, call, inside, tensor, self._sources(name, tensor))
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient, name, label, call, inside))
        return output if is_leaf and self._rounding is not None and isinstance(output, Tensor) else None

    def _sources(self, name: str, tensor: Tensor) -> tuple[str, ...] | None:
        """Return the modules whose outputs this one is computed of, and note that it is this module's."""
        if self._makers is None or tensor.grad_fn is None:
            return None
        sources: dict[str, None] = {}
        seen, nodes = {tensor.grad_fn}, [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node in self._makers:
                sources[self._makers[node]] = None
                continue
            after = [function for function, _ in node.next_functions if function is not None and function not in seen]
            seen.update(after)
            nodes += after
        self._makers[tensor.grad_fn] = name
        return tuple(sources)

    def _gradient(self, name: str, label: str, call: int, inside: tuple[str, ...], gradient: Tensor) -> Tensor | None:
        self._add("backward", name, label, call, inside, gradient)
        return self._rounding(gradient) if self._rounding is not None else None

    def _before_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        mine = {id(parameter) for _, parameter in parameters_of(self.model, {})}
        self._record_gradients((lambda parameter: id(parameter) in held) if held & mine else None)

    def _record_gradients(self, is_wanted: Callable[[Tensor], bool] | None = None) -> None:
        for name, parameter in parameters_of(self.model, self._names):
            if parameter.grad is None or name in self._with_gradient or (is_wanted and not is_wanted(parameter)):
                continue
            self._with_gradient.add(name)
            self._add("gradient", name.rpartition(".")[0], name, 0, (), parameter.grad)

    def _add(
        self,
        phase: Phase,
        module: str,
        name: str,
        call: int,
        inside: tuple[str, ...],
        tensor: Tensor,
        sources: tuple[str, ...] | None = None,
    ) -> None:
        value, place = local_part(tensor)
        self.record.records.append(NumericRecord(self.step, phase, module, name, call, inside, value, place, sources))


def plain_model(model: nn.Module) -> nn.Module:
    """Return the program's own model: that inside of DDP and other wrappers."""
    inner = unwrapped(model)
    return plain_model(inner.module) if isinstance(inner, DistributedDataParallel) else inner


def parameters_of(model: nn.Module, names: dict[str, str]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters with their names in the reference; those that are tied under each of their names."""
    for path, parameter in model.named_parameters(remove_duplicate=False):
        module, _, name = without_wrappers(path).rpartition(".")
        module = names.get(module, module)
        yield f"{module}.{name}" if module else name, parameter


def local_part(tensor: Tensor) -> tuple[Tensor, DTensorPlace | None]:
    """Return a copy of this rank's part of a tensor, and where it lies if it is a DTensor."""
    place = None
    with torch.no_grad():
        if isinstance(tensor, DTensor):
            placements = tuple(map(read, tensor.placements))
            place = DTensorPlace(tuple(tensor.shape), placements, tensor.device_mesh.mesh.clone())
            tensor = local_tensor(tensor)
        return tensor.detach().to("cpu", copy=True), place
