"""A process releases only those pages of files that it can read again.

Modules: ``worlds/real/rank_server.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dsexplore import run_ranks
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.real.rank_server import unwritten_mappings
from dsexplore._internal.worlds.real.server_handle import server

MAPPINGS = {
    "code": ("7f0000000000-7f0000003000 r-xp 00000000 fe:00 12 /lib/libc.so.6", 0),
    "relocated": ("7f0000010000-7f0000012000 r--p 00003000 fe:00 12 /lib/libc.so.6", 8),
    "data": ("7f0000020000-7f0000021000 rw-p 00005000 fe:00 12 /lib/libc.so.6", 0),
    "shared": ("7f0000030000-7f0000031000 r--s 00000000 fe:00 13 /dev/shm/other", 0),
    "no file": ("7f0000040000-7f0000041000 r--p 00000000 00:00 0 ", 0),
    "vdso": ("7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]", 0),
    "a name with spaces": ("55a0000000-55a0002000 r--p 00001000 fe:00 14 /opt/my env/lib.so", 0),
}


def test_only_files_that_nothing_was_written_to_can_be_read_again() -> None:
    smaps = "".join(f"{head}\nSize: 8 kB\nRss: 8 kB\nAnonymous: {kib} kB\n" for head, kib in MAPPINGS.values())
    assert list(unwritten_mappings(smaps)) == [(0x7F0000000000, 0x3000), (0x55A0000000, 0x2000)]


PROGRAM = """
import torch
from pathlib import Path
from dsexplore._internal.worlds.real.rank_server import release_file_pages

def in_files():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "RssFile" in line)

torch.mm(torch.ones(8, 8), torch.ones(8, 8)).sum().item()
before = in_files()
release_file_pages()
after = in_files()
assert torch.mm(torch.ones(8, 8), torch.ones(8, 8)).sum().item() == 512
[before, after]
"""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_a_process_goes_on_after_it_has_let_go_of_the_pages_of_its_libraries() -> None:
    before, after = map(int, re.findall(r"\d+", run_ranks(PROGRAM, 1, backend=None).values[0]))
    assert after < before * (1 / 3 if torch_at_least("2.10") else 0.8)  # torch 2.9 leaves two thirds


def kib_of_files(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"RssFile:\s*(\d+) kB", status)[0])


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_the_server_holds_few_of_the_pages_of_the_libraries_that_it_has_imported() -> None:
    assert kib_of_files(server().pid) < kib_of_files(os.getpid()) / 3
