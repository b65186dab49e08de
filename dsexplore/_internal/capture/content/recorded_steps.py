"""Assigns each collective to a step or to none, as `docs/steps.md` defines it.

An optimizer's step ends a step, and the first module call after it begins the next one. What the program itself sends
in between counts to the step before. If its line also sent before the first step, it counts to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.trace.schema import Phase

BETWEEN: Phase = "between steps"
_Line = tuple[object, str]
"""(the user's line that issued a collective, its op)."""


@dataclass
class OuterCalls:
    """The outermost module calls of a recording, which begin steps: the number of collectives before each call."""

    first: int | None = None
    """Number of collectives before the first call; None if there was none."""
    begins: list[int] = field(default_factory=list)
    """Number of collectives before each step's first call with gradients."""
    _calls: dict[int, list[int]] = field(default_factory=dict)
    """{identity of a module's entry: numbers of collectives before its calls without gradients}."""
    _sent: dict[int, int] = field(default_factory=dict)
    """{identity of a module's entry: number of collectives after its calls without gradients, until the next call}."""
    _latest: tuple[int, int] | None = None
    """(identity of a module's entry, number of collectives before) of the latest call without gradients."""

    def begin(self, module: int, issued: int, steps: int, *, with_gradients: bool) -> None:
        """Note a call.

        Args:
            module: identity of the module's entry.
            issued: the number of collectives issued before.
            steps: the number of steps that have ended.
            with_gradients: whether gradients are enabled.
        """
        if self.first is None:
            self.first = issued
        if with_gradients:
            self.begins += [issued] * (steps + 1 - len(self.begins))
            return
        self._sent = self._sent_until(issued)
        self._latest = module, issued
        calls = self._calls.setdefault(module, [])
        if not calls or calls[-1] != issued:
            calls.append(issued)

    def forwards(self, issued: int, *, ends: bool) -> list[int]:
        """Return the number of collectives issued by the end of each forward of the root module.

        If nothing is trained, these forwards are the steps: for example a generation's prefill, and each token. A
        forward lasts until the next one begins, and the last one until the recording ends.

        Args:
            issued: the number of collectives.
            ends: whether the recording has ended, and not by an exception.
        """
        sent = self._sent_until(issued)
        root = max(sent, key=sent.__getitem__, default=None)
        if root is None or not sent[root]:
            return []
        begins = self._calls[root]
        return [*begins[1:], issued] if ends and issued > begins[-1] else begins[1:]

    def _sent_until(self, issued: int) -> dict[int, int]:
        """Return ``_sent`` with the collectives since the latest call, when `issued` have been issued."""
        if self._latest is None:
            return {}
        module, before = self._latest
        return {**self._sent, module: self._sent.get(module, 0) + issued - before}


def _line(issued: Issued) -> _Line:
    return issued.origin.sources[:1], issued.messages[0].op if issued.messages else ""


def is_own(issued: Issued) -> bool:
    """Return True for a collective that the program itself issued, outside of modules, backward and optimizers."""
    return issued.origin.phase == "other" and not issued.origin.cause.startswith("FSDP")


class Steps:
    """The step of each collective, and the phases of collectives that belong to none.

    Args:
        ends: the number of collectives issued by the end of each step.
        calls: the module calls with which steps begin.
        issued: the collectives.
        are_marked: whether the program marked the ends itself; then no collective is moved to another step.
        are_forwards: whether the steps are forwards of the root module.
    """

    def __init__(
        self,
        ends: Sequence[int],
        calls: OuterCalls,
        issued: Sequence[Issued],
        *,
        are_marked: bool,
        are_forwards: bool = False,
    ) -> None:
        self.ends, self._calls, self._issued = ends, calls, issued
        self.numbers = step_numbers(ends, len(issued))
        self._phases: dict[int, Phase] = {}
        self._find_start()
        if not are_marked and are_forwards:
            self._place_after_forwards()
        elif not are_marked and calls.begins:
            self._place_between()

    @property
    def issued(self) -> list[Issued]:
        """Collectives, with their phases if they are in no step; equal origins stay one object."""
        origins: dict[tuple[int, Phase], Origin] = {}
        issued = list(self._issued)
        for index, phase in self._phases.items():
            before = issued[index].origin
            origin = origins.setdefault((id(before), phase), before._replace(phase=phase))
            issued[index] = replace(issued[index], origin=origin)
        return issued

    def _find_start(self) -> None:
        """Set the phase of what the program sends before its first step, on lines that do not send in later steps."""
        first = self._calls.first or 0
        for index in range(min(first, len(self._issued))):
            if self._issued[index].origin.phase == BETWEEN:
                self._phases[index] = "start-up"
        early = self._program_collectives(0, first)
        if not early or len(self.ends) < 2:
            return
        end_of_third = self.ends[min(2, len(self.ends) - 1)]
        later = {_line(self._issued[index]) for index in self._program_collectives(first, end_of_third)}
        for index in early:
            if _line(self._issued[index]) not in later:
                self._phases[index] = "start-up"

    def _place_between(self) -> None:
        """Place what is sent between the end of a step and the begin of the next one."""
        begins, ends = self._calls.begins, [*self.ends, len(self._issued)]
        first_lines = {_line(self._issued[index]) for index in self._program_collectives(0, begins[0])}
        earlier: set[_Line] = set()
        for step, end in enumerate(self.ends):
            is_last = step + 1 == len(self.ends)
            begin = begins[step + 1] if step + 1 < len(begins) else ends[step + 1]
            for index in self._program_collectives(end, min(begin, ends[step + 1])):
                line = _line(self._issued[index])
                if line in first_lines:
                    continue
                if is_last and step and line not in earlier:
                    self._phases[index] = BETWEEN
                else:
                    self.numbers[index] = step
                    earlier.add(line)

    def _place_after_forwards(self) -> None:
        """Set the phase of what the program sends after the last forward, on lines that sent after no earlier one."""
        if len(self.ends) < 2 or self.ends[-1] < len(self._issued):
            return
        last = self.ends[-2]
        earlier = {_line(issued) for issued in self._issued[self._calls.first or 0 : last]}
        for index in reversed(range(last, len(self._issued))):
            origin = self._issued[index].origin
            if origin.trigger is not None or origin.phase not in ("other", "no-grad forward"):
                return  # a module sent it
            if _line(self._issued[index]) not in earlier:
                self._phases[index] = BETWEEN

    def _program_collectives(self, begin: int, end: int) -> list[int]:
        """Return the indices from `begin` to `end` of collectives that the program itself issued."""
        return [index for index in range(begin, min(end, len(self._issued))) if is_own(self._issued[index])]


def step_numbers(ends: Sequence[int], count: int) -> list[int]:
    """Return the step of each of `count` collectives, from the number of collectives issued by the end of each step.

    Worked example: of 4 collectives, the steps end after 2 and after 3: their steps are 0, 0, 1, 2.
    """
    numbers: list[int] = []
    for step, end in enumerate([*ends, count]):
        numbers.extend([step] * (end - len(numbers)))
    return numbers
