"""The advice of every rule, followed: the finding is gone, and as much less is sent as it promised.

Modules: ``analysis/findings/all_rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import advised
import pytest
import textbook_plans
import torch

import dsexplore
from dsexplore._internal.analysis.findings.all_rules import RULES
from dsexplore._internal.torch_internals.names import torch_at_least

CUT_INTO_PARTS = {
    advised.all_reduce_of_shards,
    advised.distributed_at_start,
    advised.gathered_again,
    advised.optimizer_reduces,
    advised.siblings_reduce,
}
"""Programs in which it matters how a block passes its input to its parts: by position in Llama, by name in
transformers'. The other programs wrap whole blocks, and of these two models one is enough."""
TABLE = [
    (rule, program, name)
    for rule, programs in advised.ADVICE.items()
    for program in programs
    for name in advised.SUBJECTS
    if name != "llama" or program in CUT_INTO_PARTS
]
SPARES_MORE = {advised.optimizer_gathers, advised.made_whole_once, advised.small_fsdp}
"""Programs whose advice spares more than the finding says: a finding speaks of its own collectives alone."""


def sent(trace: dsexplore.Trace) -> tuple[int, int]:
    """Wire bytes and collectives of a step."""
    events = trace.where(phase=["forward", "backward", "optimizer", "other"]).events
    events = events.filter(events["cause"] != "DDP buffers")  # which no_sync() spares, too
    return int(events["wire_bytes"].sum()), events.height


def test_every_rule_has_advice_that_is_followed_or_says_that_it_has_none() -> None:
    assert advised.ADVICE.keys() | advised.WITHOUT_A_CHANGE.keys() == RULES.keys()
    assert not advised.ADVICE.keys() & advised.WITHOUT_A_CHANGE.keys()


@pytest.mark.parametrize(("rule", "program", "name"), TABLE, ids=lambda one: getattr(one, "__name__", one))
def test_advice_that_is_followed_spares_what_it_promised(rule: str, program: advised.Program, name: str) -> None:
    if (rule, name) == ("all_reduce_of_shards", "transformers") and not torch_at_least("2.10"):
        pytest.skip("torch 2.9 aliases no DTensor")
    before, after = (advised.trace_of(program, advised.SUBJECTS[name], odd) for odd in (True, False))
    found = [one for one in before.findings() if one.rule == rule]
    assert found
    assert [one for one in after.findings() if one.rule == rule] == []
    (more_bytes, more_calls), (fewer_bytes, fewer_calls) = sent(before), sent(after)
    bytes_, calls = sum(one.spare_bytes for one in found), sum(one.spare_calls for one in found)
    if found[0].is_wrong:  # what is right sends more
        assert (bytes_, calls) == (0, 0)
    elif program in SPARES_MORE:
        assert more_bytes - fewer_bytes >= bytes_
        assert more_calls - fewer_calls >= calls
    else:
        assert more_bytes - fewer_bytes == bytes_
        assert more_calls - fewer_calls == pytest.approx(calls)


@pytest.mark.parametrize("plan", textbook_plans.PLANS, ids=lambda plan: plan.__name__)
def test_a_textbook_plan_has_nothing_odd(plan: Callable[[], None]) -> None:
    torch.manual_seed(0)
    with dsexplore.commtrace(world_size=4) as trace:
        plan()
    assert len(trace)
    assert [(one.rule, one.module, one.why) for one in trace.findings()] == []
