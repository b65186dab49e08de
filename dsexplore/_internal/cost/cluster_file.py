"""Cluster files: which keys they have, in which units, and what is wrong with one that cannot be used.

A quantity is a text with its unit, or a table that says where it comes from as well::

    [node]
    bandwidth = { value = "450 GB/s", source = "H100 datasheet: NVLink 900 GB/s, both directions", date = "2026-11-23" }

Every quantity of the files in ``clusters/`` has its source; users' own need not.

``base = "dgx-h100"`` takes from another cluster whatever the file does not say; the times measured on that cluster then
stand in where this one has none, as with ``like``. ``pod`` and ``oversubscription`` of a network say how many ranks its
switches join at full bandwidth, and how many times less there is between such pods; ``rails``, over how many switches
the ranks of a node are spread, between which there is as much less; ``ring_step``, how long a step of a ring over nodes
takes at least. ``power`` is what the GPU of a rank may take, and ``price = "2.50 USD/h"`` what one rank costs in an
hour, which no file of this package has.
``gpu`` names the GPU of ``worlds/cuda/gpus`` that a simulated world has where it is given this cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dsexplore._internal.errors import UsageError
from dsexplore._internal.hardware import CLUSTERS, with_bases
from dsexplore._internal.trace.collectives import OPS

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its units with their factors, and what values make sense.

    Attributes:
        name: its name in errors.
        units: factor of each unit that a file may write, to B/s, s, FLOP/s, B or W.
        smallest: least plausible value in that base unit.
        largest: greatest plausible value in that base unit.
        example: a value as a file has it.
    """

    name: str
    units: dict[str, float]
    smallest: float
    largest: float
    example: str


_BYTE_UNITS = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_BYTES_PER_SECOND = {f"{unit}/s": factor for unit, factor in _BYTE_UNITS.items()}
_BITS_PER_SECOND = {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()}
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_FLOPS_UNITS = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}

BANDWIDTH = Dimension(
    "bandwidth", {**_BYTES_PER_SECOND, **_BITS_PER_SECOND}, smallest=1e3, largest=1e15, example="450 GB/s"
)
TIME = Dimension("time", _TIME_UNITS, smallest=0.0, largest=10.0, example="1.8 us")
COMPUTE = Dimension("compute", _FLOPS_UNITS, smallest=1e6, largest=1e18, example="989 TFLOP/s")
SIZE = Dimension("size", _BYTE_UNITS, smallest=1.0, largest=1e15, example="80 GB")
POWER = Dimension("power", {"W": 1.0, "kW": 1e3}, smallest=1.0, largest=1e5, example="700 W")


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Parse a text into the base unit of its dimension: ``("450 GB/s", BANDWIDTH)`` → 4.5e11.

    Raises:
        ValueError: no number, a missing or wrong unit, or an implausible value.
    """
    match = re.fullmatch(r"\s*([-+0-9.eE]+)\s*(\S*)\s*", text) if isinstance(text, str) else None
    number = _float(match.group(1)) if match else None
    if match is None or number is None:
        bare = isinstance(text, int | float) and not isinstance(text, bool)
        reason = "has no unit" if bare else "is not a number with a unit"
        raise ValueError(f"{text!r} {reason}: write a {dimension.name} like {dimension.example!r}")
    unit = match.group(2)
    if unit not in dimension.units:
        reason = f"has the unit {unit!r}, which is no {dimension.name}" if unit else "has no unit"
        raise ValueError(f"{text!r} {reason}: write it like {dimension.example!r}")
    value = number * dimension.units[unit]
    if not dimension.smallest <= value <= dimension.largest:
        raise ValueError(f"{text!r} is not a {dimension.name} that can be meant: write it like {dimension.example!r}")
    return value


def parse_fraction(value: object) -> float:
    """Return a number above 0 and at most 1 unchanged.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"{value!r} is not a fraction: write a number above 0 and at most 1")


@dataclass(frozen=True)
class Price:
    """What one rank costs.

    Attributes:
        per_hour: of one rank, whether it computes or waits.
        currency: three capital letters, ``"USD"``.
    """

    per_hour: float
    currency: str


