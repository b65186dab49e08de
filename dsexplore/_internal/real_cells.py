"""`RealCells`: runs cells of a notebook on real ranks and shows their output and errors, for ``%%commtrace --real``."""

from __future__ import annotations

import marshal
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from dsexplore._internal import run_cell
from dsexplore._internal.analysis.hangs.explain import explain_trace
from dsexplore._internal.analysis.hangs.rank_calls import RankEnd
from dsexplore._internal.capture.stack.source_lines import file_name
from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import once_interrupted
from dsexplore._internal.trace.ends import STOPPED, raised
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_ranks, format_seconds
from dsexplore._internal.views.ranks.rank_texts import RankText, as_html, as_text
from dsexplore._internal.worlds.real.cell_end import CellRun
from dsexplore._internal.worlds.real.cell_names import SentNames, UsedNames, pack_names, used_names
from dsexplore._internal.worlds.real.engine_cluster import EngineCluster
from dsexplore._internal.worlds.real.messages import Cell
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome
from dsexplore._internal.worlds.real.rank_world import RankWorld
from dsexplore._internal.worlds.real.run_ranks import RanksFailedError

_INTERRUPTED = "KeyboardInterrupt"
INTERVAL = 0.25
"""Seconds between two drawings of the ranks' output while they run."""
_NO_IPYTHON = (
    "this cell uses {what} of IPython, which local ranks do not have: put it into a cell of its own, without --real"
)


