import errno
import gc
from pathlib import Path

import pytest
import torch

from dsexplore._internal.aio import buffers
from dsexplore._internal.aio.buffers import HUGE_PAGE, Buffer
from dsexplore._internal.errors import UsageError
from dsexplore.aio import aio_handle
from tests.programs import printed


def test_buffers_are_aligned_zeroed_and_as_long_as_asked() -> None:
    buffer = Buffer(5_000_000)
    assert buffer.address % HUGE_PAGE == 0
    assert (buffer.nbytes, len(buffer), buffer.bytes.shape) == (5_000_000, 3 * HUGE_PAGE, (5_000_000,))
    assert not buffer.bytes.any()
    assert not buffer.populate().bytes.any()
    assert Buffer(0).nbytes == 0


def refused() -> int:
    """Return how often the kernel had no huge page for whoever asked."""
    counted = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counted["thp_fault_fallback"])


def test_buffers_lie_on_huge_pages_where_the_kernel_gives_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    if "[never]" in setting:
        pytest.skip("transparent huge pages are switched off here")
    before = refused()
    huge, ordinary = Buffer(16 << 20).populate(), Buffer(16 << 20, huge=False).populate()
    if refused() == before:
        assert 0.5 < (huge.huge_share() or 0) <= 1.0
    if "[madvise]" in setting:
        assert ordinary.huge_share() == 0.0


@pytest.mark.parametrize(("drivers", "available"), [((), True), (("/dev/null",), False), (("/dev/null",), True)])
def test_memory_is_pinned_where_a_driver_and_torch_say_that_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, drivers: tuple[str, ...], available: bool
) -> None:
    monkeypatch.setattr(buffers, "_GPU_DRIVERS", drivers)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert buffers.can_pin() == bool(drivers and available)


def test_locked_tensor_has_the_dtype_and_is_pinned_for_every_handle() -> None:
    with aio_handle(queue_depth=2) as one, aio_handle(queue_depth=2) as other:
        tensor = one.new_cpu_locked_tensor(1000, torch.empty(0, dtype=torch.bfloat16))
        assert (tensor.shape, tensor.dtype, tensor.data_ptr() % HUGE_PAGE) == ((1000,), torch.bfloat16, 0)
        assert one.is_pinned(tensor)
        assert other.is_pinned(tensor[10:20])
        assert not one.is_pinned(torch.empty(1000))
        assert not one.is_pinned(torch.empty(1000, device="meta"))
        assert other.free_cpu_locked_tensor(tensor) is True
        assert one.free_cpu_locked_tensor(tensor) is False
        assert not one.is_pinned(tensor)
        tensor.fill_(1)  # still there for whoever holds it


def test_memory_goes_back_with_the_last_reference() -> None:
    def locked_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmLck:")[1].split()[0])

    gc.collect()  # what other tests left must not go while this one counts
    before = locked_kib()
    with aio_handle(queue_depth=2) as handle:
        tensor = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
        assert locked_kib() == before + 4096
        del tensor
        gc.collect()
        assert locked_kib() == before


def test_bad_counts() -> None:
    with aio_handle(queue_depth=2) as handle, pytest.raises(UsageError, match="num_elem -1"):
        handle.new_cpu_locked_tensor(-1, torch.empty(0))


def test_memory_lock_limit_names_the_limit(tmp_path: Path) -> None:
    program = """
        import ctypes, resource
        libc = ctypes.CDLL(None)
        # Without the right to lock any amount, which root has, the limit holds.
        class Header(ctypes.Structure): _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
        data = (ctypes.c_uint32 * 6)()
        libc.capset(ctypes.byref(Header(0x20080522, 0)), data)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        import torch
        from dsexplore.aio import aio_handle
        with aio_handle(queue_depth=2) as handle:
            try:
                handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.uint8))
            except OSError as error:
                print(error.errno, error)
            # Moving tensors needs no lock.
            tensor = torch.arange(100_001, dtype=torch.int32)
            path = "FILE"
            print(handle.sync_pwrite(tensor, path))
            back = torch.zeros_like(tensor)
            print(handle.sync_pread(back, path), torch.equal(back, tensor))
    """
    first, *rest = printed(program.replace("FILE", str(tmp_path / "x"))).splitlines()
    assert first.startswith(f"{errno.ENOMEM} [Errno {errno.ENOMEM}] cannot lock 2 MiB of memory (mlock)")
    assert "RLIMIT_MEMLOCK is 64 KiB" in first
    assert rest == ["1", "1 True"]
