"""Flight recorder dumps that four NCCL ranks left on an H200, with torch 2.11 and NCCL 2.28.9.

Modules: ``analysis/hangs/``, ``trace/importers/recorder_dump.py``.

The ranks shared the GPU: each was told by ``NCCL_HOSTID`` that it is on a host of its own, and they spoke over sockets.
dsexplore recorded the job, so that its kernels are on the stacks; names of folders are changed, nothing else. The mesh
is ``dp=2,tp=2``, and a step has collectives of tp, tp, dp, the world and a second group of the world.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsexplore

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "culprit", "sentence"),
    [
        (
            "divergent",
            1,
            "rank 1 waits in all_gather (train.py:129, group default, 16 KiB); ranks 0, 2, 3 wait in all_reduce "
            "(train.py:130, group default, 4 KiB); they parted after collective 3 of group default; rank 1 is the odd "
            "one",
        ),
        (
            "exits",
            1,
            "rank 1 did not come, probably: ranks 0, 2, 3 wait for it in all_reduce (train.py:136, group "
            "default, 4 KiB), collective 4 of group default; rank 1 left no record: it ended or stopped before that "
            "call, or only its file is lost, and the device of a waiting rank has stalled",
        ),
        (
            "skipped",
            3,
            "rank 3 waits in all_reduce (train.py:114, group default, 4 KiB); ranks 0, 2 wait in all_reduce "
            "(train.py:114, group default, 4 KiB); rank 1 waits in all_reduce (train.py:113, group (ranks 1, 3), "
            "4 KiB); they parted in collective 4 of group (ranks 1, 3): rank 1 at train.py:126, rank 3 at train.py:113"
            "; rank 3 is the odd one",
        ),
    ],
)
def test_the_rank_that_did_otherwise_is_named(tmp_path: Path, name: str, culprit: int, sentence: str) -> None:
    for rank, dump in json.loads((DATA / f"nccl_{name}.json").read_text()).items():
        (tmp_path / f"dump_{rank}").write_text(json.dumps(dump))
    report = dsexplore.explain_hang(tmp_path)
    assert report.culprits == (culprit,)
    assert report.verdict() == sentence