class RankScreen:
    """Shows the output of ranks while a cell runs: in a notebook as collapsible blocks, elsewhere as lines.

    With ``DSEXPLORE_PROGRESS=0`` in the environment, the output is shown at the end only.

    Args:
        shell: the shell that runs the cell.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._in_notebook = hasattr(shell, "kernel")
        self._is_live = os.environ.get("DSEXPLORE_PROGRESS") != "0"
        self._due = time.monotonic() + INTERVAL
        self._html = ""
        self._handle: Any = None
        self._printed: dict[int, int] = {}

    def on_output(self, ranks: Sequence[Any]) -> float | None:
        """Draw new output if the last drawing is `INTERVAL` seconds ago; return the seconds until then, else None."""
        remaining = self._due - time.monotonic()
        if not self._is_live:
            return None
        if remaining > 0:
            return remaining
        self._due = time.monotonic() + INTERVAL
        texts = {rank.rank: RankText(rank.output.text) for rank in ranks}
        if self._in_notebook:
            self._draw(texts)
        else:
            self._print_lines(texts)
        return None

    def finish(self, texts: Mapping[int, RankText]) -> None:
        """Draw the complete output, with values."""
        if self._in_notebook:
            self._draw(texts)
        elif self._printed:
            self._print_lines({rank: RankText(text.output + "\n") for rank, text in texts.items()})
            values = as_text({rank: RankText("", text.value) for rank, text in texts.items()})
            if values:
                print(values)
        elif text := as_text(texts):
            print(text)

    def _draw(self, texts: Mapping[int, RankText]) -> None:
        """Draw the blocks of a notebook in place of the last ones, if they have changed."""
        html = as_html(texts)
        if html == self._html:
            return
        self._html = html
        bundle = {"text/html": html, "text/plain": as_text(texts)}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print_lines(self, texts: Mapping[int, RankText]) -> None:
        """Print the complete lines that each rank has written since the last call."""
        for rank, text in texts.items():
            start = self._printed.get(rank, 0)
            end = text.output.rfind("\n") + 1
            self._printed[rank] = max(start, end)
            if end > start and text.output[start:end].strip():
                print(as_text({rank: RankText(text.output[start:end])}))


class RealCells:
    """The real ranks of a shell: a new world for each cell, or one that stays open.

    Args:
        shell: the shell that runs the cells.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.open_world: RankWorld | EngineCluster | None = None
        self.ended_world: RankWorld | EngineCluster | None = None
        """World that stayed open until a cell ended it; cells for it must not run elsewhere. None if there is none."""
        self._sent_names = SentNames()

    def open(self, world: RankWorld | EngineCluster) -> None:
        """Open a world that stays open between cells."""
        self.close()
        world.open()
        self.open_world, self._sent_names = world, SentNames()

    def check_not_ended(self) -> None:
        """Check that no earlier cell has ended the open world.

        Raises:
            UsageError: one has; the message says how to open it again.
        """
        if self.ended_world is not None:
            raise UsageError(
                f"the world of {self.ended_world} was ended by an earlier cell: open it again "
                f"(%commtrace {self.ended_world.options}), or give it up (%commtrace --close) and run this cell here"
            )

    def close(self) -> str:
        """Close the open world and return its description; empty if there is none."""
        world, self.open_world, self.ended_world = self.open_world, None, None
        if world is None:
            return ""
        world.close()
        return str(world)

    def run(
        self, cell: str, *, world: RankWorld | EngineCluster | None, ranks: Sequence[int] | None, timeout: float
    ) -> CellRun:
        """Run a cell on the ranks of a world that is opened for it, or of the open one, and show their output.

        Args:
            cell: body of the cell.
            world: world to open for the cell; None for the open one.
            ranks: ranks of the open world that run it; None for all.
            timeout: seconds for the cell.

        Raises:
            UsageError: the cell uses IPython, or its names cannot be sent to the ranks.
            KeyboardInterrupt: Ctrl-C; the interrupt's ``run`` is the `CellRun`.
        """
        compiled = run_cell.compile_cell(self._shell, cell)
        used = used_names([code for code in (compiled.body, compiled.last) if code is not None])
        _refuse_ipython(compiled.source, used)
        notebook = _visible(self._shell)
        sent_names = self._sent_names if world is None else SentNames()
        names = sent_names.choose(used, notebook)
        if world is None and ranks is None:
            names = sent_names.changed(names)
        message = self._message(compiled, pack_names(names))
        running = world or self.open_world
        assert running is not None, "without an open world, the caller passes one"
        screen = RankScreen(self._shell)
        try:
            if world is not None:
                world.open()
            run = running.run(message, ranks=ranks, timeout=timeout, on_output=screen.on_output)
            sent_names.note_run(used, notebook)
        except KeyboardInterrupt as interrupt:
            interrupted = getattr(interrupt, "run", None)
            if isinstance(interrupted, CellRun):
                with once_interrupted():
                    interrupt.run = self._shown(interrupted, screen, message, cell)  # type: ignore[attr-defined]
            raise
        finally:
            if world is not None:
                world.close()
            if self.open_world is not None and not self.open_world.is_open:
                self.ended_world, self.open_world = self.open_world, None
        return self._shown(run, screen, message, cell)

    def _message(self, compiled: run_cell.CompiledCell, names: bytes) -> Cell:
        """Return the cell for its ranks, with the sources of cells that define functions among the pickled names."""
        files = getattr(self._shell.compile, "_filename_map", {})
        sources = {file: _text_of(file) for file in files if file.encode() in names}
        return Cell(
            code=marshal.dumps((compiled.body, compiled.last)),
            file=compiled.file,
            sources={**sources, compiled.file: compiled.source},
            names=names,
            save="",
        )

    def _shown(self, run: CellRun, screen: RankScreen, message: Cell, cell: str) -> CellRun:
        """Show the output and the values of the ranks; return the run, with ``In[3]`` for the file name of a cell."""
        quiet = DisplayHook.semicolon_at_end_of_expression(cell)
        screen.finish(
            {outcome.rank: RankText(outcome.output, "" if quiet else outcome.shown) for outcome in run.outcomes}
        )
        trace = _name_cells(Trace() if run.trace is None else run.trace, message.sources)
        trace.results = {outcome.rank: outcome.value for outcome in run.outcomes if outcome.status == "ok"}
        names = {file: file_name(file) for file in message.sources}
        outcomes = tuple(
            replace(outcome, traceback=_renamed(outcome.traceback, names), stack=_renamed(outcome.stack, names))
            for outcome in run.outcomes
        )
        return replace(run, trace=trace, outcomes=outcomes)


