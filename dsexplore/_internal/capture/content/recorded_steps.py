"""Which step each collective counts to, and which belong to none: the definition in `docs/steps.md`, as code.

An optimizer's step ends a step. The next one begins with the first call of a module after it; what the program itself
sends in between counts to the step that it follows, or, if its line also sent before the first step, to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.trace.schema import Phase

BETWEEN: Phase = "between steps"
_Line = tuple[object, str]
"""The user's line that issued a collective, and its op."""


@dataclass
class OuterCalls:
    """The positions in a recording of outermost module calls, where steps begin."""

    first: int | None = None
    """Number of collectives issued at the first call; None before it."""
    begins: list[int] = field(default_factory=list)
    """Number of collectives issued at each step's first call with gradients."""
    _calls: dict[int, list[int]] = field(default_factory=dict)
    """By identity of a module's entry: how many had been issued at its calls without gradients."""
    _sent: dict[int, int] = field(default_factory=dict)
    """By identity of a module's entry: how many were issued from such a call of it until the next call of any."""
    _latest: tuple[int, int] | None = None

    def begin(self, module: int, issued: int, steps: int, *, with_gradients: bool) -> None:
        """Note a call.

        Args:
            module: identity of the module's entry.
            issued: how many collectives were issued before.
            steps: how many steps have ended.
            with_gradients: whether gradients are on.
        """
        if self.first is None:
            self.first = issued
        if with_gradients:
            self.begins += [issued] * (steps + 1 - len(self.begins))
            return
        if self._latest is not None:
            caller, since = self._latest
            self._sent[caller] = self._sent.get(caller, 0) + issued - since
        self._latest = module, issued
        calls = self._calls.setdefault(module, [])
        if not calls or calls[-1] != issued:
            calls.append(issued)

    def forwards(self, issued: int, *, ends: bool) -> list[int]:
        """Return the number of collectives issued by the end of each forward of the root module.

        It is the end of a step where nothing is trained: a generation's prefill, and each token. One lasts until the
        next begins, and the last one until the recording ends.

        Args:
            issued: how many there are.
            ends: whether the recording has ended, other than by an exception.
        """
        if self._latest is None:
            return []
        caller, since = self._latest
        sent = {**self._sent, caller: self._sent.get(caller, 0) + issued - since}
        root = max(sent, key=sent.__getitem__)
        if not sent[root]:
            return []
        begins = self._calls[root]
        return [*begins[1:], issued] if ends and issued > begins[-1] else begins[1:]


def _line(issued: Issued) -> _Line:
    return issued.origin.sources[:1], issued.messages[0][0] if issued.messages else ""


def is_own(issued: Issued) -> bool:
    """Return True for what the program itself sends, outside of modules, backward and optimizers."""
    return issued.origin.phase == "other" and not issued.origin.cause.startswith("FSDP")


class Steps:
    """The step of each collective, and the phases of collectives that belong to none.

    Args:
        ends: how many collectives had been issued at the end of each step.
        calls: where steps begin.
        issued: the collectives.
        are_marked: whether the program marked the ends itself: then no collective is moved to another step.
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
        """Collectives, with the phases of those that are in no step."""
        made: dict[tuple[int, Phase], Origin] = {}
        issued = list(self._issued)
        for at, phase in self._phases.items():
            origin = issued[at].origin
            issued[at] = replace(issued[at], origin=made.setdefault((id(origin), phase), origin._replace(phase=phase)))
        return issued

    def _find_start(self) -> None:
        """Find what the program sends only before its first step; lines that send in later steps too are excluded."""
        before = range(min(self._calls.first or 0, len(self._issued)))
        loaded = (at for at in before if self._issued[at].origin.phase == BETWEEN)
        self._phases.update((at, "start-up") for at in loaded)
        early = self._program_collectives(0, self._calls.first or 0)
        if not early or len(self.ends) < 2:
            return
        seen = self.ends[min(2, len(self.ends) - 1)]
        again = {_line(self._issued[at]) for at in self._program_collectives(self._calls.first or 0, seen)}
        self._phases.update((at, "start-up") for at in early if _line(self._issued[at]) not in again)

    def _place_between(self) -> None:
        """Place what is sent between the end of a step and the begin of the next one."""
        begins, ends = self._calls.begins, [*self.ends, len(self._issued)]
        heads = {_line(self._issued[at]) for at in self._program_collectives(0, begins[0])}
        earlier: set[_Line] = set()
        for step, end in enumerate(self.ends):
            is_last = step + 1 == len(self.ends)
            begin = begins[step + 1] if step + 1 < len(begins) else ends[step + 1]
            for at in self._program_collectives(end, min(begin, ends[step + 1])):
                line = _line(self._issued[at])
                if line in heads:
                    continue
                if is_last and step and line not in earlier:
                    self._phases[at] = BETWEEN
                else:
                    self.numbers[at] = step
                    earlier.add(line)

    def _place_after_forwards(self) -> None:
        """Place what the program sends after the last forward, on lines that sent after no earlier one."""
        if len(self.ends) < 2 or self.ends[-1] < len(self._issued):
            return
        last = self.ends[-2]
        earlier = {_line(issued) for issued in self._issued[self._calls.first or 0 : last]}
        for at in reversed(range(last, len(self._issued))):
            origin = self._issued[at].origin  # outside of modules, of which gradients being off says nothing
            if origin.trigger is not None or origin.phase not in ("other", "no-grad forward"):
                return
            if _line(self._issued[at]) not in earlier:
                self._phases[at] = BETWEEN

    def _program_collectives(self, begin: int, end: int) -> list[int]:
        return [at for at in range(begin, min(end, len(self._issued))) if is_own(self._issued[at])]


def step_numbers(ends: Sequence[int], count: int) -> list[int]:
    """Return per collective the number of its step.

    Worked example: steps that end after 2 and after 3 collectives of 4 give 0, 0, 1, 2.
    """
    numbers: list[int] = []
    for step, end in enumerate([*ends, count]):
        numbers.extend([step] * (end - len(numbers)))
    return numbers
