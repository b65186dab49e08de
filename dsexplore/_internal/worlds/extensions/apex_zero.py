"""A stand-in for Apex's ``DistributedFusedAdam``: Adam whose states and gradients are sharded over ranks (ZeRO-2).

Names, signatures and collectives are those of https://github.com/NVIDIA/apex, where
``apex/contrib/optimizers/distributed_fused_adam.py`` assigns parameters to buckets of one size, in the order in which
their gradients are first ready. A bucket is always sent as a whole:

===================== ==============================================
when                  collectives
===================== ==============================================
construction          a broadcast of each parameter
a bucket is complete  reduce_scatter of the bucket, all_reduce of this rank's shard over the redundant ranks
step                  all_gather of each bucket
===================== ==============================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.fused_optimizers import Betas, Parameters


@dataclass(frozen=True)
class _Fragment:
    """The elements of a parameter that are in one bucket.

    Attributes:
        parameter: the parameter.
        group: its group of the optimizer.
        begin: first element of the flat parameter.
        size: number of elements.
        offset: first element in the bucket.
    """

    parameter: Tensor
    group: dict[str, Any]
    begin: int
    size: int
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return these elements of a tensor with the parameter's shape, as a flat view."""
        return tensor.detach().reshape(-1)[self.begin : self.begin + self.size]


@dataclass
class _Bucket:
    """Parameters whose gradients are sent together.

    Attributes:
        states: this rank's shard of the parameters and of Adam's two averages.
        fragments: the parts of parameters in this bucket.
        filled: number of elements that are taken.
        ready: parameters whose gradients have been copied here since the last reduction.
        gradients: gradients of the whole bucket; None without any.
        shard: this rank's shard of the reduced gradients; None before the first reduction.
    """

    states: tuple[Tensor, Tensor, Tensor]
    fragments: list[_Fragment] = field(default_factory=list)
    filled: int = 0
    ready: set[Tensor] = field(default_factory=set)
    gradients: Tensor | None = None
    shard: Tensor | None = None


