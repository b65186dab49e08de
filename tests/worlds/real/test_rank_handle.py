"""`RankHandle`: what its parts promise of the files that launcher and rank share."""

from __future__ import annotations

import os
import tempfile
import threading

from dsexplore.worlds.real.rank_handle import contents


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