def _text_of(file: str) -> str:
    import linecache

    return "".join(linecache.getlines(file))


def _visible(shell: InteractiveShell) -> Mapping[str, Any]:
    """Return the user's names and values, without those that IPython defines."""
    hidden = shell.user_ns_hidden
    missing = object()
    return {name: value for name, value in shell.user_ns.items() if hidden.get(name, missing) is not value}


def _refuse_ipython(source: str, used: UsedNames) -> None:
    """Raise UsageError if a cell uses a magic, a shell command or ``get_ipython``, which ranks do not have."""
    if "get_ipython" not in used.read:
        return
    call = re.search(r"get_ipython\(\)\.(run_line_magic|run_cell_magic|system|getoutput)\('([^']*)'", source)
    what = "get_ipython()"
    if call is not None:
        what = f"the magic %{call[2]}" if "magic" in call[1] else f"the shell command !{call[2]}"
    raise UsageError(_NO_IPYTHON.format(what=what))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for file, name in names.items():
        text = text.replace(file, name)
    return text


def _name_cells(trace: Trace, files: Mapping[str, str]) -> Trace:
    """Return the trace with ``In[3]`` for the file names of cells; ranks do not know the numbers of cells."""
    tables = trace.tables
    names = {file: file_name(file) for file in files}
    if not tables.events.height:
        return trace
    renamed = pl.col("source").str.replace_many(list(names), list(names.values()))
    return Trace(replace(tables, events=tables.events.with_columns(renamed)))


def failure(run: CellRun, timeout: float) -> RanksFailedError:
    """Return the error for a cell that failed on some ranks or timed out; it is shown without frames of the magic."""
    lines = []
    failed = sorted(
        (outcome for outcome in run.outcomes if outcome.status in ("error", "died")), key=lambda outcome: outcome.rank
    )
    first = next((outcome for outcome in run.outcomes if outcome.rank == run.first_failure), None)
    if first is not None:
        same_error = [outcome.rank for outcome in failed if (outcome.error, outcome.line) == (first.error, first.line)]
        lines.append(f"{format_ranks(same_error)}: {first.error}{_cell_line(first)}")
        others = [outcome for outcome in failed if outcome.rank not in same_error]
        lines += [
            f"rank {outcome.rank}: {outcome.error.partition(chr(10))[0]}{_cell_line(outcome)}" for outcome in others
        ]
        lines += _mismatches(run)
    else:
        ends = ", and its ranks were ended" if run.why_closed else f": {_interrupted_text(run)}"
        lines.append(f"the cell had not ended after {format_seconds(timeout)} (--timeout){ends}")
        lines += hang_sentences(run) if run.why_closed else []
    lines += _waiting(run)
    if run.why_closed:
        lines.append(f"the ranks were ended: {run.why_closed}")
    details = [first.traceback.rstrip()] if first is not None and first.traceback else stack_texts(run)
    text = "\n".join([*lines, "", *details])
    error = RanksFailedError(run, text)
    error._render_traceback_ = text.splitlines  # type: ignore[attr-defined]  # a protocol of IPython
    return error


def explain_interrupt(interrupt: KeyboardInterrupt, run: CellRun | None, end: str) -> None:
    """Add notes to an interrupt about where the ranks were, and show it without the frames of the magic.

    Args:
        interrupt: the interrupt.
        run: run of the cell until then; None if it had not begun.
        end: last note, which says what happened to the ranks.
    """
    if run is None:
        interrupt.add_note(end)
        return
    notes = [*hang_sentences(run), *stack_texts(run), end]
    for note in notes:
        interrupt.add_note(note)
    text = "\n".join(["KeyboardInterrupt", *notes])
    interrupt._render_traceback_ = text.splitlines  # type: ignore[attr-defined]  # a protocol of IPython


def _mismatches(run: CellRun) -> list[str]:
    """Return a sentence on mismatched calls if a collective failed; backends report only that peers have ended."""
    if run.trace is None or "failed" not in run.trace.events["state"]:
        return []
    report = explain_trace(run.trace)
    return [report.verdict()] if report.reason.startswith("other ") else []


