"""A parameter's history in words and as a picture."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.analysis.parameter_history import ParameterHistory
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views import view_of


@pytest.fixture(scope="module")
def history() -> ParameterHistory:
    with dsexplore.simulate(mesh="dp=4") as mesh, dsexplore.commtrace() as trace:
        model = nn.Sequential(nn.Linear(8, 8, bias=False))
        fully_shard(model, mesh=mesh)
        model(torch.ones(2, 8)).sum().backward()
    found: ParameterHistory = trace.parameter_history("0.weight")
    return found


def test_the_text_names_place_and_moments(history: ParameterHistory) -> None:
    first, verdict, *lines, note = history._repr_mimebundle_()["text/plain"].splitlines()
    assert first == (
        "FSDPSequential.0.weight: 8 × 8, float32, S(0) on dp=4: 64 B of 256 B on each rank; "
        "FSDP gathers it with FSDPSequential"
    ).replace("FSDPSequential", history.name.partition(".")[0])
    assert verdict == "  For this parameter a step sends 384 B on the wire in 2 collectives."
    assert [line.partition(",")[0] for line in lines] == [
        "  1. gathered in forward: all_gather over dp",
        "  2. used in forward",
        "  3. used in backward",
        "  4. gradient reduced in backward: reduce_scatter over dp",
    ]
    assert "not recorded" in note


def test_the_page_has_the_moments_and_the_picture(history: ParameterHistory) -> None:
    html = history._repr_mimebundle_()["text/html"]
    assert html.index("gradient reduced") < html.index("<svg") if "<svg" in html else "gradient reduced" in html
    assert html.count("gathered") >= 1
    assert "dp=4" in html
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html.partition("<tbody>")[2].partition("</table>")[0])
    assert "" not in [re.sub("<.*?>", "", cell) for cell in cells]


def test_an_axis_has_one_color_alone_and_in_the_explorer() -> None:
    """The first mesh axis is dp, but tp sends more."""
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh, dsexplore.commtrace() as trace:
        model = nn.Sequential(nn.Linear(8, 8, bias=False))
        parallelize_module(model, mesh["tp"], {"0": RowwiseParallel(input_layouts=Replicate())})
        fully_shard(model, mesh=mesh["dp"])
        model(torch.ones(64, 8)).sum().backward()
    history = trace.parameter_history("0.weight")
    explorer = trace.explore(tab="parameters")
    explorer.parameter(history.name)
    alone, beside = (
        re.findall(r'class="axis (x\d)"><bdi>(\w+)</bdi>', html)
        for html in (view_of(history).html(), explorer.widget.panel)
    )
    assert alone == [("x0", "dp"), ("x2", "tp")]
    assert beside == alone


def test_bytes_are_those_on_the_wire_unless_message_bytes_are_asked_for(history: ParameterHistory) -> None:
    for sizes, text in (("wire", "192 B"), ("message", "256 B")):
        bundle = Trace(history.tables).parameter_history("0.weight", sizes=sizes)._repr_mimebundle_()
        assert f"all_gather over dp, {text} (" in bundle["text/plain"]
        assert f">{sizes} bytes</th>" in bundle["text/html"]
        assert f">{text}</td>" in bundle["text/html"]
    assert history.sizes == "wire"
    with pytest.raises(UsageError, match="sizes='both'"):
        Trace(history.tables).parameter_history("0.weight", sizes="both")


def test_a_plain_parameter_has_no_picture() -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        nn.Linear(2, 2)(torch.ones(1, 2))
    html = trace.parameter_history("Linear.weight")._repr_mimebundle_()["text/html"]
    assert "Nothing is sent for it." in html
    assert "a plain tensor, whole on each rank" in html


def test_its_explorer_has_it_picked(history: ParameterHistory) -> None:
    explorer = history.explore()
    assert explorer.selection.events.equals(history.trace.events)
    assert 0 < len(explorer.selection) <= len(Trace(history.tables))
    assert "only what is sent for" in explorer.widget.status


def test_a_rank_of_its_sharding_picture_is_a_pick_too(history: ParameterHistory) -> None:
    explorer = history.explore()
    assert 'class="ranks"' in explorer.widget.panel
    explorer.widget._handle_custom_msg({"type": "rank", "rank": 2}, [])
    assert isinstance(explorer.selection, Trace)
    wanted = set(Trace(history.tables).world_map().talks_to(2).events["seq"]) & set(history.trace.events["seq"])
    assert set(explorer.selection.events["seq"]) == wanted
    assert "rank 2 on the map" in explorer.widget.status
    explorer.widget._handle_custom_msg({"type": "drop", "part": "map"}, [])
    assert explorer.selection.events.equals(history.trace.events)
    explorer.widget._handle_custom_msg({"type": "drop", "part": "parameter"}, [])
    assert 'class="ranks"' not in explorer.widget.panel
