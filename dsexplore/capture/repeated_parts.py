"""Parts of a program that record the same each time: watched, compared, and recorded again without being run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.recorder_in_use import in_use
from dsexplore.capture.recording import Recording


@dataclass(frozen=True)
class Part:
    """The events that one run of a part of a program recorded.

    Attributes:
        issued: its collectives, in program order.
        calls: how often it called each module, by identity of the `ModuleEntry`.
    """

    issued: Sequence[Issued] = ()
    calls: dict[int, int] = field(default_factory=dict)

    def is_like(self, other: Part) -> bool:
        """Whether both recorded the same, but for the numbers of batches."""
        return self.calls == other.calls and list(map(_content, self._numbered())) == list(
            map(_content, other._numbered())
        )

    def _numbered(self) -> list[tuple[Issued, int | None]]:
        """The collectives, with the number of their batch within the part."""
        numbers: dict[int, int] = {}
        return [
            (one, None if one.batch is None else numbers.setdefault(one.batch, len(numbers))) for one in self.issued
        ]

    def repeat(self) -> None:
        """Record the same once more."""
        recorder = in_use()
        recorder.modules.add_calls(self.calls)
        recorder.repeat(self.issued)


def _content(numbered: tuple[Issued, int | None]) -> tuple[Any, ...]:
    one, batch = numbered
    return one.raw_op, one.messages, id(one.group), one.rank, one.origin, one.is_async, one.parties, batch


def can_repeat() -> bool:
    """Whether one recording is open, which holds nothing but collectives that take no time."""
    recordings = in_use().recordings
    return (
        len(recordings) == 1
        and type(recordings[0]) is Recording
        and recordings[0].kernels is None
        and recordings[0].simulated
    )


def hold_instead(part: Part, other: Part) -> None:
    """Replace the part that has just been recorded, in the one open recording, by another."""
    recorder = in_use()
    (recording,) = recorder.recordings
    entries = {*part.calls, *other.calls}
    recorder.modules.add_calls({entry: other.calls.get(entry, 0) - part.calls.get(entry, 0) for entry in entries})
    recorder.hold_instead(recording, len(recording.issued) - len(part.issued), other.issued)


def watched(run: Callable[[], Any]) -> tuple[Any, Part]:
    """Run a part of a program while one recording is open; return what it returns, and what it recorded."""
    recorder = in_use()
    (recording,) = recorder.recordings
    before, calls = len(recording.issued), recorder.modules.calls()
    result = run()
    return result, Part(recording.issued[before:], more_calls(recorder.modules.calls(), calls))


def more_calls(later: Mapping[int, int], earlier: Mapping[int, int]) -> dict[int, int]:
    """How many calls more each module had later, by identity of its entry; modules with none are left out."""
    found = {entry: count - earlier.get(entry, 0) for entry, count in later.items()}
    return {entry: count for entry, count in found.items() if count}
