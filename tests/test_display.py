"""A terminal shows the text of an object."""

import re

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.display import plain_text
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.trace.trace_view import TraceView
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome
from dsexplore._internal.worlds.real.run_ranks import RanksRun


def test_a_terminal_shows_the_text_of_a_notebook_and_makes_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    text = trace._repr_mimebundle_()["text/plain"]
    monkeypatch.setattr(TraceView, "html", None)
    assert plain_text(trace) == text


def test_the_text_of_each_result_says_what_it_holds_in_one_line() -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(2), 0)
        trace.step()
    plan = dsexplore.sharding({"w": ((8, 4), "S(0)")}, mesh="dp=2")
    run = RanksRun((RankOutcome(0, "ok", "1"), RankOutcome(1, "error")), 1.5, "failed", 1)
    texts = {
        repr(trace): "<Trace: 2 collectives of rank 0, world of 4>",
        repr(trace.timeline()): "<Timeline of 2 collectives, 1 rank, simulated, in program order>",
        repr(trace.diff(dsexplore.Trace())): "<TraceDiff: 2 differences, 2 collectives before and 0 after>",
        repr(trace.world_map()): "<WorldMap: 4 ranks on 1 node of 8>",
        repr(trace.findings()): "<Findings: 0>",
        repr(plan): "<Sharding of 1 tensor, 128 B, on dp=2, 2 ranks>",
        repr(plan["w"].redistribute("R")): "<Redistribution of w: all_gather on dp>",
        repr(run): "<RanksRun: 1 of 2 ranks finished, 1.5 s>",
    }
    assert list(texts) == list(texts.values())
    assert all(re.fullmatch("<(Skew|Headline): [^\n]+>", repr(each)) for each in (trace.skew(), trace.headline()))
