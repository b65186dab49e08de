"""Run programs on four real ranks with gloo, and simulate each of the four; what all send is compared, call by call.

    python benchmarks/all_ranks.py [--only TEXT …]

Compared are op, phase, step, bytes of message and wire, dtype, shape, ranks of the group, peer, root, the module that
issued it and the one that owns it. Prints what differs and how many programs are equal; exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from programs_of_calls import RANKS, Program
from programs_of_libraries import library_programs
from programs_of_ranks import FORKS, programs

import dsexplore
from dsexplore._internal.capture.record import record

_COMPARED = ("op", "phase", "step", "message_bytes", "wire_bytes", "dtype", "shape", "peer", "root", "trigger", "owner")
_PATIENCE = timedelta(seconds=60)


def sent(program: Program) -> list[Any]:
    """Run a program, and return what this rank sent, as JSON has it; the kind of error where it raises one."""
    torch.manual_seed(0)
    failed = ""
    with record() as trace:
        try:
            program()
        except Exception as error:
            failed = f"{type(error).__name__}: {str(error)[:200]}"
    ranks = dict(trace.groups.select("group", "ranks").iter_rows())
    events = trace.events
    rows: list[Any] = [
        {**{name: row[name] for name in _COMPARED}, "ranks": ranks.get(row["group"])}
        for row in events.iter_rows(named=True)
    ]
    return [*rows, failed] if failed else rows


def chosen(only: Sequence[str]) -> dict[str, Program]:
    """Return the programs whose name contains one of these texts."""
    return {name: program for name, program in (*programs(), *library_programs()) if any(part in name for part in only)}


def real(rank: int, folder: str, only: Sequence[str]) -> None:
    """Run all programs as one real rank, and write what it sent."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=_PATIENCE)
    found = {}
    for name, program in chosen(only).items():
        found[name] = sent(program)
        dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def without(rows: list[Any], column: str) -> list[Any]:
    """Return rows without a column; without that of bytes, those of a wire and shapes go, too."""
    names = (column, "wire_bytes", "shape") if column == "message_bytes" else (column,)
    return [
        {name: value for name, value in row.items() if name not in names} if isinstance(row, dict) else row
        for row in rows
    ]


def simulated(rank: int, only: Sequence[str]) -> dict[str, list[Any]]:
    """Simulate all programs as one rank, each in a world of its own."""
    found = {}
    for name, program in chosen(only).items():
        with dsexplore.simulate(RANKS, rank=rank, hardware="cpu"):
            found[name] = json.loads(json.dumps(sent(program)))
    return found


def differences(ranks: list[list[Any]], expected: list[list[Any]]) -> list[str]:
    """Return in words where the first difference of each rank is."""
    texts = []
    for rank, (rows, others) in enumerate(zip(ranks, expected, strict=True)):
        if rows != others:
            place = next((i for i, (a, b) in enumerate(zip(rows, others, strict=False)) if a != b), -1)
            texts.append(
                f"  rank {rank}: {len(rows)} rows simulated, {len(others)} real, the first that differs {place}"
            )
            if place >= 0:
                texts += [f"    simulated {rows[place]}", f"    real      {others[place]}"]
            else:
                texts += [f"    more: {(rows[len(others) :] or others[len(rows) :])[0]}"]
    return texts


def main() -> int:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the programs to run")
    only = parser.parse_args().only
    sys.argv[1:] = []
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(real, (folder, only), RANKS)
        expected = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    found = [simulated(rank, only) for rank in range(RANKS)]
    equal = failed = 0
    forks: list[str] = []
    for name in expected[0]:
        here, there = [one[name] for one in found], [one[name] for one in expected]
        column, why = FORKS.get(name, ("", ""))
        if column and here != there:
            forks.append(f"{name}: {column} differs, as {why}")
            here, there = ([without(rows, column) for rows in side] for side in (here, there))
        if texts := differences(here, there):
            print(name, *texts, sep="\n")
        else:
            equal += 1
            failed += isinstance((there[0] or [None])[-1], str)
    count = len(expected[0])
    print(*forks, sep="\n", end="\n" if forks else "")
    print(
        f"{count} programs on {RANKS} ranks, simulated and with gloo: {equal} equal, of which {failed} fail alike and "
        f"{len(forks)} are equal but for one column"
    )
    return int(equal < count)


if __name__ == "__main__":
    raise SystemExit(main())
