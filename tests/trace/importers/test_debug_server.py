"""Pages of torch's debug server, made with torch's own templates, tell where a job hangs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.analysis.hangs import explain
from dsexplore._internal.cli import main
from dsexplore._internal.errors import TraceFileError, UsageError
from dsexplore._internal.trace.importers.debug_server import DebugServer, read_debug_server
from tests.analysis.hangs.hangs import ALL4, slow_loader
from tests.analysis.hangs.programs import dumps, run

jinja2 = pytest.importorskip("jinja2")
frontend = pytest.importorskip("torch.distributed.debug._frontend")

STACK = """Current thread 0x00007f183d7fa6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f1867688b80 (most recent call first):
  File "/job/loader.py", line {line} in read
  File "/job/train.py", line 13 in <module>
"""
GONE = frontend.Response(503, "ConnectionError: refused\nand more")


def page(name: str, answers: list[Any]) -> str:
    """Return a page of the debug server with what each rank answered."""
    templates = {
        "base.html": frontend.BASE_TEMPLATE,
        "raw": frontend.RAW_RESP_TEMPLATE,
        "json": frontend.JSON_RESP_TEMPLATE,
    }
    made = jinja2.Environment(loader=jinja2.DictLoader(templates))
    made.globals.update(zip=zip, enumerate=enumerate, format_json=frontend.format_json, nav_links="<a></a>")
    addresses = [f"http://node{rank}:34851/handler/x?" for rank in range(len(answers))]
    text: str = made.get_template(name).render(title="a page", addrs=addresses, resps=answers)
    return text


def pages(recorder: str, gone: tuple[int, ...] = ()) -> Callable[[str], str]:
    """Return the pages of a job of four ranks, of which rank 2 loads data; that recorder has its collectives."""
    held = dumps(run(slow_loader, 4), ALL4)
    ranks = [GONE if rank in gone else frontend.Response(200, json.dumps(dump)) for rank, dump in held.items()]
    stacks = [GONE if rank in gone else frontend.Response(200, STACK.format(line=rank)) for rank in held]
    none = page("json", [frontend.Response(404, "Handler not found")] * 4)
    return lambda url: {
        "stacks": page("raw", stacks),
        "fr_trace_json": page("json", ranks) if recorder == "fr_trace_json" else none,
        "fr_trace_nccl_json": page("json", ranks) if recorder == "fr_trace_nccl_json" else none,
    }[url.removeprefix("http://node0:25999/")]


def asked(monkeypatch: pytest.MonkeyPatch, get: Callable[[str], str]) -> None:
    def read(address: str) -> DebugServer:
        return read_debug_server(address, get)

    monkeypatch.setattr(explain, "read_debug_server", read)


@pytest.mark.parametrize("recorder", ["fr_trace_json", "fr_trace_nccl_json"])
def test_a_job_that_hangs_is_explained_by_its_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorder: str
) -> None:
    asked(monkeypatch, pages(recorder))
    report = dsexplore.explain_hang("http://node0:25999/")
    assert report.culprits == (2,)
    assert report.verdict().endswith("rank 2 was at loader.py:2")
    assert report.stacks[3].splitlines()[0] == '  File "/job/loader.py", line 3 in read'
    assert main(["hang", "http://node0:25999"]) == 0
    assert capsys.readouterr().out.startswith("rank 2 did not come")


def test_a_rank_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, pages("fr_trace_json", gone=(2,)))
    report = dsexplore.explain_hang("http://node0:25999")
    assert (report.culprits, report.reason) == ((2,), "did not come")
    text = "rank 2 did not answer http://node0:25999/fr_trace_json: status 503, ConnectionError: refused"
    assert text in report.notes


def test_says_how_to_record_where_nothing_does() -> None:
    with pytest.raises(TraceFileError, match=r"no rank of http://node0:25999 records .* TORCH_FR_BUFFER_SIZE=2000"):
        read_debug_server("http://node0:25999", pages("neither"))


def test_nobody_answers_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"http://127.0.0.1:{found.getsockname()[1]}"
    assert main(["hang", address]) == 2
    assert "does not answer (" in capsys.readouterr().err
    with pytest.raises(UsageError, match="was given 2 places, an address among them: give the address alone"):
        dsexplore.explain_hang([address, "dumps"])