def hang_sentences(run: CellRun) -> list[str]:
    """Return a sentence that says which ranks waited and which rank caused it; empty if no rank waited for another."""
    if run.trace is None:
        return []
    stacks = {outcome.rank: outcome.stack for outcome in run.outcomes if outcome.stack}
    report = explain_trace(
        run.trace, stacks, {outcome.rank: _rank_end(outcome) for outcome in run.outcomes}, no_progress_for=""
    )
    says_nothing = report.reason == "none" or (report.reason == "unknown" and report.waiting.is_empty())
    return [] if says_nothing else [report.verdict()]


def stack_texts(run: CellRun) -> list[str]:
    """Return the stack of each rank that was ended while it ran the cell, as text."""
    return [
        f"rank {outcome.rank} was at, innermost first:\n{outcome.stack}" for outcome in run.outcomes if outcome.stack
    ]


def _interrupted_text(run: CellRun) -> str:
    """Return which engines left the cell when interrupted, at which lines, and which ones still run it."""
    at: dict[str, list[int]] = {}
    for outcome in run.outcomes:
        if outcome.status == "error" and outcome.error.startswith(_INTERRUPTED):
            at.setdefault(_cell_line(outcome) or " before it had begun", []).append(outcome.rank)
    texts = [f"{format_ranks(ranks)} left it when interrupted{where}" for where, ranks in at.items()]
    busy = [outcome.rank for outcome in run.outcomes if outcome.status == "stuck"]
    if busy:
        runs = "runs it, and does" if len(busy) == 1 else "run it, and do"
        texts.append(f"{format_ranks(busy)} still {runs} not answer, as inside a collective, which no interrupt ends")
    return "; ".join(texts) or "it has ended since"


def _rank_end(outcome: RankOutcome[Any]) -> RankEnd | None:
    """Return how a rank ended, for the explanation of a hang; None if it ran until it was interrupted."""
    if outcome.was_stopped:
        return RankEnd.of(STOPPED)
    if outcome.status == "died":
        was_killed = outcome.error.startswith("killed")
        return RankEnd("killed" if was_killed else "ended", f"{'was ' if was_killed else ''}{outcome.error}")
    if outcome.status == "ok":
        return RankEnd("ended", "ended the cell")
    if outcome.status != "error" or outcome.error.startswith(_INTERRUPTED):
        return None
    kind, _, text = outcome.error.partition(chr(10))[0].partition(": ")
    return RankEnd.of(raised(kind, text, f"cell line {outcome.line}" if outcome.line else ""))


def _cell_line(outcome: RankOutcome[Any]) -> str:
    return f" (cell line {outcome.line})" if outcome.line is not None else ""


def _waiting(run: CellRun) -> list[str]:
    """Return lines on ranks that had not finished, with the collective they waited in, or their line of the program."""
    stuck = [outcome for outcome in run.outcomes if outcome.status == "stuck" and run.why_closed]
    at: dict[str, list[int]] = {}
    for outcome in stuck:
        at.setdefault(_where(outcome, run.trace), []).append(outcome.rank)
    return [f"{format_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} {where}" for where, ranks in at.items()]


def _where(outcome: RankOutcome[Any], trace: Trace | None) -> str:
    """Return where an unfinished rank was, as a clause that follows "was"."""
    if outcome.was_stopped:
        return STOPPED.removeprefix("was ")
    events = trace.events.filter(pl.col("rank") == outcome.rank) if trace is not None else pl.DataFrame()
    open_ones = events.filter(pl.col("state").is_in(["scheduled", "started"])) if events.height else events
    if open_ones.height:
        last = open_ones.row(-1, named=True)
        group = last["axis"] or last["group"]
        return f"waiting in {last['op']} ({last['source']}, group {group}, {format_bytes(last['message_bytes'])})"
    lines = re.findall(r'File "([^"]*)", line (\d+)', outcome.stack)
    place = next((f"{file}:{line}" for file, line in lines if file.startswith("In[")), "")
    place = place or next((f"{file}:{line}" for file, line in lines), "an unknown line")
    return f"at {place}"
