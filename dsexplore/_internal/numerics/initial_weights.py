"""Put the reference's initial weights into a parallel model, whatever its sharding, and learn which rank holds what.

A DTensor says what each rank holds. A plain parameter of the reference's shape is a replica, and one of another shape a
shard that the program cut itself: which rows it took is found by comparing its values with the reference's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

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
    """Give a model the reference's initial weights, and record where its parameters lie.

    Parameters that ranks hold with different values are left as they are: nothing has synchronized them.

    Returns:
        {path of a module: its path in the reference}, where a rank names another part of the reference as its own
        first, as with experts that are divided among ranks.
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
    """Return {name: value} of the parameters that are no DTensors."""
    return {name: local_part(parameter)[0] for name, parameter in parameters if not _is_dtensor(parameter)}


def _is_dtensor(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def _copy(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        target = local_tensor(parameter) if isinstance(parameter, DTensor) else parameter.detach()
        if target.shape == value.shape and target.device.type != "meta":
            target.copy_(value)


def _grid(indices: Sequence[Tensor], shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Return indices that select a block of a tensor, as ``numpy.ix_`` does."""
    dims = len(shape)
    return tuple(index.view([-1 if at == dim else 1 for at in range(dims)]) for dim, index in enumerate(indices))


def dtensor_indices(place: DTensorPlace, rank: int) -> tuple[Tensor, ...]:
    """Return the indices of each dim of a DTensor that a rank of its mesh holds."""
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
    """Return modules whose parameters are those of another module of the reference, with its path."""
    names: dict[str, str] = {}
    by_value: dict[str, list[str]] = {}
    for name, value in weights.items():
        by_value.setdefault(_digest(value), []).append(name)
    for name, value in weights_here.items():
        same = by_value.get(_digest(value), [])
        if same and name not in same and len(same) == 1 and value.unique().numel() > 1:
            module, _, last = name.rpartition(".")
            other, _, other_last = same[0].rpartition(".")
            if last == other_last:
                names[module] = other
    return names


def _unsynchronized(weights_here: Weights, weights: Weights) -> tuple[str, ...]:
    """Return the parameters whose values differ from those on the lowest rank with the same replica."""
    mine = {
        name: _digest(value)
        for name, value in weights_here.items()
        if name in weights and value.shape == weights[name].shape
    }
    every: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, mine)
    first = {name: digest for digests in reversed(every) for name, digest in digests.items()}
    return tuple(name for name, digest in mine.items() if digest != first[name])


def _rows_of_shards(weights_here: Weights, weights: Weights) -> dict[str, tuple[int, Tensor]]:
    """Return the dim that each plain shard cuts, and the indices that it holds."""
    rows: dict[str, tuple[int, Tensor]] = {}
    ambiguous = []
    for name, value in weights_here.items():
        whole = weights.get(name)
        if whole is None or whole.dim() != value.dim():
            continue
        cut = [dim for dim in range(whole.dim()) if whole.shape[dim] != value.shape[dim]]
        if len(cut) != 1 or value.shape[cut[0]] > whole.shape[cut[0]]:
            continue
        indices = matching_indices(value.double(), whole, cut[0])
        if indices is None:
            ambiguous.append((name, cut[0], value.shape[cut[0]], whole.shape[cut[0]]))
        else:
            rows[name] = cut[0], indices
    for name, dim, size, of in ambiguous:
        module = name.rpartition(".")[0]
        like = [
            index
            for other, (_, index) in rows.items()
            if other.rpartition(".")[0] == module and len(index) == size and weights[other].shape[rows[other][0]] == of
        ]
        if like:
            rows[name] = dim, like[0]
        elif of % size == 0:
            rows[name] = dim, _contiguous(size, of // size)
    return rows


def _contiguous(size: int, parts: int) -> Tensor:
    """Return the rows of this rank where the innermost ranks of the world each hold the next ones."""
    start = dist.get_rank() % parts * size
    return torch.arange(start, start + size)


def matching_indices(part: Tensor, whole: Tensor, dim: int, tolerance: float = 1e-12) -> Tensor | None:
    """Return which slices of `whole` along a dim the slices of `part` are; None unless each is found, only once."""
    if not part.numel() or not whole.numel():
        return None
    rows, of = (tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1).double() for tensor in (part, whole))
    if rows.shape[1] != of.shape[1]:
        return None
    seeded = torch.randn(of.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    keys, sorted_keys = rows @ seeded, (of @ seeded).sort()
    spacing = tolerance * max(float(of.norm(dim=1).max()) * float(seeded.norm()), 1e-300)
    if len(of) > 1 and float(sorted_keys.values.diff().min()) <= 2 * spacing:
        return None  # rows that look the same
    near = torch.searchsorted(sorted_keys.values, keys).clamp(max=len(of) - 1)
    before = (near - 1).clamp(min=0)
    is_before = (sorted_keys.values[before] - keys).abs() < (sorted_keys.values[near] - keys).abs()
    places = torch.where(is_before, before, near)
    if bool(((sorted_keys.values[places] - keys).abs() > spacing).any()):
        return None
    return sorted_keys.indices[places]