def parse_price(text: object) -> Price:
    """Parse what one rank costs in an hour: ``"2.50 USD/h"``.

    Raises:
        ValueError: no number, or no currency of three capital letters per hour.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Z]{3})/h\s*", text) if isinstance(text, str) else None
    number = _float(match.group(1)) if match else None
    if match is None or number is None:
        raise ValueError(f"{text!r} is not a price: write what one rank costs in an hour, like '2.50 USD/h'")
    return Price(number, match.group(2))


def quantity_of(dimension: Dimension) -> Callable[[object], float]:
    """Return `parse_quantity` for one dimension."""
    return lambda text: parse_quantity(text, dimension)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


KINDS = {
    "library": ("nccl", "rccl", "gloo"),
    "generation": ("volta", "ampere", "ada", "hopper", "blackwell", "rtx-blackwell", "cdna3", "cpu"),
    "topology": ("switch", "mesh", "cube", "pcie", "host"),
}
"""The words that a file may use, by key."""


def _number_of(what: str) -> Callable[[object], int]:
    """Return a reader of integers of 1 or more; `what` names them in its error."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise ValueError(f"{value!r} is not a number of {what}: write a whole number, 1 or more")

    return read


_count = _number_of("ranks")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_LINK: dict[str, Callable[[object], float]] = {
    "bandwidth": quantity_of(BANDWIDTH),
    "achievable": parse_fraction,
    "latency": quantity_of(TIME),
    "short_bandwidth": quantity_of(BANDWIDTH),
    "ramp": quantity_of(TIME),
}


def parse_factor(value: object) -> float:
    """Return a number of 1 or more unchanged.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < math.inf:
        return float(value)
    raise ValueError(f"{value!r} is not a factor: write a number, 1 or more")


_FLOPS = quantity_of(COMPUTE)
SECTIONS: dict[str, dict[str, Callable[[object], float]]] = {
    "node": _LINK,
    "network": _LINK
    | {
        "pod": _count,
        "oversubscription": parse_factor,
        "rails": _number_of("switches"),
        "ring_step": quantity_of(TIME),
    },
    "reduction": {"bandwidth": quantity_of(BANDWIDTH), "smallest_group": _count, "ramp": quantity_of(TIME)},
    "compute": dict.fromkeys(("bf16", "fp16", "tf32", "fp32", "fp8", "fp4"), _FLOPS) | {"achievable": parse_fraction},
    "memory": {"size": quantity_of(SIZE), "bandwidth": quantity_of(BANDWIDTH), "achievable": parse_fraction},
    "launch": {"overhead": quantity_of(TIME), "collective": quantity_of(TIME)},
}
"""The tables of a file, and how each of their quantities is read."""
_OPTIONAL = {"network", "reduction"}
_OPTIONAL_AT_TOP = {"base", "gpu", "measured", "like", "power", "price", "processors", "ranks_per_domain"}
_OPTIONAL_KEYS = {"fp16", "tf32", "fp8", "fp4", "pod", "oversubscription", "rails", "ring_step"}
_MEASURED = {"op", "nodes", "ranks_per_node", "bytes", "microseconds", "source", "date"}


_Read = TypeVar("_Read")


@dataclass(frozen=True)
class ClusterValues:
    """The values of a cluster file, in base units."""

    words: dict[str, str]
    ranks_per_node: int
    ranks_per_domain: int
    processors: int | None
    power: float | None
    price: Price | None
    sections: dict[str, dict[str, float]]
    measured: list[dict[str, Any]]
    sources: dict[str, str]


def read_cluster_file(path: Path) -> ClusterValues:
    """Read and check one file.

    Raises:
        UsageError: it cannot be read, lacks a key, has an unknown one, or a value that cannot be used.
    """
    (base, data), *further = reversed(list(with_bases(path)))
    for file, content in further:
        data = _merge_with_base(content, base, data)
        base = file
    return _ClusterReader(path).values(data)


def _merge_with_base(data: dict[str, Any], base: Path, below: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with what its base says besides, but for the base's measured times.

    Args:
        data: of the file.
        base: the file of its base.
        below: content of the base.
    """
    own = {key: data[key] for key in SECTIONS if isinstance(data.get(key), dict)}
    tables = {key: {**below[key], **table} for key, table in own.items() if isinstance(below.get(key), dict)}
    kept = {key: value for key, value in below.items() if key not in ("measured", "title", "like", "base")}
    return {"like": base.stem, **kept, **data, **tables}


