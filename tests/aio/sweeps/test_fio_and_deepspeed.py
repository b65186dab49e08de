"""Settings as options of fio."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import fio_job, run_fio


@given(size=st.integers(1 << 20, 1 << 34), threads=st.integers(1, 16), block=st.sampled_from([4096, 1 << 17, 1 << 20]))
def test_fio_s_jobs_have_whole_blocks_and_stay_in_the_file(size: int, threads: int, block: int) -> None:
    config = AioConfig(block_size=block, thread_count=threads)
    lines = fio_job("/dev/null", size, config, ["read"], direct=True, seconds=1.5).splitlines()
    options = dict(line.split("=", 1) for line in lines if "=" in line)
    part = int(options["size"])
    assert options["offset_increment"] == options["size"]
    assert part % block == 0
    assert size - threads * block < part * threads <= size
    assert (options["numjobs"], options["bs"], options["runtime"]) == (str(threads), str(block), "1500ms")


REPORT = {  # of fio 3.33, for two jobs reported as one
    "fio version": "fio-3.33",
    "jobs": [
        {
            "jobname": "reference",
            "read": {"io_bytes": 416677888, "bw_bytes": 1370650947, "runtime": 304},
            "write": {"io_bytes": 0, "bw_bytes": 0, "runtime": 0},
            "job_runtime": 604,
            "usr_cpu": 1.490066,
            "sys_cpu": 13.907285,
        }
    ],
}


def test_the_rate_and_the_processor_s_time_are_those_of_fio_s_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report").write_text("fio: a warning before the report\n" + json.dumps(REPORT))
    (tmp_path / "fio").write_text(f"#!/bin/sh\ncat {tmp_path}/report\n")
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    rate, cpu = run_fio("/dev/null", 1 << 24, AioConfig(block_size=1 << 17), "read", 0.3, direct=False)
    assert rate == 1370650947
    assert cpu == pytest.approx((0.01490066 + 0.13907285) * 604 / (416677888 / 2**30))
