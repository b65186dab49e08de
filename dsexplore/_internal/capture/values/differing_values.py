"""Finds tensors that differ between ranks that should hold the same, by where their values come from.

Each tensor gets the groups of ranks among which its values may differ. They differ over a mesh axis if a DTensor is
sharded or Partial over it, or after a reduce_scatter in forward. Results of ops on such tensors differ too. After an
all_reduce, all_gather or broadcast over the axis they are equal again. A rank's batch, and plain parameters that ranks
have sharded themselves, are not known to differ.

Worked example: under sequence parallelism ``x`` is DTensor ``S(1)`` over tp, and ``x.to_local()`` goes into a norm with
plain parameters. The gradient of the norm's weight is computed from ``x``, so it differs over tp. The weight is plain,
so each rank holds all of it. Unless an all_reduce over tp comes before the optimizer, ranks update it differently.

Limits: for a flat buffer that joins gradients, such as a bucket, only groups are kept among which all of them differ.
A write through a view does not change what is known of the tensor below it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.kernels.op_costs import COMMUNICATION, AtenOp, written_arguments
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.torch_internals.dtensor import local_tensor

Group = frozenset[int]
"""Global ranks among which a value may differ."""
Differs = frozenset[Group]
NOWHERE: Differs = frozenset()
Holder = Callable[[Tensor], tuple[ModuleEntry, str] | None]
"""Returns the module that holds a parameter, and its name there."""
Kind = Literal["activation", "gradient", "parameter"]
"""``activation``: the local tensor of a replicated DTensor differs. ``gradient``: the optimizer reads the gradient of a
replicated parameter before it is reduced. ``parameter``: ranks update a replicated parameter differently."""

_JOINING = {"cat", "chunk_cat", "_chunk_cat", "all_gather_copy_in", "split_with_sizes_copy"}
"""Ops that fill flat buffers with the gradients of many parameters."""
_REPLACING = {"copy_", "zero_", "fill_"}
"""Ops that overwrite all values of their first argument."""


@dataclass(frozen=True)
class Differing:
    """One tensor that differs between ranks that should hold equal values."""

    kind: Kind
    phase: str
    module: ModuleEntry | None
    name: str
    """The parameter's name in its module; for an activation, the op that reads it."""
    axis: str
    """The mesh axis over which it differs."""
    step: int


