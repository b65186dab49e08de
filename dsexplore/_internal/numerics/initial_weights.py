"""Put the reference's initial weights into a parallel model, and find which part of each parameter a rank holds.

A DTensor has placements. A plain parameter of the reference's shape is a replica. One of another shape is a shard that
the program cut itself; its rows are found by comparing its values with the reference's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsexplore._internal.numerics.numeric_records import DTensorPlace, RunRecord
from dsexplore._internal.numerics.observed_run import local_part, parameters_of, plain_model
from dsexplore._internal.sharding.chunks import Cut, held_ranges
from dsexplore._internal.torch_internals.dtensor import local_tensor

Weights = Mapping[str, Tensor]


def put_in(model: nn.Module, weights: Weights, record: RunRecord) -> dict[str, str]:
    """Copy the reference's initial weights into a model, and record which part of each parameter this rank holds.

    Replicas with different values on ranks are left as they are, because nothing has synchronized them.

    Args:
        model: model of this rank.
        weights: {name of a parameter: its initial value in the reference}.
        record: record of this rank, of which places, rows and unsynchronized parameters are set.

    Returns:
        {path of a module: its path in the reference}, for modules with another path, such as experts that are divided
        among ranks and numbered from 0 on each.
    """
    model = plain_model(model)
    names = _renamed_modules(_plain_values(parameters_of(model, {})), weights)
    parameters = dict(parameters_of(model, names))
    weights_here = _plain_values(parameters.items())
    record.unsynchronized = _unsynchronized(weights_here, weights)
    record.rows = _rows_of_shards(weights_here, weights)
    for name, parameter in parameters.items():
        whole = weights.get(name)
        if whole is None or name in record.unsynchronized:
            continue
        local, place = local_part(parameter)
        if place is not None:
            record.places[name] = place
            if tuple(whole.shape) == place.shape:
                _copy(parameter, whole[_grid(dtensor_indices(place, dist.get_rank()), whole.shape)])
        elif local.shape == whole.shape:
            _copy(parameter, whole)
        elif name in record.rows:
            _copy(parameter, whole.index_select(*record.rows[name]))
    return names


def _plain_values(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """Return {name: value} of the parameters that are not DTensors."""
    return {name: local_part(value)[0] for name, value in parameters if not isinstance(cast(Tensor, value), DTensor)}


def _copy(parameter: Tensor, value: Tensor) -> None:
    """Copy a value into a parameter, or into the local part of a DTensor, if it has the same shape and memory."""
    with torch.no_grad():
        target = local_tensor(parameter) if isinstance(parameter, DTensor) else parameter.detach()
        if target.shape == value.shape and target.device.type != "meta":
            target.copy_(value)


def _grid(indices: Sequence[Tensor], shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Return indices that select a block of a tensor, as ``numpy.ix_`` does."""
    dims = len(shape)
    return tuple(index.view([-1 if at == dim else 1 for at in range(dims)]) for dim, index in enumerate(indices))


def dtensor_indices(place: DTensorPlace, rank: int) -> tuple[Tensor, ...]:
    """Return the indices of each dim of a DTensor that a rank of its mesh holds.

    Args:
        place: shape, placements and mesh of the DTensor.
        rank: global rank.
    """
    coordinates = (place.ranks == rank).nonzero()[0].tolist()
    indices = []
    for dim, size in enumerate(place.shape):
        cuts = [
            (Cut(parts, placement.pieces), coordinate)
            for placement, parts, coordinate in zip(place.placements, place.ranks.shape, coordinates, strict=True)
            if placement.cuts and placement.dim % len(place.shape) == dim
        ]
        ranges = held_ranges(size, [cut for cut, _ in cuts], [coordinate for _, coordinate in cuts])
        indices.append(torch.cat([torch.arange(start, end) for start, end in ranges] or [torch.arange(0)]))
    return tuple(indices)


def _digest(value: Tensor) -> str:
    return hashlib.sha256(value.double().contiguous().numpy().tobytes()).hexdigest()


