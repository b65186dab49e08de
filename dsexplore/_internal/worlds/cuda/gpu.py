"""`Gpu`: the properties of a GPU that a CPU stands in for, read from a data file.

The files in ``gpus/`` name the public source of each number, and the day it was read. A user can give the path of a
file with the same keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dsexplore._internal.data_files import DataFiles
from dsexplore._internal.errors import UsageError

GPUS = DataFiles(Path(__file__).with_name("gpus"), "GPU", "h100")
MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One model of GPU.

    Attributes:
        name: name that ``torch.cuda.get_device_name()`` returns.
        vendor: ``"nvidia"`` or ``"amd"``.
        major: first number of the compute capability.
        minor: second number of the compute capability.
        total_memory_mib: device memory that torch reports, MiB.
        multi_processor_count: number of streaming multiprocessors, or compute units.
        l2_cache_mib: size of the level 2 cache, MiB.
        warp_size: threads in a warp, or wavefront.
        max_threads_per_multi_processor: resident threads of one multiprocessor.
        regs_per_multiprocessor: 32-bit registers of one multiprocessor.
        shared_memory_per_block: bytes of shared memory that a block gets by default.
        shared_memory_per_block_optin: bytes of shared memory that a block can opt in to.
        shared_memory_per_multiprocessor: bytes of shared memory of one multiprocessor.
        gcn_arch_name: AMD's name of the architecture; empty for NVIDIA.
        runtime: version of CUDA, or of HIP, that ``torch.version`` reports.
        nccl: version of NCCL, or of RCCL, that ``torch.cuda.nccl`` reports: three numbers with dots.
        sources: for each number, or group of numbers, its public source and the day it was read.
    """

    name: str
    vendor: str
    major: int
    minor: int
    total_memory_mib: int
    multi_processor_count: int
    l2_cache_mib: int
    warp_size: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    runtime: str
    nccl: str
    sources: dict[str, str]
    gcn_arch_name: str = ""

    @property
    def total_memory(self) -> int:
        """Device memory, bytes."""
        return self.total_memory_mib * MIB


def known_gpus() -> list[str]:
    """Return the names of the GPUs with a data file in this package.

    These files say what a simulated device reports to torch; those of `dsexplore.cost` say how fast a cluster is.
    """
    return GPUS.names()


def read_gpu(name: str) -> Gpu:
    """Load a GPU by its name, in any case, or from a ``.toml`` file.

    Raises:
        UsageError: there is no such GPU or file, or the file lacks a required key.
    """
    path = GPUS.path(name)
    return _checked(GPUS.read(path), path)


def _checked(data: dict[str, Any], path: Path) -> Gpu:
    """Return the content of a file as a `Gpu`; raise if a key is missing or unknown, or has a wrong value."""
    kinds: dict[str, type] = {field.name: _KINDS[str(field.type)] for field in fields(Gpu)}
    optional = {"gcn_arch_name"}
    GPUS.check_keys(path, data.keys(), kinds.keys() - optional, optional)
    for key, value in data.items():
        if type(value) is not kinds[key] or (isinstance(value, int) and value < 0):
            raise UsageError(f"the GPU file {path} has {key} = {value!r}: give {_WORDS[kinds[key]]}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", data["nccl"]):
        raise UsageError(f"the GPU file {path} has nccl = {data['nccl']!r}: give three numbers with dots, as '2.29.7'")
    if data["vendor"] not in ("nvidia", "amd"):
        raise UsageError(f"the GPU file {path} has vendor = {data['vendor']!r}: give 'nvidia' or 'amd'")
    return Gpu(**data)


_KINDS: dict[str, type] = {"str": str, "int": int, "dict[str, str]": dict}
_WORDS: dict[type, str] = {str: "a text", int: "a whole number, 0 or more", dict: "a table of texts"}
