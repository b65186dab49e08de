"""Pipes and stack files that a launcher shares with a rank are read completely, without moving offsets."""

from __future__ import annotations

import os
import tempfile
import threading

from dsexplore._internal.torch_internals.process_groups import CONNECTION_LINE
from dsexplore._internal.worlds.real.rank_handle import Pipe, contents


def test_a_file_is_read_while_another_process_writes_on() -> None:
    lines = [f"line {number}\n".encode() for number in range(4_000)]
    whole = b"".join(lines)
    with tempfile.TemporaryFile() as file:
        writer = threading.Thread(target=lambda: [os.write(file.fileno(), line) for line in lines])
        writer.start()
        while writer.is_alive():
            assert whole.startswith(contents(file.fileno()))
        writer.join()
        assert contents(file.fileno()) == whole


def test_lines_that_gloo_prints_are_no_output_of_the_program() -> None:
    connected = b"[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    reading, writing = os.pipe()
    pipe = Pipe(reading, dropped=CONNECTION_LINE)
    try:
        for part in (b"first\n", connected, b"second\n" + connected[:40], connected[40:] + b"third: ", connected[:9]):
            os.write(writing, part)
            pipe.read()
    finally:
        os.close(reading)
        os.close(writing)
    assert pipe.text == "first\nsecond\nthird: [Gloo] Ra"
