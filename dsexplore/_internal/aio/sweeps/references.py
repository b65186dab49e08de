"""Reference measurements on the same file, to compare our engines with: DeepSpeed's own handle, and fio."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.errors import UsageError

REFERENCES = ("fio", "deepspeed")


def why_no_reference(name: str) -> str | None:
    """Return why a reference cannot run here; None if it can.

    Raises:
        UsageError: an unknown name.
    """
    if name == "fio":
        return None if shutil.which("fio") else "fio is not on PATH: install it from the system's packages"
    if name == "deepspeed":
        try:
            deepspeed_module()
        except Exception as error:  # whatever its build breaks on is the reason
            return f"DeepSpeed's aio operator does not load: {error}"
        return None
    raise UsageError(f"reference {name!r} is unknown: it is one of {', '.join(REFERENCES)}")


@cache
def deepspeed_module() -> Any:
    """Return DeepSpeed's compiled operator, built by DeepSpeed at the first call (minutes).

    Raises:
        ImportError: DeepSpeed is not installed.
        Exception: whatever its build raises.
    """
    if find_spec("deepspeed") is None:
        raise ImportError("deepspeed is not installed")
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return AsyncIOBuilder().load(verbose=False)


def run_fio(
    path: str,
    size: int,
    config: AioConfig,
    operation: str,
    seconds: float,
    *,
    direct: bool = True,
    iomem: str = "malloc",
) -> tuple[float, float]:
    """Run fio once with libaio on an existing file; return (bytes per second, processor milliseconds per GiB).

    Each job has its own part of the file, sequentially, as in `Bench`; memory is depth × block per job.

    Raises:
        OSError: fio cannot be started, or fails; the message is fio's.
    """
    options = {**_fio_options(size, config, seconds, direct=direct), "iomem": iomem, "allow_file_create": "0"}
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in options.items()]
    command = ["fio", "--name=reference", f"--filename={path}", f"--rw={operation}", *words, "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode != 0:
        raise OSError(5, f"fio ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}", path)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    side = job[operation]
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"]  # percent of the jobs' time; milliseconds
    return float(side["bw_bytes"]), busy * 2**30 / max(side["io_bytes"], 1)


def fio_job(path: str, size: int, config: AioConfig, operations: Sequence[str], *, direct: bool, seconds: float) -> str:
    """Return a job file that lets fio run as in `run_fio`, one direction after the other.

    In a directory, fio creates a file ``dsexplore.fio`` of `size` bytes; an existing file is used as it is.
    """
    options = _fio_options(size, config, seconds, direct=direct)
    if Path(path).is_dir():
        options |= {"filename": str(Path(path) / "dsexplore.fio"), "filesize": str(size), "unlink": "1"}
    else:
        options |= {"filename": path, "allow_file_create": "0"}
    lines = ["[global]", *(f"{key}={value}" if value else key for key, value in options.items())]
    for operation in operations:
        lines += ["", f"[{operation}]", f"rw={operation}", "stonewall"]
    return "\n".join([*lines, ""])


def _fio_options(size: int, config: AioConfig, seconds: float, *, direct: bool) -> dict[str, str]:
    """Return a setting as fio's options; an option without a value is a switch."""
    part = size // config.thread_count // config.block_size * config.block_size
    return {
        "ioengine": "libaio",
        "direct": str(int(direct)),
        "bs": str(config.block_size),
        "iodepth": str(config.queue_depth),
        "iodepth_batch_submit": str(1 if config.single_submit else config.queue_depth),
        "iodepth_batch_complete_min": str(1 if config.overlap_events else config.queue_depth),
        "numjobs": str(config.thread_count),
        "size": str(part),
        "offset_increment": str(part),
        "thread": "",
        "group_reporting": "",
        "time_based": "",
        "runtime": f"{max(int(seconds * 1000), 1)}ms",
    }


class DeepSpeedHandle:
    """DeepSpeed's own handle, on memory that DeepSpeed locked; other memory it would copy."""

    def __init__(self, config: AioConfig) -> None:
        self.handle = deepspeed_module().aio_handle(
            config.block_size, config.queue_depth, config.single_submit, config.overlap_events, config.thread_count
        )

    def new_tensor(self, nbytes: int) -> Any:
        """Return a byte tensor as DeepSpeed locks it: on ordinary pages, unless the system makes all pages huge."""
        import torch

        return self.handle.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))

    def free_tensor(self, tensor: Any) -> None:
        """Free a tensor of `new_tensor`; it must not be used any more."""
        self.handle.free_cpu_locked_tensor(tensor)

    def run(self, path: str, tensor: Any, operation: str) -> tuple[float, float]:
        """Move the whole tensor from or to the start of a file; return (bytes per second, processor ms per GiB)."""
        begun, busy = time.perf_counter(), time.process_time()
        if operation == "read":
            self.handle.sync_pread(tensor, os.fspath(path), 0)
        else:
            self.handle.sync_pwrite(tensor, os.fspath(path), 0)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
        return float(tensor.nbytes / seconds), float(cpu * 1e3 * 2**30 / tensor.nbytes)


def run_deepspeed(
    path: str, size: int, configs: Sequence[AioConfig], operation: str, turns: int
) -> list[tuple[float, ...]]:
    """Return the rates of each setting, measured in turns, on memory of DeepSpeed's own."""
    handles = [DeepSpeedHandle(config) for config in configs]
    unit = max(handle.handle.get_alignment() for handle in handles)
    tensors = [handle.new_tensor(size // unit * unit) for handle in handles]
    try:
        rates = [
            [handle.run(path, tensor, operation)[0] for handle, tensor in zip(handles, tensors, strict=True)]
            for _ in range(turns)
        ]
    finally:
        for handle, tensor in zip(handles, tensors, strict=True):
            handle.free_tensor(tensor)
    return list(zip(*rates, strict=True))
