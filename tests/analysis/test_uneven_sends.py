"""To whom uneven all_to_alls send, and when the headline says so."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.analysis.uneven_sends import most_sent, uneven_sends
from dsexplore._internal.trace.trace import Trace


def sent(*splits: list[int]) -> Trace:
    """All_to_alls of one of four ranks, with these splits of what it sends."""
    with dsexplore.simulate(mesh="ep=4") as mesh, dsexplore.commtrace() as trace:
        for split in splits:
            given, got = torch.ones(sum(split), 2), torch.empty(8, 2)
            dist.all_to_all_single(got, given, [2, 2, 2, 2], split, group=mesh.get_group())
    return trace


def test_bytes_of_all_that_is_sent_to_a_rank() -> None:
    uneven = uneven_sends(sent([1, 5, 1, 1], [2, 3, 2, 1]).tables)
    assert uneven.row(0) == ("ep", 1, 8, 8 * 2 * 4)
    assert dict(uneven.select("rank", "bytes").rows()) == {0: 24, 1: 64, 2: 24, 3: 16}
    most = most_sent(uneven)
    assert most is not None
    assert (most.rank, most.axis, most.times) == (1, "ep", pytest.approx(64 / 32))
    assert str(most) == "Rank 1 receives 2 times the mean: all_to_alls on ep are uneven"


@pytest.mark.parametrize("splits", [[2, 2, 2, 2], [0, 0, 0, 0]])
def test_even_or_empty_splits_name_no_rank(splits: list[int]) -> None:
    most = most_sent(uneven_sends(sent(splits).tables))
    assert most is None or most.times == 1


def test_a_rotation_names_no_rank() -> None:
    with dsexplore.simulate(mesh="cp=4") as mesh, dsexplore.commtrace() as trace:
        got, given = torch.empty(8, 2), torch.ones(8, 2)
        dist.all_to_all_single(got, given, [0, 0, 0, 8], [0, 8, 0, 0], group=mesh.get_group())
    assert uneven_sends(trace.tables).is_empty()
    with dsexplore.simulate(mesh="cp=4") as mesh, dsexplore.commtrace() as trace:
        dist.all_to_all_single(got[:2], given, [0, 0, 0, 2], [0, 8, 0, 0], group=mesh.get_group())
    assert most_sent(uneven_sends(trace.tables)) is not None


def test_the_headline_says_it_where_a_rank_is_sent_far_more_and_opens_the_section() -> None:
    trace, near = sent([1, 5, 1, 1]), sent([4, 5, 4, 4])
    first, volume, *_ = (str(said) for said in trace.headline().sentences)
    assert first == "Rank 1 receives 2.5 times the mean: all_to_alls on ep are uneven."
    assert volume.startswith("The program sends ")
    page = trace._repr_mimebundle_()["text/html"]
    (anchor,) = re.findall(r'href="#(dsx-[^"]+)">by rank<', page)
    assert re.search(rf'<details class="part" open><summary>Rank 1 receives [^<]*</summary><div id="{anchor}">', page)
    assert not any(said.about == "experts" for said in near.headline().sentences)
    assert '<details class="part"><summary>Rank 1 receives' in near._repr_mimebundle_()["text/html"]


def test_bytes_of_a_dtype_that_nobody_knows_are_unknown_and_tokens_are_not() -> None:
    tables = sent([1, 5, 1, 1]).tables
    events = tables.events.with_columns(dtype=pl.lit("ncclFuture8"))
    uneven = uneven_sends(replace(tables, events=events))
    assert dict(uneven.select("rank", "tokens").rows()) == {0: 1, 1: 5, 2: 1, 3: 1}
    assert uneven["bytes"].to_list() == [None] * 4
    assert most_sent(uneven) is None
