"""The process that ranks are forked from answers requests, preloads modules, and is replaced when it has died."""

from __future__ import annotations

import os
import pickle
import pickletools
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec

import polars as pl
import pytest

from dsexplore import run_ranks
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.real import server_handle
from dsexplore._internal.worlds.real.messages import LENGTH, Report, receive, send, unpack_report
from dsexplore._internal.worlds.real.packed_program import pack_program
from dsexplore._internal.worlds.real.rank_process import run_source
from dsexplore._internal.worlds.real.rank_server import PRELOAD
from dsexplore._internal.worlds.real.rank_world import RankWorld
from tests.programs import printed
from tests.worlds.real.cells import STEP, SUM, cell_of

RESTART = """
import os, signal
import dsexplore
from dsexplore._internal.worlds.real.server_handle import server
pid = server().pid
os.kill(pid, signal.SIGKILL)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
assert dsexplore.run_ranks("rank", 2, backend=None).values == ["0", "1"]
"""


@pytest.mark.processes
def test_a_server_that_died_is_replaced() -> None:
    assert printed(RESTART) == ""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_ranks_begin_with_what_programs_need_already_imported() -> None:
    there = [name for name in PRELOAD if find_spec(name) is not None]  # not all are in each version of torch
    assert len(there) >= len(PRELOAD) - 1
    assert run_ranks(f"import sys\nsorted(set({there}) - set(sys.modules))", 1, backend=None).values == ["[]"]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_neither_a_first_cell_nor_a_step_imports_what_the_server_could_have() -> None:
    """Each rank would import it again: numpy's masked arrays alone took 15 MB of each rank."""
    with closing(RankWorld(2)) as world:
        world.open()
        world.run(cell_of(f"import sys\nbefore = set(sys.modules)\n{SUM}{STEP}")).check()
        imported = world.run(cell_of("", "sorted(set(sys.modules) - before)")).values
    assert imported == [[], []]


THREADS = """
from pathlib import Path
sorted(name for thread in Path("/proc/self/task").iterdir() if "polars" in (name := (thread / "comm").read_text()))
"""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_ranks_that_run_cells_leave_the_tables_of_what_they_record_to_the_launcher() -> None:
    """Each rank would start threads of polars, and load its code into its own memory."""
    with closing(RankWorld(2)) as world:
        world.open()
        run = world.run(cell_of(SUM))
        threads = world.run(cell_of(*THREADS.strip().rsplit("\n", 1))).values
    assert threads == [[], []]
    assert run.trace is not None
    assert run.trace.events["op"].to_list() == ["all_reduce", "all_reduce"]


NOT_TO_FREE = """
from torch._dynamo import trace_rules
[trace_rules.get_torch_obj_rule_map.cache_info().currsize, trace_rules.get_mod_inlinelist.cache_info().currsize]
"""
NEW_THREADS = """
from dsexplore._internal.worlds.real.rank_server import count_threads, plan_tables
before = count_threads()
plan_tables()
count_threads() - before
"""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_ranks_have_no_cache_of_torch_compile_to_free_when_they_open_a_group() -> None:
    assert run_ranks(NOT_TO_FREE, 1, backend=None).values == ["[0, 0]"]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_the_plan_of_a_table_starts_no_thread_that_a_fork_would_lack() -> None:
    assert run_ranks(NEW_THREADS, 1, backend=None).values == ["0"]


def test_a_message_arrives_whole_with_its_descriptors() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        send(ours, {"text": "x" * 10_000}, [writing])
        os.close(writing)
        message, (received,) = receive(theirs)
        os.write(received, b"through")
        os.close(received)
        assert message == {"text": "x" * 10_000}
        assert os.read(reading, 100) == b"through"
    os.close(reading)


@pytest.mark.parametrize("sent", [b"", LENGTH.pack(100) + b"only a part"], ids=["nothing", "a part"])
def test_a_side_that_is_gone_is_an_end_of_file(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()
        with pytest.raises(EOFError, match="the other side of the rank server's socket is gone"):
            receive(theirs)


def test_a_report_is_read_once_all_its_bytes_are_there() -> None:
    data = pickle.dumps(Report(True, [1, 2]))
    whole = LENGTH.pack(len(data)) + data
    assert [end for end in range(len(whole) + 1) if unpack_report(bytearray(whole[:end]))] == [len(whole)]
    assert unpack_report(whole) == Report(True, [1, 2])


def test_source_text_needs_no_cloudpickle_and_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert pickle.loads(pack_program("1 + 1", (), None)) == ("1 + 1", {})
    with pytest.raises(UsageError, match=r"pip install cloudpickle, or give the program as source text"):
        pack_program(len, (), None)


def test_the_users_functions_travel_by_value_and_installed_ones_by_name() -> None:
    def strings_of(program: Callable[..., object]) -> set[object]:
        return {argument for _, argument, _ in pickletools.genops(pack_program(program, (), None))}

    assert {"polars.functions.eager", "concat"} <= strings_of(partial(pl.concat, how="vertical"))
    assert {"dsexplore._internal.worlds.real.rank_process", "run_source"} <= strings_of(run_source)
    assert "the users own constant" in strings_of(_of_this_file)


def _of_this_file() -> str:
    return "the users own constant"


def test_the_value_of_source_text_is_its_last_expression() -> None:
    assert run_source("x = 2\nx + 1", {}) == "3"
    assert run_source("x = 2", {}) == ""
    assert run_source("", {}) == ""
    with pytest.raises(ZeroDivisionError) as caught:
        run_source("x = 1\n\nx / 0", {})
    assert caught.traceback[-1].lineno == 2  # counted from 0


@pytest.mark.processes
def test_a_server_that_nobody_waited_for_is_ended_at_once() -> None:
    server_handle.close()
    started = server_handle.start()
    assert server_handle.start() is started
    server_handle.close()
    assert not started.usable


def test_the_launcher_and_its_options_load_nothing_of_torch() -> None:
    modules = "dsexplore._internal.worlds.real.server_handle, dsexplore._internal.worlds.scripts.run_options"
    assert printed(f"import sys, {modules}; print('torch' in sys.modules)") == "False\n"
