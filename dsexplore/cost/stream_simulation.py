"""A step of one rank, played on the streams of its GPU: what overlaps, and what the compute stream waits for.

Kernels run one after another on the compute stream, no earlier than the CPU has launched them. A collective runs on its
own stream, after those issued before it there. When it may begin, and what waits for it:

* FSDP2 gathers: a forward's first one begins when all before it is computed; later the gather of layer i may begin once
  the parameters of layer i − 2 are copied out, in backward once those of the layer before it are
  (``FSDPParamGroup.wait_for_unshard``). The compute stream waits for it before it copies the parameters out.
* FSDP2 reductions: begin when their gradients are there; the compute stream waits for one before it issues the next
  (``reduce_scatter_max_input_buffers`` is 1), and for all of them at the end of backward.
* DDP's buckets: begin when their gradients are there; waited for at the end of backward.
* functional collectives, as DTensor issues them: waited for where the program calls ``wait_tensor``.
* any other: waited for at once, or with ``async_op`` at the end of the phase.

Two collectives on the same link share it. A collective takes multiprocessors from the kernels that run beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsexplore.cost.rank_program import Collective, Item, Kernels, Wait

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a stream did: seconds from the start of the step.

    Attributes:
        stream: ``"compute"``, or the stream of a collective.
        start: when it began.
        end: when it was over.
        kind: of kernels; ``"communication"``; of gaps of the compute stream ``"exposed"`` or ``"idle"``.
        module: that it belongs to.
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
        """How long it took."""
        return self.end - self.start


@dataclass
class Played:
    """A step that has been simulated."""

    spans: list[Span] = field(default_factory=list)
    end: float = 0.0

    def sum(self, *kinds: str) -> float:
        """Seconds of all spans of those kinds."""
        return sum(span.seconds for span in self.spans if span.kind in kinds)

    @property
    def exposed(self) -> float:
        """Seconds that the compute stream waited for collectives."""
        return self.sum("exposed")

    @property
    def idle(self) -> float:
        """Seconds that the compute stream waited for the CPU or for another stage."""
        return self.sum("idle")

    @property
    def compute(self) -> float:
        """Seconds that the compute stream was busy."""
        return sum(span.seconds for span in self.spans if span.stream == COMPUTE and span.kind not in GAPS)


GAPS = ("exposed", "idle")
_BACKWARD = ("backward", "recompute")


def play(items: list[Item], end: int, slowdown: float, overlap: bool = True) -> Played:
    """Simulate a program.

    Args:
        items: in program order.
        end: which of the three times to use: 0 low, 1 expected, 2 high.
        slowdown: by which part a running collective slows the kernels beside it.
        overlap: whether the compute stream goes on while a collective runs.
    """
    return _Streams(end, slowdown, overlap).play(items)


class _Streams:
    def __init__(self, end: int, slowdown: float, overlap: bool) -> None:
        self.which, self.slowdown, self.overlap = end, slowdown, overlap
        self.played = Played()
        self.now = 0.0
        """When the compute stream is free."""
        self.host = 0.0
        """When the CPU has launched all that it met."""
        self.free: dict[str, float] = {}
        self.links: dict[str, list[tuple[float, float]]] = {}
        self.running: list[tuple[float, float]] = []
        """Collectives that kernels may still meet."""
        self.known: dict[int, tuple[Collective, float]] = {}
        self.unfinished: dict[int, None] = {}
        """Collectives that nobody has waited for yet."""
        self.copied_out: list[float] = [0.0, 0.0]
        self.gathering = ""
        """The phase of the latest gather: a forward's first one waits for what ran before, as FSDP2's root does."""
        self.reducing: int | None = None
        self.phase = ""

    def play(self, items: list[Item]) -> Played:
        for item in items:
            if isinstance(item, Kernels):
                self._kernels(item)
            elif isinstance(item, Wait):
                self._wait(item.seq)
            else:
                self._issue(item)
        for seq in list(self.unfinished):
            self._wait(seq)
        self.played.end = self.now
        return self.played

    def _kernels(self, item: Kernels) -> None:
        if item.phase not in _BACKWARD and self.phase in _BACKWARD:
            for seq in list(self.unfinished):
                self._wait(seq)
        self.phase = item.phase
        self.host += item.host
        seconds = item.seconds[self.which]
        if seconds <= 0:
            return
        # The last of a row's kernels cannot begin before the CPU launched it; the first began long before.
        ready = self.host - min(item.host, seconds)
        if ready > self.now:
            self._gap(ready, "idle", item.module, item.phase)
        end = self.now + seconds
        if self.slowdown:
            end += self._beside(self.now, end) * self.slowdown
        self.played.spans.append(Span(COMPUTE, self.now, end, item.kind, item.module, item.phase))
        self.now = end

    def _beside(self, start: float, end: float) -> float:
        """Seconds between the two in which a collective runs."""
        self.running = [span for span in self.running if span[1] > start]
        return min(end - start, sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.running))

    def _gap(self, until: float, kind: str, module: str, phase: str, op: str = "", axis: str = "") -> None:
        if until > self.now:
            self.played.spans.append(Span(COMPUTE, self.now, until, kind, module, phase, op, axis))
            self.now = until

    def _wait(self, seq: int) -> None:
        self.unfinished.pop(seq, None)
        if seq not in self.known:
            return
        item, end = self.known[seq]
        self._gap(min(self.host, end), "idle", item.module, item.phase)
        self._gap(end, "exposed", item.module, item.phase, item.op, item.axis)
        if item.rule == "fsdp gather":
            self.copied_out.append(self.now)

    def _issue(self, item: Collective) -> None:
        if item.rule == "fsdp reduce" and item.op == "reduce_scatter" and self.reducing is not None:
            self._wait(self.reducing)
        start = max(self._may_begin(item), self.free.get(item.stream, 0.0))
        seconds = item.seconds[self.which]
        end = start + seconds + self._shared(item.link, start, start + seconds)
        self.free[item.stream] = end
        self.known[item.seq] = item, end
        if seconds > 0:
            self.links.setdefault(item.link, []).append((start, end))
            self.running.append((start, end))
            self.played.spans.append(
                Span(item.stream, start, end, "communication", item.module, item.phase, item.op, item.axis, item.seq)
            )
        self.unfinished[item.seq] = None
        if item.rule == "fsdp reduce":
            self.reducing = item.seq
        if item.rule in ("wait", "recv") or not self.overlap:
            self._wait(item.seq)
            self.known.pop(item.seq)

    def _may_begin(self, item: Collective) -> float:
        if item.rule == "fsdp gather" and self.overlap:
            is_first, self.gathering = self.gathering != item.phase, item.phase
            if item.phase == "forward":
                return max(self.now if is_first else self.copied_out[-2], self.host)
            return max(self.copied_out[-1], self.host)
        if item.rule == "fsdp reduce" and item.op == "all_reduce" and self.reducing in self.known:
            return max(self.now, self.host, self.known[self.reducing][1])
        return max(self.now, self.host)

    def _shared(self, link: str, start: float, end: float) -> float:
        """Seconds by which a collective is longer because others run on its link: together they take as long as one
        after the other."""
        others = [span for span in self.links.get(link, ()) if span[1] > self.now or span[1] > start]
        self.links[link] = others
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in others)
