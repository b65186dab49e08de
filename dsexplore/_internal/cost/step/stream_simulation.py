"""Simulation of one rank's step on the streams of its GPU: what overlaps, and what the compute stream waits for.

Kernels run in order on the compute stream, not before the CPU has launched them. A collective runs on the stream of its
group, once the CPU has issued it, after those issued there before it. When it may begin, and what waits for it:

* FSDP2 gathers: the first one of a forward begins when all earlier kernels have run. The gather of layer i begins once
  the parameters of layer i − 2 are copied out, in backward once those of the previous layer are
  (``FSDPParamGroup.wait_for_unshard``). The compute stream waits for it before it copies the parameters out.
* FSDP2 reductions: begin when their gradients are computed; the compute stream waits for each before it issues the next
  (``reduce_scatter_max_input_buffers`` is 1), and for all of them at the end of backward.
* DDP's buckets: begin when their gradients are computed; waited for at the end of backward.
* Functional collectives, as DTensor issues them: waited for where the program calls ``wait_tensor``.
* Any other: waited for immediately, or at the end of the phase if issued with ``async_op``.

Two collectives on the same link share it. A collective takes multiprocessors from the kernels that run concurrently.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.rank_program import Collective, Item, Kernels, Wait

COMPUTE_STREAM = "compute"
EXPOSED, IDLE = GAPS = ("exposed", "idle")
_NO_COMPUTE = (*GAPS, "receiving", "communication")
_FORWARD = ("forward", "no-grad forward")
_BACKWARD = ("backward", "recompute")


class Span(NamedTuple):
    """Activity of a stream; times are seconds from the start of the step.

    Attributes:
        stream: ``"compute"``, or the stream of a collective.
        start: time at which it begins.
        end: time at which it ends.
        kind: of kernels; ``"communication"``; of gaps of the compute stream ``"exposed"`` or ``"idle"``.
        module: the module that it belongs to.
        phase: of the step.
        op: of a collective; empty for kernels.
        axis: of a collective.
        seq: the number of a collective in the trace; −1 for kernels and gaps.
    """

    stream: str
    start: float
    end: float
    kind: str
    module: str
    phase: str
    op: str = ""
    axis: str = ""
    seq: int = -1

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end - self.start


class Gap(NamedTuple):
    """An interval in which the compute stream waits.

    Attributes:
        kind: ``"exposed"`` for a collective; ``"idle"`` for the CPU.
        module: whose kernels, or whose collective.
        phase: of the step.
        op: of the collective; empty for the CPU.
        axis: of the collective.
        why: see `Collective`.
    """

    kind: str
    module: str
    phase: str
    op: str = ""
    axis: str = ""
    why: str = ""


class SimulatedStep:
    """A step that has been simulated.

    Hundreds of thousands of spans are kept for each of many steps, so they are stored as columns.

    Attributes:
        what: of each span, kernels, a collective, or a gap of the compute stream.
        starts: start of each span, in seconds from the start of the step.
        ends: end of each span.
        seconds: of the whole step.
    """

    def __init__(self) -> None:
        self.what: list[Kernels | Collective | Gap] = []
        self.starts = array("d")
        self.ends = array("d")
        self.seconds = 0.0

    @cached_property
    def spans(self) -> list[Span]:
        """Activities of all streams, in the order in which they were issued."""
        return [_span(*fields) for fields in zip(self.what, self.starts, self.ends, strict=True)]

    @cached_property
    def totals(self) -> Mapping[str, float]:
        """{kind of span: seconds}; ``"receiving"``: the compute stream waits for another stage."""
        totals: dict[str, float] = defaultdict(float)
        for (kind, _axis, op, _why), seconds in self.seconds_by_reason.items():
            totals["receiving" if kind == "exposed" and op == "recv" else kind] += seconds
        return totals

    @cached_property
    def seconds_by_reason(self) -> Mapping[tuple[str, str, str, str], float]:
        """{(kind of span, and of a collective axis, op and ``why``): seconds}."""
        totals: dict[tuple[str, str, str, str], float] = defaultdict(float)
        for what, start, end in zip(self.what, self.starts, self.ends, strict=True):
            key = (what.kind, "", "", "") if isinstance(what, Kernels) else (what.kind, what.axis, what.op, what.why)
            totals[key] += end - start
        return totals

    @cached_property
    def phases(self) -> tuple[float, float]:
        """Seconds of the compute stream in forward (with the loss) and backward, including exposed communication."""
        forward = backward = other = 0.0
        for what, start, end in zip(self.what, self.starts, self.ends, strict=True):
            if isinstance(what, Collective) or is_receiving(what):
                continue
            if what.phase in _BACKWARD:
                forward, other = forward + other, 0.0
                backward += end - start
            elif what.phase in _FORWARD:
                forward += end - start
            elif what.phase == "other":
                other += end - start  # forward where a backward follows, as after the loss
        return forward, backward

    @property
    def communication(self) -> float:
        """Seconds that collectives run, hidden or not."""
        return self.totals["communication"]

    @property
    def receiving(self) -> float:
        """Seconds that the compute stream waits for messages of other stages."""
        return self.totals["receiving"]

    @property
    def exposed(self) -> float:
        """Seconds that the compute stream waits for collectives, without messages between stages."""
        return self.totals["exposed"]

    @property
    def idle(self) -> float:
        """Seconds that the compute stream waits for the CPU."""
        return self.totals["idle"]

    @property
    def compute(self) -> float:
        """Seconds that the compute stream is busy."""
        return sum(seconds for kind, seconds in self.totals.items() if kind not in _NO_COMPUTE)


def _span(what: Kernels | Collective | Gap, start: float, end: float) -> Span:
    if isinstance(what, Collective):
        return Span(what.stream, start, end, what.kind, what.module, what.phase, what.op, what.axis, what.seq)
    op, axis = (what.op, what.axis) if isinstance(what, Gap) else ("", "")
    return Span(
        stream=COMPUTE_STREAM,
        start=start,
        end=end,
        kind=what.kind,
        module=what.module,
        phase=what.phase,
        op=op,
        axis=axis,
    )


def is_receiving(what: Span | Kernels | Collective | Gap) -> bool:
    """Return True if a compute stream waits for a message from another stage."""
    return what.kind == "exposed" and not isinstance(what, Kernels) and what.op == "recv"


def play(items: list[Item], estimate: Estimate, slowdown: float, overlap: bool = True) -> SimulatedStep:
    """Simulate a program.

    Args:
        items: in program order.
        estimate: which of the three times of each item to use.
        slowdown: fraction by which a running collective slows concurrent kernels.
        overlap: whether the compute stream continues while a collective runs.
    """
    return _Streams(estimate, slowdown, overlap).play(items)


class _Streams:
    def __init__(self, estimate: Estimate, slowdown: float, overlap: bool) -> None:
        self.estimate, self.slowdown, self.overlap = estimate, slowdown, overlap
        self.played = SimulatedStep()
        self.now = 0.0
        """Time at which the compute stream becomes free."""
        self.host = 0.0
        """Time at which the CPU has launched everything so far."""
        self.free: dict[str, float] = {}
        self.links: dict[str, list[tuple[float, float]]] = {}
        self.running: list[tuple[float, float]] = []
        """Collectives that later kernels may overlap."""
        self.known: dict[int, tuple[Collective, float]] = {}
        self.unfinished: dict[int, None] = {}
        """Collectives that nothing has waited for yet."""
        self.copied_out: list[float] = [0.0, 0.0]
        self.gathering = ""
        """Phase of the latest gather; the first one of a forward waits for all earlier work, as FSDP2's root does."""
        self.reducing: int | None = None
        self.phase = ""

    def play(self, items: list[Item]) -> SimulatedStep:
        for item in items:
            if isinstance(item, Kernels):
                self._kernels(item)
            elif isinstance(item, Wait):
                self._wait(item.seq)
            else:
                self._issue(item)
        for seq in list(self.unfinished):
            self._wait(seq)
        self.played.seconds = self.now
        return self.played

    def _kernels(self, item: Kernels) -> None:
        if item.phase != self.phase:
            self._begin(item.phase)
        host = item.host[self.estimate]
        self.host += host
        seconds = item.seconds[self.estimate]
        if seconds <= 0:
            return
        # The last of a row's kernels cannot begin before the CPU launched it; the first began long before.
        ready = self.host - (host if host < seconds else seconds)
        if ready > self.now:
            self._gap(ready, Gap("idle", item.module, item.phase))
        end = self.now + seconds
        if self.running:
            end += self._beside(self.now, end) * self.slowdown
        self._add(item, self.now, end)
        self.now = end

    def _add(self, what: Kernels | Collective | Gap, start: float, end: float) -> None:
        self.played.what.append(what)
        self.played.starts.append(start)
        self.played.ends.append(end)

    def _begin(self, phase: str) -> None:
        """Begin another phase; at the end of backward, wait for all its collectives."""
        if phase not in _BACKWARD and self.phase in _BACKWARD:
            for seq in list(self.unfinished):
                self._wait(seq)
        self.phase = phase

    def _beside(self, start: float, end: float) -> float:
        """Return the seconds between `start` and `end` in which a collective runs."""
        self.running = [span for span in self.running if span[1] > start]
        return min(end - start, sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.running))

    def _gap(self, until: float, gap: Gap) -> None:
        if until > self.now:
            self._add(gap, self.now, until)
            self.now = until

    def _wait(self, seq: int) -> None:
        self.unfinished.pop(seq, None)
        if seq not in self.known:
            return
        item, end = self.known[seq]
        self._gap(min(self.host, end), Gap("idle", item.module, item.phase))
        self._gap(
            end, Gap(kind=EXPOSED, module=item.module, phase=item.phase, op=item.op, axis=item.axis, why=item.why)
        )
        if item.sync == "fsdp gather":
            self.copied_out.append(self.now)

    def _issue(self, item: Collective) -> None:
        if item.sync == "fsdp reduce" and item.op == "reduce_scatter" and self.reducing is not None:
            self._wait(self.reducing)
        self.host += item.host[self.estimate]
        start = max(self._may_begin(item), self.free.get(item.stream, 0.0))
        seconds = item.seconds[self.estimate]
        end = start + seconds + self._shared(item.link, start, start + seconds)
        self.free[item.stream] = end
        self.known[item.seq] = item, end
        if seconds > 0:
            self.links.setdefault(item.link, []).append((start, end))
            if self.slowdown:
                self.running.append((start, end))
            self._add(item, start, end)
        self.unfinished[item.seq] = None
        if item.sync == "fsdp reduce":
            self.reducing = item.seq
        if item.sync in ("wait", "recv") or not self.overlap:
            self._wait(item.seq)
            self.known.pop(item.seq)

    def _may_begin(self, item: Collective) -> float:
        if item.sync == "fsdp gather" and self.overlap:
            is_first, self.gathering = self.gathering != item.phase, item.phase
            if item.phase in _FORWARD:
                return max(self.now if is_first else self.copied_out[-2], self.host)
            return max(self.copied_out[-1], self.host)
        if item.sync == "fsdp reduce" and item.op == "all_reduce" and self.reducing in self.known:
            return max(self.now, self.host, self.known[self.reducing][1])
        return max(self.now, self.host)

    def _shared(self, link: str, start: float, end: float) -> float:
        """Return the seconds by which others on its link delay a collective: they share its bandwidth."""
        others = [span for span in self.links.get(link, ()) if span[1] > self.now or span[1] > start]
        self.links[link] = others
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in others)


SECONDS_OF_MODULES = ("compute", "communication", "exposed", "idle")


def seconds_by_module(played: SimulatedStep, bubble: float) -> dict[tuple[str, str], dict[str, float]]:
    """Return {(module, phase): {one of `SECONDS_OF_MODULES`: seconds}} of a rank's step, in the order of their begin.

    Args:
        played: the step.
        bubble: seconds for which the rank waits for other stages, which count as idle outside of modules.
    """
    totals: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(SECONDS_OF_MODULES, 0.0))
    for span in played.spans:
        if is_receiving(span):
            continue
        name = span.kind if span.kind in (*GAPS, "communication") else "compute"
        totals[span.module, span.phase][name] += span.seconds
    if bubble:
        totals["", "other"]["idle"] += bubble
    return totals
