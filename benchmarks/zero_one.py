"""An optimizer of fp32 masters, whole or in parts as by ZeRO's first stage, in plain torch, for `parallel_llama`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed._tensor import DTensor
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from llama_layers import Part


Sharers = Literal["none", "node", "all"]
"""The ranks among which the masters are divided, of those that train on other samples."""


class ZeroOne:
    """ZeRO's first stage: one flat buffer per layer, reduced when its last gradient is there, beside backward.

    The stages of a pipeline reduce them when all microbatches are through.

    Args:
        parts: the stages of this rank.
        mesh: with axes pp, dp, cp and tp.
        sharers: the ranks that divide the masters; ``"none"`` is no ZeRO.
        in_fp32: whether gradients are reduced, and kept from then on, in fp32.
    """

    def __init__(self, parts: list[Part], mesh: DeviceMesh, sharers: Sharers, in_fp32: bool = False) -> None:
        self.group = data_ranks(mesh).get_group()
        everyone, own = dist.get_process_group_ranks(self.group), dist.get_rank()
        self.of_all, self.in_fp32 = sharers == "all", in_fp32
        near = {"none": [own], "node": [rank for rank in everyone if rank // 8 == own // 8], "all": everyone}[sharers]
        self.sharers, self.shards = self.group if self.of_all else dist.new_group(near), len(near)
        self.reduces = in_backward = mesh["pp"].size() == 1
        units: list[list[nn.Parameter]] = []
        for part in parts:
            in_layers = [list(layer.parameters()) for layer in part.layers]
            seen = {id(one) for unit in in_layers for one in unit}
            units += [[one for one in part.parameters() if id(one) not in seen], *in_layers]
        self.units = [unit for unit in units if unit]
        self.running: dict[int, tuple[torch.Tensor, Any]] = {}
        sizes = [-(-sum(_local(one).numel() for one in unit) // self.shards) for unit in self.units]
        self.masters = [nn.Parameter(torch.zeros(size, dtype=torch.float32)) for size in sizes]
        self.adam = torch.optim.AdamW(self.masters, fused=True)
        for number, unit in enumerate(self.units if in_backward else ()):
            left = set(map(id, unit))
            for one in unit:
                one.register_post_accumulate_grad_hook(partial(self._there, number, left, len(unit)))

    def _there(self, number: int, left: set[int], count: int, parameter: torch.Tensor) -> None:
        if not self.reduces:
            return
        left.discard(id(parameter))
        if not left:
            left.update(map(id, self.units[number]))
            self._reduce(number)

    def _reduce(self, number: int) -> None:
        flat = torch.cat([_local(one.grad).flatten() for one in self.units[number]])
        if self.in_fp32:
            flat = flat.float()
            for one in self.units[number]:
                one.grad = None
        if not self.of_all:
            self.running[number] = flat, dist.all_reduce(flat, group=self.group, async_op=True)
            return
        size = self.masters[number].numel()
        whole = F.pad(flat, (0, size * self.shards - flat.numel()))
        own = torch.empty(size, dtype=flat.dtype)
        self.running[number] = own, dist.reduce_scatter_tensor(own, whole, group=self.group, async_op=True)

    def step(self) -> None:
        """Update the own part of each buffer, and gather the others'."""
        if not self.reduces:
            for number in range(len(self.units)):
                self._reduce(number)
        for number, (flat, work) in self.running.items():
            work.wait()
            size = self.masters[number].numel()
            self.masters[number].grad = F.pad(flat[:size], (0, size - flat[:size].numel())).float()
        self.adam.step()
        for number in self.running:
            part = self.masters[number].detach().to(torch.bfloat16)
            gathered = part
            if self.shards > 1:
                gathered = torch.empty(part.numel() * self.shards, dtype=torch.bfloat16)
                dist.all_gather_into_tensor(gathered, part, group=self.sharers)
            at = 0
            for one in self.units[number]:
                local = _local(one.detach())
                if at + local.numel() <= gathered.numel():
                    local.copy_(gathered[at : at + local.numel()].view_as(local))
                at += local.numel()
        self.running.clear()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.adam.zero_grad()
        for unit in self.units:
            for one in unit:
                one.grad = None


def data_ranks(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks among which parameters or gradients are divided: those of dp and cp."""
    return mesh["dp", "cp"]._flatten("dp_cp") if mesh["cp"].size() > 1 else mesh["dp"]


def _local(tensor: Any) -> torch.Tensor:
    """A tensor's part on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
