"""The ``"aio"`` block of a ds_config: `AioConfig` reads, checks and writes it."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from dsexplore._internal.aio import aio_constants as c
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments_of_methods, with_options
from dsexplore._internal.units import format_bytes, format_count

_INTEGERS = (c.AIO_BLOCK_SIZE, c.AIO_QUEUE_DEPTH, c.AIO_THREAD_COUNT, c.AIO_INTRA_OP_PARALLELISM)
_BOOLEANS = (c.AIO_SINGLE_SUBMIT, c.AIO_OVERLAP_EVENTS, c.AIO_USE_GDS)
KEYS = (*_INTEGERS, *_BOOLEANS)


@dataclass(frozen=True, slots=True, order=True)
class AioConfig:
    """Settings of transfers between tensors and files. The defaults are DeepSpeed's.

    Raises:
        UsageError: a value of the wrong type or out of range; the message names key, value and rule.
    """

    block_size: int = c.AIO_BLOCK_SIZE_DEFAULT
    """Bytes per request: a positive multiple of 512, because direct I/O addresses whole sectors."""
    queue_depth: int = c.AIO_QUEUE_DEPTH_DEFAULT
    """Requests in flight per thread: at least 1."""
    thread_count: int = c.AIO_THREAD_COUNT_DEFAULT
    """Threads that share one tensor: at least 1. DeepSpeed's newer name for it is ``intra_op_parallelism``."""
    single_submit: bool = c.AIO_SINGLE_SUBMIT_DEFAULT
    """One system call per request, instead of one per batch."""
    overlap_events: bool = c.AIO_OVERLAP_EVENTS_DEFAULT
    """Keep the queue full, instead of waiting for each batch to finish."""
    use_gds: bool = c.AIO_USE_GDS_DEFAULT
    """GPUDirect Storage: an option of DeepSpeed that is kept in the block, but has no effect here."""

    def __post_init__(self) -> None:
        for key in (c.AIO_BLOCK_SIZE, c.AIO_QUEUE_DEPTH, c.AIO_THREAD_COUNT):
            object.__setattr__(self, key, _checked_integer(key, getattr(self, key)))
        for key in _BOOLEANS:
            _check_boolean(key, getattr(self, key))
        if self.block_size % c.SECTOR:
            raise UsageError(
                f"aio block_size {self.block_size} is not a multiple of {c.SECTOR}: direct I/O addresses whole "
                f"sectors; the next one is {-(-self.block_size // c.SECTOR) * c.SECTOR}"
            )

    @property
    def intra_op_parallelism(self) -> int:
        """`thread_count` under the name that newer versions of DeepSpeed use."""
        return self.thread_count

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of memory that requests in flight may use at one time."""
        return self.block_size * self.queue_depth * self.thread_count

    @classmethod
    def from_dict(cls, block: Mapping[str, object]) -> Self:
        """Parse an ``"aio"`` block, or a whole ds_config that contains one; missing keys take their defaults.

        Raises:
            UsageError: an unknown key, a wrong value, or both names of the thread count with different values.
        """
        if not isinstance(block, Mapping):
            raise UsageError(f'the "aio" block is {block!r}: it must be an object with the keys {", ".join(KEYS)}')
        if c.AIO in block:
            inner: Any = block[c.AIO]
            return cls.from_dict({} if inner is None else inner)
        unknown = [key for key in block if key not in KEYS]
        if unknown:
            raise UsageError(
                f'unknown key {unknown[0]!r} (value {block[unknown[0]]!r}) in the "aio" block: '
                f"it takes {', '.join(KEYS)}"
            )
        values: dict[str, Any] = dict(block)
        if c.AIO_INTRA_OP_PARALLELISM in values:
            _merge_thread_count(values)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, must_have_block: bool = False) -> Self:
        """Read a ds_config JSON file, or one that holds the ``"aio"`` block alone.

        Args:
            path: path of the file.
            must_have_block: raise if a ds_config has no ``"aio"`` block, instead of returning the defaults.

        Raises:
            OSError: the file cannot be read.
            UsageError: the file is not JSON, its ``"aio"`` block is invalid, or the block is missing.
        """
        try:
            loaded = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{os.fspath(path)} is not a JSON ds_config: {error}") from error
        if isinstance(loaded, dict) and c.AIO not in loaded and not set(loaded) & set(KEYS):
            if must_have_block:
                raise UsageError(f'{os.fspath(path)} has no "aio" block: give a ds_config that has one')
            return cls()
        return cls.from_dict(loaded)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some values changed, and validated again."""
        return replace(self, **changes)

    def to_ds_config(self) -> dict[str, dict[str, int | bool]]:
        """Return the block for a ds_config, ``{"aio": {...}}``.

        It has the thread count under both names, since each version of DeepSpeed reads one and ignores the other.
        """
        return {
            c.AIO: {
                c.AIO_BLOCK_SIZE: self.block_size,
                c.AIO_QUEUE_DEPTH: self.queue_depth,
                c.AIO_THREAD_COUNT: self.thread_count,
                c.AIO_INTRA_OP_PARALLELISM: self.thread_count,
                c.AIO_SINGLE_SUBMIT: self.single_submit,
                c.AIO_OVERLAP_EVENTS: self.overlap_events,
                **({c.AIO_USE_GDS: True} if self.use_gds else {}),
            }
        }

    def to_json(self) -> str:
        """Return the block as JSON text."""
        return json.dumps(self.to_ds_config(), indent=2)

    def __str__(self) -> str:
        submit = "single" if self.single_submit else "block"
        events = "overlap" if self.overlap_events else "sequential"
        return (
            f"{format_bytes(self.block_size)} × depth {self.queue_depth} × "
            f"{format_count(self.thread_count, 'thread')}, {submit} submit, {events}"
        )


names_arguments_of_methods(AioConfig)


with_options(option.name for option in fields(AioConfig))(AioConfig.with_)


def as_integer(value: object) -> int | None:
    """Convert an integer of any type, such as numpy's, to int; None for everything else, including booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # raises TypeError for what is not an integer
    except TypeError:
        return None


def _checked_integer(key: str, value: object) -> int:
    """Return the value of a key as an int of at least 1; raise UsageError if it is none."""
    number = as_integer(value)
    if number is None:
        raise UsageError(f"aio {key} {value!r} is {type(value).__name__}: it must be a whole number, at least 1")
    if number < 1:
        raise UsageError(f"aio {key} {number} is too small: it must be at least 1")
    return number


def _check_boolean(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"aio {key} {value!r} is {type(value).__name__}: it must be true or false")


def _merge_thread_count(values: dict[str, Any]) -> None:
    """Replace the newer name of the thread count by the older one; raise UsageError if their values differ."""
    newer = values.pop(c.AIO_INTRA_OP_PARALLELISM)
    _checked_integer(c.AIO_INTRA_OP_PARALLELISM, newer)
    older = values.setdefault(c.AIO_THREAD_COUNT, newer)
    if older != newer:
        raise UsageError(
            f"aio thread_count {older!r} and intra_op_parallelism {newer!r} are one setting under two names: "
            "give one of them, or the same value to both"
        )


NO_GDS = (
    "use_gds stays in the block for DeepSpeed and is not used here: tensors of a GPU go through page-locked memory of "
    "the host, and what GPUDirect Storage would gain is not measured"
)
"""Text of the warning about a block with ``use_gds``."""

NEAR_LIMIT = AioConfig(block_size=1 << 20, queue_depth=32, thread_count=2)
"""A setting with enough requests in flight to bring most disks near their limit."""