class _ClusterReader:
    """Reads the tables of one file; errors name the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sources: dict[str, str] = {}

    def values(self, data: dict[str, Any]) -> ClusterValues:
        """Check all keys of the file and return their values."""
        words = {"title", *KINDS}
        self._keys("", data, {*words, "ranks_per_node", *SECTIONS.keys() - _OPTIONAL}, {*_OPTIONAL, *_OPTIONAL_AT_TOP})
        for key in (*words, *(key for key in ("base", "gpu", "like") if key in data)):
            if not isinstance(data[key], str) or (key in KINDS and data[key] not in KINDS[key]):
                choice = f"one of {', '.join(KINDS[key])}" if key in KINDS else "a text"
                raise self._wrong(key, f"{data[key]!r}: write {choice}")
        if "processors" in data and data["topology"] != "host":
            shared = f"{data['processors']!r}, which only ranks of the topology 'host' share: leave it out"
            raise self._wrong("processors", shared)
        return ClusterValues(
            words={key: data[key] for key in sorted(words)} | {key: data.get(key, "") for key in ("base", "like")},
            **self._ranks(data),
            processors=self._processors(data),
            power=self._read("power", data["power"], quantity_of(POWER)) if "power" in data else None,
            price=self._read("price", data["price"], parse_price) if "price" in data else None,
            sections={name: self._section(name, data[name]) for name in SECTIONS if name in data},
            measured=[self._measured(number, table) for number, table in enumerate(_list(data.get("measured", [])))],
            sources=self.sources,
        )

    def _ranks(self, data: dict[str, Any]) -> dict[str, int]:
        """Return the ranks of a node and of a domain, which is one node unless the file says otherwise."""
        node = int(self._read("ranks_per_node", data["ranks_per_node"], _count))
        if "ranks_per_domain" not in data:
            return {"ranks_per_node": node, "ranks_per_domain": node}
        domain = int(self._read("ranks_per_domain", data["ranks_per_domain"], _count))
        if domain % node:
            raise self._wrong("ranks_per_domain", f"{domain}: write a multiple of ranks_per_node, {node}")
        return {"ranks_per_node": node, "ranks_per_domain": domain}

    def _processors(self, data: dict[str, Any]) -> int | None:
        if "processors" not in data:
            return None
        return int(self._read("processors", data["processors"], _number_of("processors")))

    def _section(self, name: str, table: Any) -> dict[str, float]:
        if not isinstance(table, dict):
            raise self._wrong(name, f"{table!r}: write a table with {', '.join(SECTIONS[name])}")
        kinds = SECTIONS[name]
        self._keys(f"{name}.", table, kinds.keys() - _OPTIONAL_KEYS, kinds.keys() & _OPTIONAL_KEYS)
        return {key: self._read(f"{name}.{key}", value, kinds[key]) for key, value in table.items()}

    def _read(self, key: str, value: Any, kind: Callable[[object], _Read]) -> _Read:
        """Return a value as `kind` reads it; keep its source if it is a table with one."""
        if isinstance(value, dict):
            self._keys(f"{key}.", value, {"value"}, {"source", "date"})
            self.sources[key] = f"{value.get('source', '')} ({value.get('date', 'no date')})"
            value = value["value"]
        try:
            return kind(value)
        except ValueError as error:
            raise self._wrong(key, str(error)) from None

    def _measured(self, number: int, table: Any) -> dict[str, Any]:
        """Return a table ``[[measured]]`` with times in seconds; `number` is its index in the file."""
        where = f"measured[{number}]."
        if not isinstance(table, dict):
            raise self._wrong(where.rstrip("."), f"{table!r}: write tables that begin with [[measured]]")
        self._keys(where, table, _MEASURED, set())
        if table["op"] not in OPS:
            raise self._wrong(f"{where}op", f"{table['op']!r}: write one of {', '.join(OPS)}")
        sizes, times = (self._numbers(where + key, table[key]) for key in ("bytes", "microseconds"))
        if len(sizes) != len(times):
            raise self._wrong(f"{where}bytes", f"{len(sizes)} sizes for {len(times)} times: write one time for each")
        if sorted(set(sizes)) != sizes:
            raise self._wrong(f"{where}bytes", "sizes that do not ascend: write each once, the smallest first")
        return {
            "op": table["op"],
            "nodes": int(self._read(f"{where}nodes", table["nodes"], _count)),
            "ranks_per_node": int(self._read(f"{where}ranks_per_node", table["ranks_per_node"], _count)),
            "message_bytes": tuple(int(size) for size in sizes),
            "seconds": tuple(time * 1e-6 for time in times),
            "source": str(table["source"]),
            "date": str(table["date"]),
        }

    def _numbers(self, key: str, values: object) -> list[float]:
        """Return a list of finite numbers above 0, or raise the error that names `key`."""
        if not isinstance(values, list) or not values:
            raise self._wrong(key, f"{values!r}: write a list of numbers")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise self._wrong(key, f"[… {value!r} …]: write numbers above 0")
        return [float(value) for value in values]

    def _keys(self, prefix: str, table: dict[str, Any], required: set[str], optional: set[str]) -> None:
        CLUSTERS.check_keys(self.path, table.keys(), required, optional, prefix)

    def _wrong(self, key: str, reason: str) -> UsageError:
        return UsageError(f"the cluster file {self.path} has {key} = {reason}")