class DistributedFusedAdam(torch.optim.Optimizer):
    """Adam whose states and gradients are sharded over the ranks of ``distributed_process_group``.

    All ranks of ``redundant_process_group`` hold the same shard. Gradients are freed when they are copied into buckets.
    Parameters are gathered in the step, also with ``overlap_param_sync``. Apex's further options change no collective.

    Raises:
        UsageError: ``amsgrad=True``, which Apex does not support.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        dtype: torch.dtype = torch.float32,
        grad_sync_dtype: torch.dtype | None = None,
        param_sync_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        process_group: dist.ProcessGroup | None = None,
        distributed_process_group: dist.ProcessGroup | None = None,
        redundant_process_group: dist.ProcessGroup | None = None,
        average_grad_sync: bool = True,
        overlap_grad_sync: bool = True,
        overlap_param_sync: bool = False,
        bucket_cap_mb: float = 100.0,
        **options: Any,
    ) -> None:
        if amsgrad:
            raise UsageError("amsgrad=True: Apex's DistributedFusedAdam has no AMSGrad; leave it out")
        rule = {"bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **rule})
        self.adam_w_mode, self.overlap_grad_sync, self.dtype = adam_w_mode, overlap_grad_sync, dtype
        self.grad_sync_dtype, self.param_sync_dtype = grad_sync_dtype or dtype, param_sync_dtype or dtype
        self.distributed_process_group = distributed_process_group or process_group
        self.redundant_process_group = redundant_process_group
        self.reduce_op = dist.ReduceOp.AVG if average_grad_sync else dist.ReduceOp.SUM
        self.ranks = dist.get_world_size(self.distributed_process_group)
        width = self.grad_sync_dtype.itemsize
        self._alignment = 128 // width
        shard = int(1024 * 1024 * bucket_cap_mb / width / self.ranks)
        self._shard_size = max(shard // self._alignment * self._alignment, self._alignment)
        self._buckets: list[_Bucket] = []
        self._buckets_of: dict[Tensor, list[_Bucket]] = {}
        self._steps, self._scale, self._copies_at_once = 0, torch.ones(()), True
        root = 0 if process_group is None else dist.get_global_rank(process_group, 0)
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.broadcast(parameter.detach(), root, group=process_group)
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(self._add, group=group))

    def _assign(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Assign a parameter to the last bucket and, where that is full, to new ones."""
        self._buckets_of[parameter] = []
        begin = 0
        while begin < parameter.numel():
            offset = -(-self._buckets[-1].filled // self._alignment) * self._alignment if self._buckets else 0
            room = self._shard_size * self.ranks - offset
            if not self._buckets or room <= 0:
                states = [torch.zeros(self._shard_size, dtype=self.dtype, device=parameter.device) for _ in range(3)]
                self._buckets.append(_Bucket((states[0], states[1], states[2])))
                continue
            size = min(parameter.numel() - begin, room)
            fragment = _Fragment(parameter=parameter, group=group, begin=begin, size=size, offset=offset)
            bucket = self._buckets[-1]
            bucket.fragments.append(fragment)
            bucket.filled, begin = offset + fragment.size, begin + fragment.size
            self._buckets_of[parameter].append(bucket)
            for in_shard, in_fragment in self._shard_slices(fragment):
                bucket.states[0][in_shard].copy_(fragment.of(parameter)[in_fragment])

    def _shard_slices(self, fragment: _Fragment) -> Iterator[tuple[slice, slice]]:
        """Yield the slice of this rank's shard that is in a fragment, and its slice of the fragment, unless empty."""
        first = dist.get_rank(self.distributed_process_group) * self._shard_size
        begin, end = max(fragment.offset, first), min(fragment.offset + fragment.size, first + self._shard_size)
        if begin < end:
            yield slice(begin - first, end - first), slice(begin - fragment.offset, end - fragment.offset)

    @torch.no_grad()
    def _add(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Copy a gradient that is ready into buckets, and reduce those that are complete."""
        if not self._copies_at_once:
            return
        is_new = parameter not in self._buckets_of
        if is_new:
            self._assign(parameter, group)
        self._copy(parameter)
        if self.overlap_grad_sync:
            for bucket in self._buckets[:-1] if is_new else self._buckets:
                if len(bucket.ready) == len(bucket.fragments):
                    self._reduce(bucket)

    def _copy(self, parameter: Tensor) -> None:
        """Add a parameter's gradient to its buckets, and free it."""
        if parameter.grad is None:
            return
        for bucket in self._buckets_of[parameter]:
            if bucket.gradients is None:
                size = self._shard_size * self.ranks
                bucket.gradients = torch.zeros(size, dtype=self.grad_sync_dtype, device=parameter.device)
            for fragment in bucket.fragments:
                if fragment.parameter is parameter:
                    part = fragment.of(parameter.grad)
                    bucket.gradients[fragment.offset : fragment.offset + fragment.size].add_(part)
            bucket.ready.add(parameter)
        parameter.grad = None

    def _reduce(self, bucket: _Bucket) -> None:
        """Reduce a bucket's gradients, and add this rank's shard to that of earlier reductions."""
        if bucket.gradients is None:
            return
        shard = bucket.gradients
        if self.ranks > 1:
            shard = bucket.gradients.new_empty(self._shard_size)
            options: Any = {"op": self.reduce_op, "group": self.distributed_process_group}
            dist.reduce_scatter_tensor(shard, bucket.gradients, **options)
        if self.redundant_process_group is not None and dist.get_world_size(self.redundant_process_group) > 1:
            dist.all_reduce(shard, self.reduce_op, group=self.redundant_process_group)
        bucket.shard = shard if bucket.shard is None else bucket.shard + shard
        bucket.gradients = None
        bucket.ready.clear()

    @contextmanager
    def no_sync(self, greedy_grad_copy: bool = False) -> Iterator[None]:
        """Reduce no gradients in the block; with ``greedy_grad_copy`` they are copied into buckets there."""
        before = self._copies_at_once, self.overlap_grad_sync
        self._copies_at_once, self.overlap_grad_sync = greedy_grad_copy, False
        try:
            yield
        finally:
            self._copies_at_once, self.overlap_grad_sync = before

    @torch.no_grad()
    def grad_sync(self) -> None:
        """Reduce the gradients that have not been reduced."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._buckets_of:
                    self._assign(parameter, group)
                if parameter in self._buckets_of:
                    self._copy(parameter)
        for bucket in self._buckets:
            self._reduce(bucket)

    def grad_norm(self, *args: Any, **options: Any) -> Tensor:
        """Return the norm of all gradients, from an all_reduce of the squared norms of shards."""
        self.grad_sync()
        squares = torch.stack(
            [bucket.shard.float().square().sum() for bucket in self._buckets if bucket.shard is not None]
        )
        total = squares.sum()
        dist.all_reduce(total, group=self.distributed_process_group)
        return total.sqrt() * self._scale.to(total.device)

    def clip_grad_norm(self, max_norm: float, *args: Any, **options: Any) -> Tensor:
        """Return the norm of all gradients; the step scales them so that it is at most ``max_norm``."""
        norm = self.grad_norm()
        self._scale = self._scale.to(norm.device) * (max_norm / (norm + 1e-6)).clamp(max=1)
        return norm

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Free the gradients."""
        super().zero_grad(set_to_none=True)
        for bucket in self._buckets:
            bucket.gradients = bucket.shard = None
            bucket.ready.clear()
        self._scale = torch.ones(())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, grad_scaler: Any = None) -> Any:
        """Update this rank's shards, gather the parameters, and return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.grad_sync()
        self._steps += 1
        for bucket in self._buckets:
            for fragment in bucket.fragments:
                for in_shard, _ in self._shard_slices(fragment):
                    self._update(bucket, in_shard, fragment.group)
        for bucket in reversed(self._buckets):
            whole = shard = bucket.states[0].to(self.param_sync_dtype)
            if self.ranks > 1:
                whole = shard.new_empty(self._shard_size * self.ranks)
                dist.all_gather_into_tensor(whole, shard, group=self.distributed_process_group)
            for fragment in bucket.fragments:
                fragment.of(fragment.parameter).copy_(whole[fragment.offset : fragment.offset + fragment.size])
        return loss

    def _update(self, bucket: _Bucket, elements: slice, group: dict[str, Any]) -> None:
        """Take a step of Adam for some elements of this rank's shard of a bucket."""
        if bucket.shard is None:
            return
        master, average, square = (state[elements] for state in bucket.states)
        gradient = bucket.shard[elements].to(self.dtype) * self._scale.to(master.device)
        first, second = group["betas"]
        if not self.adam_w_mode:
            gradient = gradient + group["weight_decay"] * master
        average.lerp_(gradient, 1 - first)
        square.lerp_(gradient.square(), 1 - second)
        if group["bias_correction"]:
            average, square = average / (1 - first**self._steps), square / (1 - second**self._steps)
        update = average / (square.sqrt() + group["eps"])
        if self.adam_w_mode:
            update = update + group["weight_decay"] * master
        master.sub_(group["lr"] * update)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Raise an error: the states are not gathered here, as Apex does.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "apex is not installed, and the stand-in for its DistributedFusedAdam has no state_dict: save the "
            "model only, or add one with dsexplore.register_extension"
        )
