"""Run DeepSpeed's own handle and fio on the sweep's file, to compare their rates with our engines'."""

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
        except Exception as error:  # its build may raise any exception
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

    As in `Bench`, each job moves its own part of the file sequentially; each has depth × block bytes of memory.

    Args:
        path: path of the file.
        size: bytes of the file to use.
        config: the setting.
        operation: ``read`` or ``write``.
        seconds: how long fio runs.
        direct: use O_DIRECT.
        iomem: fio's kind of memory.

    Raises:
        OSError: fio cannot be started, or fails; the error has fio's message.
    """
    options = {**_fio_options(size, config, seconds, direct=direct), "iomem": iomem, "allow_file_create": "0"}
    arguments = [f"--{key}={setting}" if setting else f"--{key}" for key, setting in options.items()]
    job_arguments = ["--name=reference", f"--filename={path}", f"--rw={operation}"]
    command = ["fio", *job_arguments, *arguments, "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode != 0:
        raise OSError(5, f"fio ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}", path)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    figures = job[operation]
    cpu_ms = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"]  # percent of milliseconds
    return float(figures["bw_bytes"]), cpu_ms * 2**30 / max(figures["io_bytes"], 1)


def fio_job(path: str, size: int, config: AioConfig, operations: Sequence[str], *, direct: bool, seconds: float) -> str:
    """Return a job file with which fio runs as in `run_fio`, one direction after the other.

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
    """Return the options of fio for a setting; those with an empty value are switches."""
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
    """DeepSpeed's own handle, with tensors that DeepSpeed has locked; it would copy others."""

    def __init__(self, config: AioConfig) -> None:
        self.handle = deepspeed_module().aio_handle(
            config.block_size, config.queue_depth, config.single_submit, config.overlap_events, config.thread_count
        )

    def new_tensor(self, nbytes: int) -> Any:
        """Return a tensor of bytes that DeepSpeed has locked, on ordinary pages unless the system uses huge ones."""
        import torch

        return self.handle.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))

    def free_tensor(self, tensor: Any) -> None:
        """Free a tensor of `new_tensor`, which must not be used afterwards."""
        self.handle.free_cpu_locked_tensor(tensor)

    def run(self, path: str, tensor: Any, operation: str) -> tuple[float, float]:
        """Move a tensor from or to the start of a file; return (bytes per second, processor milliseconds per GiB)."""
        begun, cpu_begun = time.perf_counter(), time.process_time()
        if operation == "read":
            self.handle.sync_pread(tensor, os.fspath(path), 0)
        else:
            self.handle.sync_pwrite(tensor, os.fspath(path), 0)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        return float(tensor.nbytes / seconds), float(cpu_seconds * 1e3 * 2**30 / tensor.nbytes)


def run_deepspeed(
    path: str, size: int, configs: Sequence[AioConfig], operation: str, turns: int
) -> list[tuple[float, ...]]:
    """Return the bytes per second of each setting, measured in turn on memory that DeepSpeed allocates.

    Args:
        path: path of the file.
        size: bytes of the file to use, rounded down to DeepSpeed's alignment.
        configs: the settings.
        operation: ``read`` or ``write``.
        turns: number of runs of each setting.
    """
    handles = [DeepSpeedHandle(config) for config in configs]
    alignment = max(handle.handle.get_alignment() for handle in handles)
    tensors = [handle.new_tensor(size // alignment * alignment) for handle in handles]
    try:
        rates = [
            [handle.run(path, tensor, operation)[0] for handle, tensor in zip(handles, tensors, strict=True)]
            for _ in range(turns)
        ]
    finally:
        for handle, tensor in zip(handles, tensors, strict=True):
            handle.free_tensor(tensor)
    return list(zip(*rates, strict=True))
