"""The program ``nvidia-smi`` for GPUs that a CPU stands in for; it runs in its own process, without torch.

Memory in use and utilization are 0. A field that is not known is ``[N/A]``, as the real program prints it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "[N/A]"


@dataclass(frozen=True)
class Answers:
    """The GPUs of a node.

    Attributes:
        name: name of each GPU.
        memory_mib: memory of each GPU, MiB.
        capability: compute capability, ``"9.0"``.
        count: number of GPUs.
    """

    name: str
    memory_mib: int
    capability: str
    count: int

    def field(self, field: str, index: int) -> str:
        """Return the value of a field of ``--query-gpu`` for a GPU, with its unit."""
        return {
            "name": self.name,
            "gpu_name": self.name,
            "count": str(self.count),
            "index": str(index),
            "memory.total": f"{self.memory_mib} MiB",
            "memory.free": f"{self.memory_mib} MiB",
            "memory.used": "0 MiB",
            "memory.reserved": "0 MiB",
            "utilization.gpu": "0 %",
            "utilization.memory": "0 %",
            "compute_cap": self.capability,
            "uuid": uuid_of(index),
            "gpu_uuid": uuid_of(index),
        }.get(field, UNKNOWN)

    def table(self, indices: Sequence[int]) -> str:
        """Return the table that ``nvidia-smi`` prints without options, with the known columns only."""
        rule = "+" + "-" * 77 + "+"
        rows = [
            f"| {index:>3}  {self.name:<34} | {'0MiB':>10} / {self.memory_mib}MiB | 0%  Default |" for index in indices
        ]
        return "\n".join((rule, "| NVIDIA-SMI, of GPUs that a CPU stands in for" + " " * 31 + "|", rule, *rows, rule))


def uuid_of(index: int) -> str:
    """Return the uuid of the GPU with this index, unique on its node."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def answer(answers: Answers, arguments: Sequence[str]) -> int:
    """Print the output of ``nvidia-smi`` for these command-line arguments, and return its exit status."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False, add_help=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps", "--query-accounted-apps")
    parser.add_argument("--format", default="csv")
    options, _ = parser.parse_known_args(arguments)
    try:
        indices = range(answers.count) if options.id is None else [int(index) for index in options.id.split(",")]
    except ValueError:
        indices = [answers.count]
    if any(not 0 <= index < answers.count for index in indices):
        print("No devices were found")
        return 6
    if options.list_gpus:
        print("\n".join(f"GPU {index}: {answers.name} (UUID: {uuid_of(index)})" for index in indices))
    elif options.query_gpu:
        print("\n".join(_csv(answers, options.query_gpu, options.format, indices)))
    elif options.query_compute_apps:
        print("" if "noheader" in options.format else options.query_compute_apps.replace(",", ", "))
    else:
        print(answers.table(indices))
    return 0


def _csv(answers: Answers, query: str, layout: str, indices: Sequence[int]) -> list[str]:
    fields = [field.strip() for field in query.split(",")]
    rows = [[answers.field(field, index) for field in fields] for index in indices]
    if "nounits" in layout:
        rows = [[value.removesuffix(" MiB").removesuffix(" %") for value in row] for row in rows]
    units = {"memory": " [MiB]", "utilization": " [%]"}
    header = [field + units.get(field.partition(".")[0], "") for field in fields]
    return [", ".join(row) for row in (rows if "noheader" in layout else [header, *rows])]


if __name__ == "__main__":
    name, memory_mib, capability, count, *arguments = sys.argv[1:]
    gpus = Answers(name=name, memory_mib=int(memory_mib), capability=capability, count=int(count))
    sys.exit(answer(gpus, arguments))