def _renamed_modules(weights_here: Weights, weights: Weights) -> dict[str, str]:
    """Return {path of a module: path of the module of the reference that has the same parameters}, if it is another."""
    names: dict[str, str] = {}
    by_value: dict[str, list[str]] = {}
    for name, value in weights.items():
        by_value.setdefault(_digest(value), []).append(name)
    for name, value in weights_here.items():
        same = by_value.get(_digest(value), [])
        if same and name not in same and len(same) == 1 and value.unique().numel() > 1:
            module, _, parameter = name.rpartition(".")
            other_module, _, other_parameter = same[0].rpartition(".")
            if parameter == other_parameter:
                names[module] = other_module
    return names


def _unsynchronized(weights_here: Weights, weights: Weights) -> tuple[str, ...]:
    """Return the names of replicas whose values differ from those on the lowest rank that has the parameter."""
    digests_here = {
        name: _digest(value)
        for name, value in weights_here.items()
        if name in weights and value.shape == weights[name].shape
    }
    digests_of_ranks: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(digests_of_ranks, digests_here)
    first: dict[str, str] = {}
    for digests in reversed(digests_of_ranks):
        first |= digests
    return tuple(name for name, digest in digests_here.items() if digest != first[name])


def _rows_of_shards(weights_here: Weights, weights: Weights) -> dict[str, tuple[int, Tensor]]:
    """Return {name of a plain shard: (dim that is sharded, indices that this rank holds)}.

    If the values do not tell the indices, because several rows are equal, they are those of another parameter of the
    module with the same sizes, or else contiguous.
    """
    rows: dict[str, tuple[int, Tensor]] = {}
    ambiguous: list[tuple[str, int]] = []
    for name, value in weights_here.items():
        whole = weights.get(name)
        if whole is None or whole.dim() != value.dim():
            continue
        sharded = [dim for dim in range(whole.dim()) if whole.shape[dim] != value.shape[dim]]
        if len(sharded) != 1 or value.shape[sharded[0]] > whole.shape[sharded[0]]:
            continue
        indices = matching_indices(value.double(), whole, sharded[0])
        if indices is None:
            ambiguous.append((name, sharded[0]))
        else:
            rows[name] = sharded[0], indices
    for name, dim in ambiguous:
        size, whole_size = weights_here[name].shape[dim], weights[name].shape[dim]
        siblings = [
            indices
            for other, (other_dim, indices) in rows.items()
            if other.rpartition(".")[0] == name.rpartition(".")[0]
            and (len(indices), weights[other].shape[other_dim]) == (size, whole_size)
        ]
        if siblings:
            rows[name] = dim, siblings[0]
        elif whole_size % size == 0:
            rows[name] = dim, _contiguous(size, whole_size // size)
    return rows


def _contiguous(size: int, parts: int) -> Tensor:
    """Return the rows of this rank if consecutive ranks hold consecutive parts of `size` rows."""
    start = dist.get_rank() % parts * size
    return torch.arange(start, start + size)


def matching_indices(part: Tensor, whole: Tensor, dim: int, tolerance: float = 1e-12) -> Tensor | None:
    """Return the index in `whole`, along a dim, of each slice of `part`; None unless each is there exactly once.

    Slices are compared by their dot products with a random vector, up to a relative `tolerance`.
    """
    if not part.numel() or not whole.numel():
        return None
    rows, whole_rows = (tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1).double() for tensor in (part, whole))
    if rows.shape[1] != whole_rows.shape[1]:
        return None
    vector = torch.randn(whole_rows.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    keys, sorted_keys = rows @ vector, (whole_rows @ vector).sort()
    spacing = tolerance * max(float(whole_rows.norm(dim=1).max()) * float(vector.norm()), 1e-300)
    if len(whole_rows) > 1 and float(sorted_keys.values.diff().min()) <= 2 * spacing:
        return None  # some rows are equal
    near = torch.searchsorted(sorted_keys.values, keys).clamp(max=len(whole_rows) - 1)
    before = (near - 1).clamp(min=0)
    is_before = (sorted_keys.values[before] - keys).abs() < (sorted_keys.values[near] - keys).abs()
    places = torch.where(is_before, before, near)
    if bool(((sorted_keys.values[places] - keys).abs() > spacing).any()):
        return None
    return sorted_keys.indices[places]
