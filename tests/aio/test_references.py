"""What a setting means to fio."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsexplore.aio.aio_config import AioConfig
from dsexplore.aio.references import fio_job


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
