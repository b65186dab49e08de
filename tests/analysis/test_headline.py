"""The headline: what it says of programs, and that it says nothing where there is nothing to say.

Modules: ``analysis/headline.py``, ``analysis/traffic.py``, ``analysis/headline_report.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import planted
import polars as pl
import pytest

import dsexplore
from dsexplore._internal.analysis.headline_report import memory, report
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes
from tests.analysis.few_events import row, trace_of


def said(trace: Trace) -> list[str]:
    return [one.text for one in trace.headline().sentences]


def test_what_a_step_sends_by_axis_and_for_which_module() -> None:
    trace = trace_of(
        row(0, phase="start-up", wire_bytes=5120, op="broadcast"),
        row(1, owner="Net.layers.0", wire_bytes=1024, cause="FSDP pre_forward", op="all_gather", axis="dp"),
        row(2, owner="Net.layers.1", wire_bytes=2048, cause="FSDP pre_forward", op="all_gather", axis="dp"),
        row(3, owner="Net.head", wire_bytes=1024),
    )
    assert said(trace)[:2] == [
        "A step sends 4 KiB on the wire per rank: 3 KiB on dp and 1 KiB on tp; start-up sent 5 KiB per rank before it.",
        "Most, 3 KiB (75 %), is for Net.layers.* (×2): FSDP gathers parameters.",
    ]
    assert trace.headline().trace(1).events["seq"].to_list() == [1, 2]
    assert trace.headline().sentences[1].module == "Net.layers.0"
    frame = trace.headline().to_frame()
    assert frame.rows() == [("dp", 2.0, 2048.0, 3072.0, None), ("tp", 1.0, 1024.0, 1024.0, None)]


def test_a_pipeline_s_sends_are_named_by_what_they_carry() -> None:
    trace = trace_of(row(0, owner="Net", op="send", cause="pipeline schedule", axis="pp", wire_bytes=1024))
    assert said(trace)[1] == "All of it is for Net: stages pass activations and gradients on."


def test_what_is_not_all_is_not_100_percent() -> None:
    trace = trace_of(row(0, owner="Net.head", wire_bytes=2**20), row(1, owner="Net.scale", wire_bytes=12))
    assert said(trace)[1].startswith("Most, 1 MiB (over 99 %), is for Net.head")


def test_several_ranks_and_steps_are_means_and_it_says_so() -> None:
    rows = [row(i, rank=i % 2, step=i // 4, wire_bytes=1024 * (1 + i % 2)) for i in range(8)]
    assert said(trace_of(*rows))[0] == (
        "A step sends 3 KiB on the wire per rank (mean of 2 ranks, 2 KiB to 4 KiB; 2 steady steps, equal), all on tp."
    )
    assert said(trace_of(*rows[:2], *[{**r, "rank": 0} for r in rows[4:6]]))[0].startswith("A step sends")
    same = [row(i, rank=i, wire_bytes=1024) for i in range(2)]
    assert said(trace_of(*same))[0] == "A step sends 1 KiB on the wire per rank (mean of 2 ranks), all on tp."


def test_steps_of_one_rank_that_are_unlike_show_how_far() -> None:
    unlike = [row(i, step=i, wire_bytes=1024 * (1 + 2 * i)) for i in range(2)]
    assert said(trace_of(*unlike))[0] == (
        "A step sends 2 KiB on the wire per rank (mean of 2 steps, 1 KiB to 3 KiB), all on tp."
    )
    alike = [row(i, step=i, wire_bytes=1024) for i in range(2)]
    assert said(trace_of(*alike))[0] == "A step sends 1 KiB on the wire per rank (2 steady steps, equal), all on tp."


@pytest.mark.parametrize(
    ("sizes", "said_of_them"),
    [
        ((3072, 1024, 1024), "(2 steady steps, equal), all on tp; step 0 sent 2 KiB more."),
        ((1024, 1024, 512, 1024), "(3 steady steps, equal), all on tp; step 2 sent 512 B less."),
        ((1024, 2048, 4096), "A step sends 2.3 KiB on the wire per rank (mean of 3 steps, 1 KiB to 4 KiB), all on tp."),
    ],
)  # fmt: skip
def test_the_figure_is_that_of_steady_steps(sizes: tuple[int, ...], said_of_them: str) -> None:
    rows = [row(i, step=i, wire_bytes=size) for i, size in enumerate(sizes)]
    assert said(trace_of(*rows))[0].endswith(said_of_them)


def test_of_two_steps_of_another_kind_the_last_is_shown() -> None:
    trace = trace_of(row(0, wire_bytes=1024), row(1, wire_bytes=1024), row(2, step=1, wire_bytes=1024))
    assert said(trace)[0] == (
        "A step sends 1 KiB on the wire per rank (the last of 2 steps), all on tp; step 0 sent 1 KiB more."
    )


def test_a_recording_that_stopped_says_where_before_all_else_and_names_no_step_s_size() -> None:
    rows = [row(i, step=i, wire_bytes=1024) for i in range(2)]
    tables = trace_of(*rows).tables
    notes = ("the recording ended early, with ValueError",)
    for whole, then in ((0, "Until then the program sends 1 KiB"), (1, "A whole step sends 1 KiB")):
        stopped = Trace(replace(tables, info=replace(tables.info, notes=notes, whole_steps=whole)))
        first, second, *_ = said(stopped)
        assert first.startswith("The recording stopped with ValueError in step 1: its last collective was all_reduce")
        assert second.startswith(then)
        assert "A step" not in first + second


def test_only_start_up_nothing_on_the_wire_and_nothing_at_all() -> None:
    assert said(trace_of(row(0, phase="start-up"))) == ["Start-up sends 1.5 KiB per rank; no step was recorded."]
    assert said(trace_of(row(0, group_size=1, wire_bytes=0))) == ["A step puts nothing on the wire."]
    assert said(dsexplore.Trace()) == []
    assert dsexplore.Trace().headline().verdict() == "Nothing is sent: the program called no collective."
    assert said(trace_of(row(0, phase="other", owner="")))[0].startswith("The program sends 1.5 KiB")


def test_exposed_time_is_that_of_calls_that_wait() -> None:
    ms = 1_000_000
    trace = trace_of(
        row(0, start=0, end=4 * ms),
        row(1, start=2 * ms, end=6 * ms, is_async=True),  # 2 ms of it beside the first
        row(2, start=10 * ms, end=16 * ms, is_async=True, axis="dp"),
    )
    assert said(trace)[-1] == (
        "Collectives are under way for 12 ms of the 16 ms from the start of the step's first collective to the end "
        "of its last; "
        "for 4 ms of it the program waits in the call, exposed."
    )
    assert dict(trace.headline().to_frame().select("axis", "ms").iter_rows()) == {"tp": 6.0, "dp": 6.0}
    none = trace_of(row(0, start=0, end=4 * ms, is_async=True))
    assert said(none)[-1].endswith("what of it compute hides is not known, as no call waits for its collective.")
    later = trace_of(row(0, start=0, end=4 * ms, is_async=True, waited=3 * ms))
    assert said(later)[-1].endswith("for 3 ms of it the program waits, exposed.")
    assert not any("under way" in text for text in said(trace_of(row(0))))


def test_text_and_html_begin_with_it() -> None:
    trace = planted.trace_of("freed_too_soon", True)
    sentences = said(trace)
    shown = trace._repr_mimebundle_()
    assert shown["text/plain"].splitlines()[1 : 1 + len(sentences)] == [f"  {text}" for text in sentences]
    assert shown["text/html"].index("A step sends") < shown["text/html"].index('class="tree"')
    own = trace.headline()._repr_mimebundle_()
    assert own["text/plain"] == "\n".join(sentences)
    assert "A step sends" in own["text/html"]


def test_each_sentence_links_to_an_element_of_the_page() -> None:
    html = planted.trace_of("small_fsdp", True)._repr_mimebundle_()["text/html"]
    links = re.findall(r'href="#([^"]+)"', html)
    assert len(links) == 3
    for link in links:
        assert html.count(f'id="{link}"') == 1
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def ids_of(view: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', view))


def test_links_lead_nowhere_but_into_their_own_view() -> None:
    """Notebooks are one page each, and several views on it may have the same sentence."""
    first, second = (trace_of(row(0), row(1, phase=phase)) for phase in ("forward", "backward"))
    before = trace_of(row(0))
    for view, other in ((first, second), (before.diff(first), before.diff(second))):
        assert view.headline().sentences == other.headline().sentences
        shown, again, beside = (one._repr_mimebundle_()["text/html"] for one in (view, view, other))
        assert ids_of(shown)
        assert shown == again
        assert not ids_of(shown) & ids_of(beside)
        assert set(re.findall(r'href="#([^"]+)"', shown)) <= ids_of(shown)


def test_sentences_that_say_the_same_are_equal() -> None:
    one, same = (trace_of(row(0), row(1)).headline().sentences for _ in range(2))
    assert one == same
    assert one != trace_of(row(0), row(1, axis="dp")).headline().sentences


def test_a_report_answers_in_words() -> None:
    trace = planted.trace_of("large_start_up", True)
    answers = dict(report(trace.headline()))
    assert answers["What does start-up alone send?"].startswith(
        "33.1 KiB per rank, once: broadcast (model broadcast) 33"
    )
    implicit = answers["What do implicit redistributes send?"]
    assert implicit == "Nothing: every redistribute is one that the program asked for."
    assert answers["Which modules send it?"] == "DistributedDataParallel 1.5 KiB (100 %: DDP reduces gradients)."
    linear = planted.D * 8 + 1
    parameters = 4 * (planted.D * 8 * planted.D + linear)
    words = answers["What memory does a rank need?"]
    assert words.startswith(
        f"Parameters {format_bytes(parameters)} and gradients {format_bytes(4 * linear)} of rank 0. "
    )
    assert f"two tensors like each parameter, {format_bytes(8 * linear)}." in words
    assert "What made this report?" not in answers


def test_a_report_names_the_five_places_that_send_most_and_counts_the_others() -> None:
    rows = [row(number, owner=f"Net.{name}", wire_bytes=1024 * (7 - number)) for number, name in enumerate("abcdefg")]
    answer = dict(report(trace_of(*rows).headline()))["Which modules send it?"]
    assert re.findall(r"Net\.(\w) (\d) KiB", answer) == [("a", "7"), ("b", "6"), ("c", "5"), ("d", "4"), ("e", "3")]
    assert answer.endswith("; 2 more.")


def test_a_report_of_several_runs_names_the_command_of_each() -> None:
    tables = trace_of(row(0)).tables
    notes = ("made by: dsexplore run a.py", "another note", "made by: dsexplore run b.py")
    answers = dict(report(Trace(replace(tables, info=replace(tables.info, notes=notes))).headline()))
    assert answers["What made this report?"] == "dsexplore run a.py; dsexplore run b.py"


def test_a_report_says_what_is_unasked_gathered_and_unknown() -> None:
    answers = dict(report(planted.trace_of("optimizer_gathers", True).headline()))
    assert answers["What do implicit redistributes send?"].startswith(
        "144 redistributes, 202.5 KiB per rank and step: aten.addmm S(0)→R ×90"
    )
    assert "12.1 KiB for the largest group that FSDP gathers" in answers["What memory does a rank need?"]
    assert answers["What does start-up alone send?"] == "Nothing."
    assert dict(report(trace_of(row(0)).headline()))["What memory does a rank need?"].startswith("No estimate:")


def test_the_memory_of_a_rank_says_whether_the_others_hold_as_much() -> None:
    def held(*sizes: int) -> str:
        rows = [
            {"rank": rank, "module": "Net", "name": "Net.weight", "local_bytes": size, "shared_with": "",
             "requires_grad": True}
            for rank, size in enumerate(sizes)
        ]  # fmt: skip
        return memory(Tables(parameters=pl.DataFrame(rows, schema_overrides=schema.PARAMETERS)))

    assert " 1 KiB of rank 0. " in held(1024)
    assert " 1 KiB of rank 1, as of the others. " in held(1024, 1024)
    assert " 2 KiB of rank 0, which holds most. " in held(2048, 1024)


def test_a_page_has_the_report_and_the_command_that_made_it(tmp_path: Path) -> None:
    tables = trace_of(row(0)).tables
    info = replace(tables.info, notes=("made by: dsexplore run --mesh dp=8 train.py",))
    page = Trace(replace(tables, info=info)).to_html(tmp_path / "report.html").read_text()
    words = re.sub(r"<[^>]+>", " ", page.partition("</style>")[2])
    order = ["A step sends", "Questions", "What does a step send?", "What memory", "What made this report?", "share"]
    assert [words.index(each) for each in order] == sorted(words.index(each) for each in order)
    assert "dsexplore run --mesh dp=8 train.py" in words


def test_a_rank_counts_as_often_as_it_stands_for_others() -> None:
    """Rank 0 stands for itself, rank 1 for three: the mean is over four."""
    tables = trace_of(row(0, rank=0, wire_bytes=1024), row(1, rank=1, wire_bytes=5120)).tables
    trace = Trace(replace(tables, info=replace(tables.info, stands_for=("0", "1-3"))))
    assert trace.info.ranks_stood_for == 4
    assert said(trace)[0] == "A step sends 4 KiB on the wire per rank (mean of 4 ranks, 1 KiB to 5 KiB), all on tp."
    assert trace.headline().to_frame().rows() == [("tp", 1.0, 1024.0, 4096.0, None)]


def test_what_sends_nothing_is_not_among_the_others() -> None:
    """Barriers and recvs have no bytes. Three purposes are all named, of four only two."""
    sent = [row(0), row(1, op="broadcast"), row(2, op="barrier", wire_bytes=0), row(3, op="recv", wire_bytes=0)]
    assert said(trace_of(*sent))[1] == "All of it is for Net.a: all_reduce (50 %) and broadcast (50 %)."
    more = [*sent, row(4, op="reduce", wire_bytes=3072)]
    assert said(trace_of(*more))[1].endswith(": reduce (50 %), all_reduce (25 %) and broadcast (25 %).")
    many = [*more, row(5, op="send", wire_bytes=6144)]
    assert said(trace_of(*many))[1].endswith(": send (50 %), reduce (25 %) and others.")


def test_a_rank_that_only_receives_says_so() -> None:
    received = trace_of(row(0, op="recv", wire_bytes=0), row(1, op="recv", wire_bytes=0))
    assert said(received) == ["A step puts nothing on the wire, and receives 2 KiB in messages."]
