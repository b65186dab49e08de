"""Runs programs that hang, or in which a rank dies, on local ranks that wait for each other's events, not for a time.

Programs execute `EVENTS` first. A rank must not die while another is still in a collective that both have reached:
gloo makes a collective fail whose data have come if the connection is closed before the rank has noticed.
"""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import dsexplore

EVENTS = '''
import os, threading, time
from dsexplore._internal.trace.files import stack_file

def wait_until(test):
    while not test():
        time.sleep(0.01)

def mark(place):
    """Tell the other ranks that this one has come to a place."""
    open(f"{marks}/{place}-{rank}", "w").close()

def wait_for(place, *ranks):
    """Wait until ranks have come to a place."""
    wait_until(lambda: all(os.path.exists(f"{marks}/{place}-{other}") for other in ranks))

def is_saved(other, line):
    """Return True once a rank has saved early while its program was at a line."""
    file = f"{folder}/{stack_file(other)}"
    return os.path.exists(file) and f'"<rank cell>", line {line}, ' in open(file).read()

def end_once_saved(lines, place=None, *ranks):
    """End the run once ranks have come to a place, and all have saved early at their lines: {rank: line}."""
    def watch():
        wait_for(place, *ranks)
        wait_until(lambda: all(is_saved(*rank_and_line) for rank_and_line in lines.items()))
        end_run()
    threading.Thread(target=watch, daemon=True).start()

def end_run():
    print("end the run", flush=True)
'''


def run_three(
    program: str, folder: Path, *, is_ended: bool = False, group_timeout: float = 60, **names: object
) -> None:
    """Run a program on three ranks that save into a folder.

    Args:
        program: the program, which executes ``events`` on its first line.
        folder: its name ``folder``.
        is_ended: True if the program hangs and a rank calls ``end_run``.
        group_timeout: seconds after which a collective fails.
        **names: further names of the program.
    """

    def end(rank: int, line: str) -> None:
        if line == "end the run":
            signal.raise_signal(signal.SIGINT)

    with TemporaryDirectory() as marks, pytest.raises(KeyboardInterrupt) if is_ended else nullcontext():
        namespace = {"folder": str(folder), "marks": marks, "events": EVENTS, **names}
        dsexplore.run_ranks(
            program, 3, namespace=namespace, timeout=240, group_timeout=group_timeout, grace=120, on_line=end
        )
