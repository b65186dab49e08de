"""`Sharding`: the part of each tensor that each rank holds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import polars as pl
import torch

from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh
from dsexplore._internal.sharding import sharding_text
from dsexplore._internal.sharding.chunks import Range, ranges_text
from dsexplore._internal.sharding.memory import PARTS, assume, memory_groups
from dsexplore._internal.sharding.rank_groups import RankGroup, blocks_of, group_blocks
from dsexplore._internal.sharding.redistribution import Redistribution, redistribution
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, format_count

if TYPE_CHECKING:
    from dsexplore._internal.aio.checkpoints.checkpoint_rates import CheckpointRates
    from dsexplore._internal.aio.checkpoints.predict_checkpoint import CheckpointCost
    from dsexplore._internal.aio.offload import OffloadCost
    from dsexplore._internal.aio.sweeps.result import SweepResult

_MOST_ROWS = 2_000_000


class Sharding(Result):
    """Tensors on a mesh; made by ``dsexplore.sharding(...)``.

    Attributes:
        title: Name of the model's class, or of the tensor.
        mesh: Mesh of the ranks.
        tensors: Tensors with their placements.
        notes: Sentences for the reader, such as one on plain tensors.

    Examples:
        >>> sharding = dsexplore.sharding({"w": ((8, 6), "S(0), R")}, mesh="dp=2,tp=2")
        >>> sharding
        <Sharding of 1 tensor, 192 B, on dp=2,tp=2, 4 ranks>
    """

    def __init__(self, title: str, mesh: Mesh, tensors: Iterable[PlacedTensor], notes: Iterable[str] = ()) -> None:
        self.title = title
        self.mesh = mesh
        self.tensors = tuple(tensors)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.tensors)

    def __repr__(self) -> str:
        whole = sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in self.tensors)
        ranks = format_count(self.mesh.size, "rank")
        return f"<Sharding of {format_count(len(self), 'tensor')}, {format_bytes(whole)}, on {self.mesh}, {ranks}>"

    def __getitem__(self, name: str) -> Sharding:
        """Return the sharding of one tensor, by its name.

        Raises:
            UsageError: no tensor has that name.
        """
        for tensor in self.tensors:
            if name in (tensor.name, *tensor.also):
                return Sharding(name, self.mesh, [tensor])
        raise UsageError(f"no tensor {name!r} here: names are in .by_tensor()['tensor']")

    def verdict(self) -> str:
        """Return how much of the tensor a rank holds; for several tensors, the memory of the rank that needs most."""
        if len(self) == 1:
            (tensor,) = self.tensors
            return sharding_text.verdict_of_tensor(tensor, self.shapes(tensor), self.mesh.size)
        return sharding_text.verdict_of_model(self.mesh, self.tensors)

    def lines(self) -> list[str]:
        """Return the verdict, then the notes."""
        return [self.verdict(), *self.notes]

    def redistribute(self, placements: object) -> Redistribution:
        """Return the tensor before and after a redistribute, and the collectives between, with their bytes.

        torch's planner determines the steps, on a mesh without flattened axes. The result is displayed as two pictures
        and a table, and its ``to_frame()`` has a row per step. Nothing is sent, and no process group is needed::

            dsexplore.sharding((8192, 1024), "S(0), R", "dp=2,tp=4").redistribute("R, S(1)")
            dsexplore.sharding(model)["layers.0.wq.weight"].redistribute([Replicate(), Shard(0)])

        Args:
            placements: placements, one per axis of the tensor's own mesh, in mesh order, as `dsexplore.sharding` takes
                them.

        Raises:
            UsageError: there are several tensors, or one without a mesh; the placements do not fit, or are Partial.

        Examples:
            >>> sharding.redistribute("R, S(1)").to_frame().select("op", "axis").rows()
            [('', 'tp'), ('all_gather', 'dp')]
        """
        if len(self) != 1:
            raise UsageError("redistribute() is of one tensor: name it, sharding['…'].redistribute(…)")
        return redistribution(self.tensors[0], self.mesh, placements)

    def to_frame(self, ranks: int | Iterable[int] | None = None) -> pl.DataFrame:
        """Return a table of what each rank holds, one row per tensor and rank.

        Columns: ``tensor``; ``rank``; ``coordinates``, a struct with one field per axis; ``local_shape``; ``index``,
        text such as ``"0:2, 4:6 | 0:8"``; ``ranges``, the same as numbers: per dim, pairs of the first index and the
        index after the last one; ``bytes``.

        Args:
            ranks: ranks that get rows; None for all.

        Raises:
            UsageError: a rank is not on the mesh, or the table would have millions of rows.

        Examples:
            >>> sharding.to_frame(ranks=0).select("local_shape", "index", "bytes").rows()
            [([4, 6], '0:4 | 0:6', 96)]
        """
        if ranks is None:
            count = self.mesh.size
        else:
            ranks = [ranks] if isinstance(ranks, int) else list(ranks)
            count = len(ranks)
        if count * len(self) > _MOST_ROWS:
            raise UsageError(
                f"{len(self):,} tensors on {count:,} ranks are {count * len(self):,} rows: name the ranks, "
                "to_frame(ranks=range(8)), or use by_tensor() and memory(), which fold equal ranks"
            )
        if ranks is None:
            order = Mesh(self.mesh.axes, self.mesh.shape)
            coordinates = [order.coordinates(position) for position in range(self.mesh.size)]
        else:
            coordinates = [self.mesh.coordinates(rank) for rank in ranks]
        return pl.DataFrame(list(self._rows(coordinates)), schema=self._schema(), orient="row")

    def _schema(self) -> dict[str, pl.DataType]:
        return {
            "tensor": pl.String(),
            "rank": pl.Int64(),
            "coordinates": pl.Struct(dict.fromkeys(self.mesh.axes, pl.Int64())),
            "local_shape": pl.List(pl.Int64()),
            "index": pl.String(),
            "ranges": pl.List(pl.List(pl.List(pl.Int64()))),
            "bytes": pl.Int64(),
        }

    def _rows(self, coordinates_of_ranks: Sequence[tuple[int, ...]]) -> Iterator[tuple[object, ...]]:
        """Yield the rows of `to_frame` for the ranks at these coordinates."""
        for tensor in self.tensors:
            dim_ranges = cache(tensor.dim_ranges)
            dims = range(len(tensor.shape))
            axes_of_dim = [{term.axis for _, reading in tensor.cuts(dim) for term in reading.terms} for dim in dims]
            for coordinates in coordinates_of_ranks:
                ranges = []
                for dim in dims:
                    # Coordinates on other axes do not matter, so ranks that differ only there share the cached ranges.
                    relevant = tuple(at if axis in axes_of_dim[dim] else 0 for axis, at in enumerate(coordinates))
                    ranges.append(dim_ranges(dim, relevant))
                shape = [sum(stop - start for start, stop in held) for held in ranges]
                yield (
                    tensor.name,
                    self.mesh.rank(coordinates),
                    dict(zip(self.mesh.axes, coordinates, strict=True)),
                    shape,
                    index_text(ranges),
                    [list(map(list, held)) for held in ranges],
                    math.prod(shape) * tensor.dtype.itemsize,
                )

    def by_tensor(self) -> pl.DataFrame:
        """Return a table of what ranks hold, one row per tensor; the cost does not depend on the number of ranks.

        Columns: ``tensor``, ``shape``, ``dtype``, ``placements`` and ``mesh`` (its own; empty for a plain tensor),
        ``bytes`` (the whole tensor), ``copies`` (ranks that hold the same shard), ``local_shape`` and ``local_bytes``
        of the rank that holds most, ``worst_rank`` (the first such one), ``smallest_bytes``, ``empty_ranks``.

        Examples:
            >>> sharding.by_tensor().select("tensor", "copies", "local_bytes").rows()
            [('w', 2, 96)]
        """
        row_of: dict[tuple[object, ...], tuple[object, ...]] = {}
        rows = []
        for tensor in self.tensors:
            key = tensor.shape, tensor.dtype, tensor.placements, tensor.axes
            if key not in row_of:
                row_of[key] = self._of_tensor(tensor)
            rows.append((tensor.name, *row_of[key]))
        return pl.DataFrame(rows, schema=_BY_TENSOR, orient="row")

    def _of_tensor(self, tensor: PlacedTensor) -> tuple[object, ...]:
        """Return the row of `by_tensor` for a tensor, without its name."""
        groups = self.shapes(tensor)
        sizes = [math.prod(group.value) * tensor.dtype.itemsize for group in groups]
        most = groups[sizes.index(max(sizes))]
        return (
            list(tensor.shape),
            dtype_name(tensor.dtype),
            ", ".join(map(str, tensor.placements)),
            ",".join(f"{axis.name}={axis.size}" for axis in tensor.axes),
            tensor.nbytes,
            tensor.copies if tensor.placements else self.mesh.size,
            list(most.value),
            max(sizes),
            self.mesh.rank(most.first),
            min(sizes),
            sum(group.count for group in groups if math.prod(group.value) == 0),
        )

    def shapes(self, tensor: PlacedTensor) -> list[RankGroup]:
        """Return the groups of ranks that hold the same local shape of a tensor, the largest shape first.

        Examples:
            >>> [(group.count, group.value) for group in sharding.shapes(sharding.tensors[0])]
            [(4, (4, 6))]
        """
        blocks = blocks_of(self.mesh, [tensor])
        return group_blocks(blocks, blocks.local_shapes(tensor))

    def memory(
        self,
        optimizer: str | int = "AdamW",
        state_dtype: torch.dtype | None = None,
        gradient_dtype: torch.dtype | None = None,
    ) -> pl.DataFrame:
        """Return the bytes that training needs on each rank, one row per group of equal ranks, the largest first.

        Gradients and optimizer states are placed like their parameter, for parameters that require gradients. Step
        counters, padding, buffers and activations are not counted, and nothing is measured.

        Columns: ``ranks`` (how many), ``first_rank``, ``which`` (``"0–6, 8"``), ``parameters``, ``gradients``,
        ``optimizer``, ``total``.

        Args:
            optimizer: name such as ``"AdamW"`` (two states), or the number of states per parameter.
            state_dtype: data type of the optimizer's states; None for that of the parameter.
            gradient_dtype: data type of gradients; None for that of the parameter.

        Raises:
            UsageError: the optimizer is unknown.

        Examples:
            >>> sharding.memory("AdamW").select("which", "parameters", "optimizer").rows()
            [('all', 96, 192)]
        """
        assumed = assume(optimizer, state_dtype, gradient_dtype)
        rows = [
            (group.count, self.mesh.rank(group.first), group.ranks, *group.value, sum(group.value))
            for group in memory_groups(self.mesh, self.tensors, assumed)
        ]
        return pl.DataFrame(rows, schema=_MEMORY, orient="row")

    def checkpoint(
        self,
        disk: str | os.PathLike[str] | CheckpointRates,
        optimizer: str | int = "AdamW",
        state_dtype: torch.dtype | None = None,
        *,
        ranks_per_node: int = 8,
        overhead: float = 0.01,
        step_seconds: float | None = None,
    ) -> CheckpointCost:
        """Predict what a checkpoint of parameters and optimizer takes on a disk, by each way to save it.

        The disk is measured for some seconds, with checkpoints of 512 MiB; rates can be measured once for all models::

            rates = dsexplore.aio.checkpoint_rates("/nvme")
            dsexplore.sharding(model).checkpoint(rates, step_seconds=1.5)

        Args:
            disk: folder on the disk, or the disk's rates.
            optimizer: name such as ``"AdamW"`` (two states), the number of states per parameter, or ``"none"``.
            state_dtype: data type of the optimizer's states; None for that of the parameter.
            ranks_per_node: number of ranks that share the disk.
            overhead: fraction of the time that steps may wait for checkpoints; it determines how often one can be
                saved.
            step_seconds: seconds of a training step, to give intervals in steps too; None for only seconds.

        Raises:
            UsageError: the optimizer is unknown, or a number is out of range.
            OSError: the folder cannot be written.
        """
        checkpoint_cost: Callable[..., CheckpointCost] = import_module(
            "dsexplore._internal.aio.checkpoints.predict_checkpoint"
        ).checkpoint_cost
        assumed = assume(optimizer, state_dtype)
        return checkpoint_cost(self, disk, assumed, ranks_per_node, overhead, step_seconds)

    def offload(
        self,
        disk: str | os.PathLike[str] | SweepResult,
        bytes_per_parameter: float = 12,
        *,
        parameters: bool = False,
        ranks_per_node: int = 8,
        step_seconds: float | None = None,
        tokens: int | None = None,
    ) -> OffloadCost:
        """Predict how much longer a step takes if optimizer states are on a disk, as with ZeRO-Infinity::

            result = dsexplore.aio.sweep("/nvme")
            dsexplore.sharding(model).offload(result, step_seconds=4.2, tokens=65536)

        Args:
            disk: folder on the disk, which is swept for half a minute, or the result of a sweep.
            bytes_per_parameter: bytes of states that a step reads and writes; 12 for the parameter, momentum and
                variance in float32.
            parameters: whether the parameters are on the disk too.
            ranks_per_node: number of ranks that share the disk.
            step_seconds: seconds of a step without a disk, to give the disk's share of the step; None to omit it.
            tokens: tokens of a step on one node, to give tokens per second; None to omit it.

        Raises:
            UsageError: a number is out of range, the sweep only read, or no parameter is trained.
            OSError: the folder cannot be written.
        """
        offload_cost: Callable[..., OffloadCost] = import_module("dsexplore._internal.aio.offload").offload_cost
        return offload_cost(self, disk, bytes_per_parameter, parameters, ranks_per_node, step_seconds, tokens)


_BY_TENSOR: dict[str, pl.DataType] = {
    "tensor": pl.String(),
    "shape": pl.List(pl.Int64()),
    "dtype": pl.String(),
    "placements": pl.String(),
    "mesh": pl.String(),
    "bytes": pl.Int64(),
    "copies": pl.Int64(),
    "local_shape": pl.List(pl.Int64()),
    "local_bytes": pl.Int64(),
    "worst_rank": pl.Int64(),
    "smallest_bytes": pl.Int64(),
    "empty_ranks": pl.Int64(),
}

_MEMORY: dict[str, pl.DataType] = {
    "ranks": pl.Int64(),
    "first_rank": pl.Int64(),
    "which": pl.String(),
    **{part: pl.Int64() for part in PARTS},
    "total": pl.Int64(),
}


def index_text(ranges: Iterable[list[Range]]) -> str:
    """Return the index ranges of each dim as text, ``"0:2, 4:6 | 0:8"``; ``"()"`` for a tensor without dims."""
    return " | ".join(map(ranges_text, ranges)) or "()"


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype without torch's prefix: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")
