"""Answers to the exercises on collectives, data parallelism, ZeRO and FSDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from tests.lessons.answers import is_wrong, solves, wrong

# Collectives


@solves("collectives")
def wire_bytes(op: str, message_bytes: int, ranks: int) -> float:
    if op == "broadcast":
        return message_bytes
    return (2 if op == "all_reduce" else 1) * message_bytes * (ranks - 1) / ranks


@solves("collectives")
def all_reduce_in_two(tensor: Tensor) -> Tensor:
    part = tensor.new_empty(tensor.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, tensor)
    whole = torch.empty_like(tensor)
    dist.all_gather_into_tensor(whole, part)
    return whole


@solves("collectives")
def ring_seconds(message_bytes: int, ranks: int, latency: float, bandwidth: float) -> float:
    return 2 * (ranks - 1) * (latency + message_bytes / ranks / bandwidth)


is_wrong("collectives", "wire_bytes", "That is half of it", lambda op, size, n: size * (n - 1) / n)
is_wrong("collectives", "wire_bytes", "keeps its own part", lambda op, size, n: size)
is_wrong("collectives", "wire_bytes", "do not multiply by n", lambda op, size, n: 2 * size * (n - 1) * n)
is_wrong("collectives", "wire_bytes", "passes the whole tensor on once",
         lambda op, size, n: (2 if op == "all_reduce" else 1) * size * (n - 1) / n)  # fmt: skip
is_wrong("collectives", "wire_bytes", "Return a number", lambda op, size, n: None)
is_wrong("collectives", "all_reduce_in_two", "Build it of two", lambda tensor: dist.all_reduce(tensor))
is_wrong("collectives", "all_reduce_in_two", "keep torch.float32", lambda tensor: all_reduce_in_two(tensor).double())
is_wrong("collectives", "ring_seconds", "paid in each step", lambda s, n, a, b: a + 2 * (n - 1) / n * s / b)
is_wrong("collectives", "ring_seconds", "one part of n", lambda s, n, a, b: 2 * (n - 1) * (a + s / b))


@wrong("collectives", "all_reduce_in_two", "a root must take or give everything")
def by_a_root(tensor: Tensor) -> Tensor:
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)
    return tensor


@wrong("collectives", "all_reduce_in_two", "each rank sum one part first")
def by_gathering_all(tensor: Tensor) -> Tensor:
    whole = tensor.new_empty(dist.get_world_size() * tensor.numel())
    dist.all_gather_into_tensor(whole, tensor)
    return whole.view(-1, tensor.numel()).sum(0)


@wrong("collectives", "all_reduce_in_two", "all need all parts")
def without_the_gather(tensor: Tensor) -> Tensor:
    part = tensor.new_empty(tensor.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, tensor)
    return part


# Data parallelism


def backward(model: Any, batch: Tensor) -> None:
    model(batch).square().mean().backward()


@solves("ddp")
def naive(model: Any, batch: Tensor) -> None:
    backward(model, batch)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def summed(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient) / dist.get_world_size())
        start += gradient.numel()


@solves("ddp")
def flat(model: Any, batch: Tensor) -> None:
    backward(model, batch)
    summed([parameter.grad for parameter in model.parameters()])


@solves("ddp")
def bucketed(model: Any, batch: Tensor, bucket_bytes: int) -> None:
    backward(model, batch)
    bucket: list[Tensor] = []
    for parameter in reversed([*model.parameters()]):
        if sum(each.nbytes for each in bucket) + parameter.grad.nbytes > bucket_bytes:
            summed(bucket)
            bucket = []
        bucket.append(parameter.grad)
    summed(bucket)


def overlapped_as(model: Any, batch: Tensor, bucket_bytes: int, *, waits: bool = True, is_async: bool = True,
                  early: bool = True) -> None:  # fmt: skip
    bucket: list[Tensor] = []
    pending: list[tuple[Any, Tensor, list[Tensor]]] = []
    waiting: list[list[Tensor]] = []

    def send(gradients: list[Tensor]) -> None:
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        pending.append((dist.all_reduce(joined, async_op=is_async), joined, gradients))

    def ready(parameter: Tensor) -> None:
        assert parameter.grad is not None
        bucket.append(parameter.grad)
        if sum(each.nbytes for each in bucket) < bucket_bytes:
            return
        waiting.append([*bucket])
        bucket.clear()
        if early or sum(map(len, waiting)) == len([*model.parameters()]):
            for gradients in waiting:
                send(gradients)
            waiting.clear()

    handles = [parameter.register_post_accumulate_grad_hook(ready) for parameter in model.parameters()]
    backward(model, batch)
    for work, joined, gradients in pending:
        if waits and work is not None:
            work.wait()
        start = 0
        for gradient in gradients:
            gradient.copy_(joined[start : start + gradient.numel()].view_as(gradient) / dist.get_world_size())
            start += gradient.numel()
    for handle in handles:
        handle.remove()


@solves("ddp")
def overlapped(model: Any, batch: Tensor, bucket_bytes: int) -> None:
    overlapped_as(model, batch, bucket_bytes)


is_wrong("ddp", "naive", "every rank has seen another batch", backward)
is_wrong("ddp", "overlapped", "when backward has ended", bucketed)
is_wrong("ddp", "overlapped", "never waited for", lambda m, x, b: overlapped_as(m, x, b, waits=False))
is_wrong("ddp", "overlapped", "Backward waits for each", lambda m, x, b: overlapped_as(m, x, b, is_async=False))
is_wrong("ddp", "overlapped", "fill from there", lambda m, x, b: overlapped_as(m, x, b, early=False))
is_wrong("ddp", "flat", "torch.cat", naive)
is_wrong("ddp", "bucketed", "close a bucket before", lambda m, x, b: flat(m, x))
is_wrong("ddp", "bucketed", "each message costs a latency", lambda m, x, b: naive(m, x))


@wrong("ddp", "naive", "is not divided")
def without_the_mean(model: Any, batch: Tensor) -> None:
    backward(model, batch)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


@wrong("ddp", "naive", "loop over model.parameters()")
def the_first_one_alone(model: Any, batch: Tensor) -> None:
    backward(model, batch)
    gradient = next(model.parameters()).grad
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


@wrong("ddp", "flat", "back into parameter.grad")
def without_the_way_back(model: Any, batch: Tensor) -> None:
    backward(model, batch)
    joined = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(joined)


@wrong("ddp", "naive", "AttributeError")
def before_backward(model: Any, batch: Tensor) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data)


# ZeRO and FSDP


@solves("sharded")
def memory(parameters: float, ranks: int, stage: int) -> float:
    optimizer, gradients, weights = (ranks if stage >= first else 1 for first in (1, 2, 3))
    return parameters * (2 / weights + 2 / gradients + 12 / optimizer)


def step_as(parameter: Tensor, gradient: Tensor, rate: float, ranks: int) -> tuple[Tensor, Tensor]:
    part = gradient.new_empty(gradient.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, gradient)
    shard = parameter.chunk(dist.get_world_size())[dist.get_rank()] - rate * part / ranks
    dist.all_gather_into_tensor(parameter, shard)
    return parameter, shard


@solves("sharded")
def sharded_step(parameter: Tensor, gradient: Tensor, rate: float) -> Tensor:
    return step_as(parameter, gradient, rate, dist.get_world_size())[0]


def whole(shard: Tensor, width: int) -> Tensor:
    weight = shard.new_empty(width * width)
    dist.all_gather_into_tensor(weight, shard)
    return weight.view(width, width)


@solves("sharded")
def gathered_forward(x: Tensor, shards: list[Tensor]) -> Tensor:
    for shard in shards:
        x = x @ whole(shard, x.shape[1])
    return x


@solves("sharded")
def fsdp(model: Any, mesh: Any) -> None:
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


is_wrong("sharded", "memory", "12 bytes per parameter", lambda p, n, stage: 4 * p)
is_wrong("sharded", "memory", "shards something", lambda p, n, stage: 16 * p)
is_wrong("sharded", "memory", "Only stage 3", lambda p, n, stage: 16 * p / (n if stage else 1))
is_wrong("sharded", "sharded_step", "four times too long", lambda p, g, rate: step_as(p, g, rate, 1)[0])
is_wrong("sharded", "sharded_step", "return what was gathered", lambda p, g, rate: step_as(p, g, rate, 4)[1])
is_wrong("sharded", "fsdp", "the whole model", lambda model, mesh: fully_shard(model, mesh=mesh))
is_wrong("sharded", "fsdp", "apply torch.distributed.fsdp.fully_shard", lambda model, mesh: None)


@wrong("sharded", "sharded_step", "that part of the gradient alone")
def with_an_all_reduce(parameter: Tensor, gradient: Tensor, rate: float) -> Tensor:
    dist.all_reduce(gradient)
    return parameter - rate * gradient / dist.get_world_size()


@wrong("sharded", "sharded_step", "gather the updated parameters")
def gathers_gradients(parameter: Tensor, gradient: Tensor, rate: float) -> Tensor:
    part = gradient.new_empty(gradient.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, gradient)
    dist.all_gather_into_tensor(gradient, part / dist.get_world_size())
    return gradient


@wrong("sharded", "gathered_forward", "gather each one before its use")
def all_at_once(x: Tensor, shards: list[Tensor]) -> Tensor:
    joined = torch.cat(shards)
    everything = joined.new_empty(dist.get_world_size() * joined.numel())
    dist.all_gather_into_tensor(everything, joined)
    return x


@wrong("sharded", "fsdp", "ZeRO 2")
def kept(model: Any, mesh: Any) -> None:
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)


@wrong("sharded", "fsdp", "Without a root")
def without_a_root(model: Any, mesh: Any) -> None:
    for layer in model:
        fully_shard(layer, mesh=mesh)
