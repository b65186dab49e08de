"""Programs of real ranks on gloo, of which one is late or none: ``python -m tests.analysis.late_live 20`` runs so many.

A second number is the first of them, so that a long run can be done in parts.

Wrong is a program of which the late rank is not named alone; or, where none is late, one of which a rank is named as
late again and again. A single pause of a busy host is named too, and rightly so.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np

import dsexplore
from dsexplore._internal.analysis.late_ranks import LEAST

PROGRAM = """
import time, torch, torch.distributed as dist, dsexplore
pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True) if pairs else None
with dsexplore.commtrace(save=folder) as trace:
    for step in range(steps):
        if rank == late and step >= begin:
            time.sleep(by)
        if pairs:
            dist.all_reduce(torch.ones(1024), group=pair)
        work = dist.all_reduce(torch.ones(4096), async_op=True)
        if not overlaps:
            work.wait()
        dist.all_gather_into_tensor(torch.empty(64 * world_size), torch.ones(64))
        work.wait()
        trace.step()
"""


def main(count: int = 20, first: int = 0) -> int:
    """Run so many programs, from the seed `first` on, and return 1 where one was judged wrong."""
    wrong = 0
    for seed in range(first, first + count):
        draw = np.random.default_rng(seed)
        ranks = int(draw.choice([2, 3, 4]))
        late = int(draw.integers(ranks)) if draw.random() < 0.8 else None
        how = {
            "late": late,
            "by": float(draw.uniform(0.03, 0.2)),
            "steps": int(draw.integers(5, 12)),
            "begin": int(draw.choice([0, 0, 2])),
            "pairs": bool(ranks == 4 and draw.random() < 0.5),
            "overlaps": bool(draw.random() < 0.5),
        }
        with tempfile.TemporaryDirectory() as folder:
            dsexplore.run_ranks(PROGRAM, ranks, namespace={**how, "folder": folder}).check()
            skew = dsexplore.load(folder).skew()
        named = [found.rank for found in skew.late_ranks if late is not None or found.late >= LEAST]
        is_wrong = named != ([] if late is None else [late])
        wrong += is_wrong
        print(f"{'WRONG ' if is_wrong else ''}{seed}: {ranks} ranks, {how}: {skew.verdict()}", flush=True)
    print(f"{count} programs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
