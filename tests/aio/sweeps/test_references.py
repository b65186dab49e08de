"""Sentences on other memory and on DeepSpeed's own handle, for given rates."""

from __future__ import annotations

from dsexplore._internal.aio.sweeps.references import (
    MEMORIES,
    PINNED,
    Reference,
    advice_lines,
    memory_lines,
    slower_elsewhere,
)
from dsexplore.aio import AioConfig

DEFAULT = AioConfig()
OTHER = AioConfig(queue_depth=4)


def of_memory(operation: str, huge: tuple[float, ...], ordinary: tuple[float, ...]) -> list[Reference]:
    return [
        Reference(name, operation, DEFAULT, rates, "") for name, rates in zip(MEMORIES, (huge, ordinary), strict=True)
    ]


def of_deepspeed(operation: str, taken: tuple[float, ...], default: tuple[float, ...]) -> list[Reference]:
    return [
        Reference("deepspeed", operation, config, rates, "") for config, rates in ((OTHER, taken), (DEFAULT, default))
    ]


def test_the_gain_of_huge_pages_is_said_where_it_is_sure() -> None:
    runs = of_memory("read", (3.8e9, 3.7e9, 3.9e9), (2e9, 1.9e9, 2.1e9))
    runs += of_memory("write", (1e9, 1.1e9, 0.9e9), (1e9, 0.9e9, 1.1e9))
    gain, how = memory_lines(runs, ["read", "write"])
    assert (
        gain
        == "Huge pages read 1.9 times as fast as ordinary pages: 3.80 GB/s (3.54 GiB/s), not 2.00 GB/s (1.86 GiB/s)."
    )
    assert "THP_MEM_ALLOC_ENABLE=1" in how
    assert list(memory_lines(runs, ["write"])) == []
    assert list(memory_lines(of_memory("read", (4e9, 1e9, 4e9), (2e9, 2e9, 2e9)), ["read"])) == []  # scatters
    assert list(memory_lines(runs[:1], ["read"])) == []


def test_the_gain_of_pinned_memory_is_said_beside() -> None:
    runs = of_memory("write", (2e9, 2.1e9, 1.9e9), (2e9, 1.9e9, 2.1e9))
    runs.append(Reference(PINNED, "write", DEFAULT, (3e9, 3.1e9, 2.9e9), ""))
    gain, how = memory_lines(runs, ["read", "write"])
    assert gain.startswith("Pinned memory writes 1.5 times as fast as ordinary pages: 3.00 GB/s")
    assert "pin_memory=True" in how


def test_advice_is_checked_on_deepspeeds_own_handle() -> None:
    faster = of_deepspeed("read", (2.2e9, 2.2e9), (2e9, 2e9))
    (line,) = advice_lines(faster, ["read", "write"], OTHER, DEFAULT)
    assert line.startswith("On DeepSpeed's own handle, this setting's read rate is 1.100")
    assert slower_elsewhere(faster, ["read"], OTHER, DEFAULT) == ""
    both = faster + of_deepspeed("write", (1.6e9, 1.6e9), (2e9, 2e9))
    said = slower_elsewhere(both, ["read", "write"], OTHER, DEFAULT)
    assert said.endswith("is faster here, but 6.2 % slower on DeepSpeed's own handle")
    assert slower_elsewhere(both, ["read", "write"], DEFAULT, DEFAULT) == ""
    assert slower_elsewhere([], ["read"], OTHER, DEFAULT) == ""