class DifferingValues:
    """Follows values through a program's ops."""

    def __init__(self) -> None:
        self.found: list[Differing] = []
        self._differs: dict[int, tuple[weakref.ref[Tensor], Differs]] = {}
        """{id of a tensor: (the tensor, groups among which it differs)}."""
        self._groups: dict[tuple[int, int], Group] = {}
        """{(id of a mesh, dim): group of this rank}."""
        self._axes: dict[Group, str] = {}
        """{group: its mesh axis}."""
        self._reported: set[tuple[int, str, Group]] = set()
        """(id of a parameter or module, phase, group) of all that was found."""

    def release(self) -> None:
        """Drop all references to tensors."""
        self._differs.clear()
        self._groups.clear()

    def of(self, tensor: Tensor) -> Differs:
        """Return the groups among which the values of a tensor may differ."""
        reference, differs = self._differs.get(id(tensor), (None, NOWHERE))
        return differs if reference is not None and reference() is tensor else NOWHERE

    def met(self, values: Iterable[Any], where: tuple[str, ModuleEntry | None], op: str, step: int) -> None:
        """Read the placements of DTensors, and check those with ``Replicate``.

        Args:
            values: the arguments of an op on DTensors.
            where: the current phase and module.
            op: the op's name.
            step: the current step.
        """
        phase, module = where
        for tensor in tensors_in(values):
            if not isinstance(tensor, DTensor):
                continue
            local = local_tensor(tensor)
            differs = self.of(local)
            groups = self._mesh_groups(tensor.device_mesh)
            placed = frozenset(
                group
                for placement, group in zip(tensor.placements, groups, strict=True)
                if not placement.is_replicate() and len(group) > 1
            )
            if phase == "optimizer":  # `check_gradients` and `check_parameters` do this
                self._set(local, differs | placed)
                continue
            for group in (differs - placed).intersection(groups):
                difference = Differing(
                    kind="activation", phase=phase, module=module, name=op, axis=self._axes.get(group, ""), step=step
                )
                self._report(difference, id(module), group)
            self._set(local, placed)

    def follow(
        self,
        op: AtenOp,
        *,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        given: Sequence[Tensor],
        returned: Sequence[Tensor],
        issued: Sequence[Issued],
        is_forward: bool,
    ) -> None:
        """Follow the values through an op on plain tensors.

        Args:
            op: the op.
            args: its positional arguments.
            kwargs: its keyword arguments.
            result: its result.
            given: the tensors among its arguments.
            returned: the tensors in its result.
            issued: the collectives so far; the last one belongs to `op` if that is a collective.
            is_forward: whether it ran in a forward.
        """
        if op.role == COMMUNICATION:
            if issued:
                self._communicated(issued[-1], given, returned, is_forward=is_forward)
        elif not self._differs:
            return
        elif op.name.startswith(("_foreach", "_fused")):
            self._ran_on_lists(op, [*args, *kwargs.values()], result)
        else:
            written = written_arguments(op, args, kwargs)
            replaces = op.name in _REPLACING or "out" in kwargs
            read = [tensor for tensor in given if not (replaces and _is_among(tensor, written))]
            self._ran(op, read, [*written, *returned], is_forward=is_forward)

    def _ran(self, op: AtenOp, read: Sequence[Tensor], written: Sequence[Tensor], *, is_forward: bool) -> None:
        """Follow the values from the tensors that an op reads to those that it writes and returns."""
        all_of = [self.of(tensor) for tensor in read]
        if op.name in _JOINING and not is_forward:
            differs = frozenset.intersection(*all_of) if all_of else NOWHERE
        else:
            differs = NOWHERE.union(*all_of)
        for tensor in written:
            self._set(tensor, differs)

    def _communicated(
        self, collective: Issued, given: Sequence[Tensor], returned: Sequence[Tensor], *, is_forward: bool
    ) -> None:
        """Follow the values through a collective."""
        group = frozenset(collective.group.ranks) if collective.group is not None else frozenset[int]()
        op = collective.messages[0].op if collective.messages else ""
        targets = list(returned) or list(given[:1])
        sources = [tensor for tensor in given if not _is_among(tensor, targets)] or targets
        differs = NOWHERE.union(*(self.of(tensor) for tensor in sources))
        if collective.group is not None:
            self._axes.setdefault(group, collective.group.axis or collective.group.met_axis)
        if group and op not in ("send", "recv", "barrier"):
            differs = frozenset(among for among in differs if not among <= group)
        if op == "reduce_scatter" and is_forward and len(group) > 1:
            differs |= {group}
        for tensor in targets:
            self._set(tensor, differs)

    def check_gradients(self, optimizer: Optimizer, holder: Holder, step: int) -> None:
        """Check the gradients that an optimizer is about to read."""
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                self._check("gradient", parameter, parameter.grad, holder, step)

    def check_parameters(self, optimizer: Optimizer, holder: Holder, step: int) -> None:
        """Check the parameters that an optimizer has updated."""
        for parameter in _parameters(optimizer):
            self._check("parameter", parameter, parameter, holder, step)

    def _check(self, kind: Kind, parameter: Tensor, tensor: Tensor, holder: Holder, step: int) -> None:
        """Report a parameter if a tensor, itself or its gradient, differs over groups over which it is replicated."""
        differs = self.of(local_tensor(tensor) if isinstance(tensor, DTensor) else tensor)
        for group in differs - self._sharded_over(parameter) - self._sharded_over(tensor):
            holding = holder(parameter)
            if holding is not None:
                module, name = holding
                difference = Differing(
                    kind=kind, phase="optimizer", module=module, name=name, axis=self._axes.get(group, ""), step=step
                )
                self._report(difference, id(parameter), group)

    def _sharded_over(self, tensor: Tensor) -> Differs:
        """Return the groups over which a DTensor is sharded or Partial."""
        if not isinstance(tensor, DTensor):
            return NOWHERE
        groups = zip(tensor.placements, self._mesh_groups(tensor.device_mesh), strict=True)
        return frozenset(group for placement, group in groups if not placement.is_replicate())

    def _ran_on_lists(self, op: AtenOp, given: Sequence[Any], result: Any) -> None:
        """Follow the values through an op on lists of tensors, element by element."""
        lists = [value for value in given if isinstance(value, (list, tuple)) and value]
        count = len(lists[0]) if lists else 0
        elementwise = [tensors for tensors in lists if len(tensors) == count]
        common = [self.of(value) for value in given if isinstance(value, Tensor)]
        targets: Sequence[Any] = [result]
        if op.name.startswith("_fused"):
            targets = elementwise
        elif op.writes:
            targets = elementwise[:1]
        read = elementwise[1:] if op.name == "_foreach_copy_" else elementwise
        for index in range(count):
            of_elements = [self.of(tensors[index]) for tensors in read if isinstance(tensors[index], Tensor)]
            differs = NOWHERE.union(*of_elements, *common)
            for target in targets:
                self._set(target[index], differs)

    def _set(self, tensor: Tensor, differs: Differs) -> None:
        """Set the groups among which a tensor differs, until it is freed."""
        key = id(tensor)
        if differs:
            reference = weakref.ref(tensor, lambda _gone: self._differs.pop(key, None))
            self._differs[key] = reference, differs
        elif self._differs:
            self._differs.pop(key, None)

    def _mesh_groups(self, mesh: DeviceMesh) -> list[Group]:
        """Return this rank's group along each axis of a mesh."""
        return [self._group(mesh, dim) for dim in range(mesh.ndim)]

    def _group(self, mesh: DeviceMesh, dim: int) -> Group:
        """Return this rank's group along one axis of a mesh, and note the axis."""
        key = id(mesh), dim
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = frozenset(dist.get_process_group_ranks(mesh.get_group(dim)))
            self._axes[group] = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else f"dim {dim}"
        return group

    def _report(self, difference: Differing, subject: int, group: Group) -> None:
        """Add a difference, once per subject, phase and group: a differing update follows from a differing gradient."""
        key = subject, difference.phase, group
        if key not in self._reported:
            self._reported.add(key)
            self.found.append(difference)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_among(tensor: Tensor, tensors: Iterable[Tensor]) -> bool:
    return any(tensor is other for other in tensors)
