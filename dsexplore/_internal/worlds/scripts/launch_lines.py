"""Parse command lines that launch programs on clusters: ``torchrun …``, ``accelerate launch …``, ``deepspeed …``.

The numbers of nodes and processes, the program, and the environment variables that accelerate sets are read; other
options have no effect in a simulated world.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.accelerate_launch import launch_settings

_SHORT_OPTION = re.compile(r"(-[a-zA-Z])(\d+)")
"""An option of one letter with its number, ``-n4``."""


@dataclass(frozen=True)
class Launched:
    """The program that a command line launches, and the numbers of its processes.

    Attributes:
        script: path of the script, or name of the module.
        arguments: arguments of the program.
        is_module: True for a module.
        nodes: number of nodes; None if the line does not say it.
        per_node: number of processes on each node; None if the line does not say it.
        processes: number of processes on all nodes together; None if the line does not say it.
        variables: names and values of environment variables that the launcher sets for its options.
    """

    script: str
    arguments: tuple[str, ...]
    is_module: bool = False
    nodes: int | None = None
    per_node: int | None = None
    processes: int | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Launcher:
    """The options of one launcher; options that are not listed take one value.

    Attributes:
        flags: options without a value.
        pairs: options with two values.
        nodes: options for the number of nodes.
        per_node: options for the number of processes on each node.
        processes: options for the number of processes on all nodes.
        hosts: options that list hosts, each with its slots: ``a:0,1@b:0,1``, or a file of them.
        hosts_are_counted: True if hosts are listed with numbers of slots: ``a:2,b:2``.
        module: options that run a module.
        processes_by_default: number of processes on each node unless an option says it; None for one per GPU.
        read_settings: returns all options and the environment variables that the launcher sets, given the options and
            words of the line; None if the line has all options, and it sets none.
        runs_commands: True if a command may follow its options: ``python train.py``, or a launcher.
    """

    flags: frozenset[str]
    pairs: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    hosts_are_counted: bool = False
    module: tuple[str, ...] = ("-m", "--module")
    processes_by_default: int | None = None
    read_settings: Callable[[Mapping[str, str], Sequence[str]], tuple[dict[str, str], dict[str, str]]] | None = None
    runs_commands: bool = False


def _words(text: str, prefix: str = "") -> frozenset[str]:
    """Split a text into words, and put a prefix before each."""
    return frozenset(f"{prefix}{word}" for word in text.split())


_TORCHRUN = _Launcher(
    flags=_words("standalone no-python run-path use-env virtual-local-rank", "--"),
    nodes=("--nnodes",),
    per_node=("--nproc-per-node",),
    processes_by_default=1,
)
_ACCELERATE = _Launcher(
    flags=_words(
        """
        multi-gpu use-deepspeed use-fsdp use-megatron-lm use-parallelism-config cpu use-mps-device use-xpu tpu
        tpu-use-cluster tpu-cluster no-tpu-cluster tpu-use-sudo downcast-bf16 quiet no-python same-network
        enable-cpu-affinity debug standalone dynamo-use-fullgraph dynamo-use-dynamic dynamo-use-regional-compilation
        fp8-use-autocast-during-eval
        """,
        "--",
    )
    | {"-q"},
    nodes=("--num-machines",),
    processes=("--num-processes",),
    read_settings=launch_settings,
)
_DEEPSPEED = _Launcher(
    flags=_words(
        "no-python no-local-rank force-multi bind-cores-to-rank no-ssh no-ssh-check save-pid use-dedicated-env "
        "elastic-training",
        "--",
    ),
    nodes=("--num-nodes",),
    per_node=("--num-gpus", "--num-accelerators"),
    hosts=("-i", "--include", "-H", "--hostfile"),
    module=("--module",),
)
_SRUN = _Launcher(
    flags=_words(
        "-l --label -u --unbuffered -K --kill-on-bad-exit --exclusive --exact -E --preserve-env --overlap -O "
        "--overcommit --pty -Q --quiet -v --verbose"
    ),
    nodes=("-N", "--nodes"),
    per_node=("--ntasks-per-node",),
    processes=("-n", "--ntasks"),
    module=(),
    processes_by_default=1,
    runs_commands=True,
)
_MPIRUN = _Launcher(
    flags=_words(
        "--allow-run-as-root --oversubscribe --nooversubscribe --tag-output --bind-to-core --use-hwthread-cpus "
        "--report-bindings --display-map --display-allocation -q -v -genvall -l"
    ),
    pairs=_words("-mca --mca -gmca --gmca -genv -env"),
    per_node=("-npernode", "--npernode", "-N", "-ppn"),
    processes=("-n", "-np", "--np", "-c"),
    hosts=("-H", "-host", "--host", "-hosts"),
    hosts_are_counted=True,
    module=(),
    runs_commands=True,
)
_LAUNCHERS: dict[tuple[str, ...], _Launcher] = {
    ("torchrun",): _TORCHRUN,
    ("torch.distributed.run",): _TORCHRUN,
    ("torch.distributed.launch",): _TORCHRUN,
    ("accelerate", "launch"): _ACCELERATE,
    ("accelerate-launch",): _ACCELERATE,
    ("accelerate.commands.launch",): _ACCELERATE,
    ("deepspeed",): _DEEPSPEED,
    ("deepspeed.launcher.runner",): _DEEPSPEED,
    ("srun",): _SRUN,
    ("mpirun",): _MPIRUN,
    ("mpiexec",): _MPIRUN,
}
"""{the words that a launcher's line begins with, or the name of its module: the launcher}."""


def is_python(word: str) -> bool:
    """Return True for the name of a Python interpreter, ``python3.12``."""
    return Path(word).name.rstrip("0123456789.") == "python"


def read_launch_line(words: Sequence[str], *, is_module: bool = False) -> Launched:
    """Parse a command line that runs a program with a launcher, with Python, or directly.

    Worked example: ``torchrun --nproc-per-node 4 train.py --lr 1`` → train.py with ``--lr 1``, 4 processes a node.

    Args:
        words: the words of the line.
        is_module: True if the first word is the name of a module.

    Raises:
        UsageError: a launcher without a program.
    """
    first = Path(words[0]).name
    is_file = Path(words[0]).is_file() and not is_module
    if is_python(words[0]) and not is_module and not is_file:
        return _parse_python(words)
    for name, launcher in _LAUNCHERS.items():
        is_launcher = first == name[0] and tuple(words[1 : len(name)]) == name[1:] and is_module == ("." in name[0])
        if is_launcher and not is_file:
            return _parse_launcher(" ".join(name), launcher, words[len(name) :])
    return Launched(words[0], tuple(words[1:]), is_module)


def _parse_python(words: Sequence[str]) -> Launched:
    """Parse a line ``python [options] (script | -m module)``."""
    remaining = list(words[1:])
    while remaining and remaining[0].startswith("-") and remaining[0] != "-m":
        if remaining[0] == "-c":
            raise UsageError(f"{' '.join(words)}: -c gives no program to trace: write it to a script")
        del remaining[: 2 if remaining[0] in ("-X", "-W") else 1]
    is_module = bool(remaining) and remaining[0] == "-m"
    if is_module:
        del remaining[0]
    if not remaining:
        raise UsageError(f"{' '.join(words)} runs no program: give a script or -m module after it")
    return read_launch_line(remaining, is_module=is_module)


class _Counts(NamedTuple):
    """Numbers of nodes and processes, as in `Launched`; None for what a line does not say."""

    nodes: int | None = None
    per_node: int | None = None
    processes: int | None = None


def _parse_launcher(name: str, launcher: _Launcher, words: Sequence[str]) -> Launched:
    """Return the program that a launcher starts, with its numbers of processes; `words` follow the launcher's name."""
    options, program, is_module = _read_line(name, launcher, words)
    if not program:
        raise UsageError(f"{name} launches no program: give a script, or -m module, after its options")
    variables: dict[str, str] = {}
    if launcher.read_settings is not None:
        options, variables = launcher.read_settings(options, words)
    counts = _counts(launcher, options)
    if launcher.runs_commands:
        return _on_nodes(read_launch_line(program), counts, launcher.processes_by_default)
    if counts.per_node is None and counts.processes is None:
        if launcher.processes_by_default is None or any(option in options for option in launcher.per_node):
            counts = counts._replace(nodes=counts.nodes or 1)  # a process per GPU; the line does not say how many
        elif counts.nodes is not None:
            counts = counts._replace(per_node=launcher.processes_by_default)
    return Launched(program[0], tuple(program[1:]), is_module, **counts._asdict(), variables=tuple(variables.items()))


def _counts(launcher: _Launcher, options: Mapping[str, str]) -> _Counts:
    """Return the numbers that a launcher's options say; its hosts are counted for those that no other option says."""
    counts = _Counts(
        nodes=_first_number(options, launcher.nodes),
        per_node=_first_number(options, launcher.per_node),
        processes=_first_number(options, launcher.processes),
    )
    for option in launcher.hosts:
        if option in options:
            hosts = _count_hosts(options[option], are_counted=launcher.hosts_are_counted)
            counts = counts._replace(
                nodes=hosts.nodes if counts.nodes is None else counts.nodes,
                processes=hosts.processes if counts.processes is None else counts.processes,
            )
    return counts


def _first_number(options: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Return the number in the first of these options that is present; None without one, or for a word."""
    for name in names:
        if name in options:
            return _number(options[name])
    return None


class _Line(NamedTuple):
    """The words after the name of a launcher."""

    options: dict[str, str]
    """{option: its value}, without options that take none."""
    program: list[str]
    """The words after the options."""
    is_module: bool
    """True if the program is a module."""


def _read_line(name: str, launcher: _Launcher, words: Sequence[str]) -> _Line:
    """Parse the words after the name of a launcher.

    Worked example: ``-n4 --mpi=pmix python t.py`` of srun → ``{"-n": "4", "--mpi": "pmix"}``, ``["python", "t.py"]``.
    """
    options: dict[str, str] = {}
    remaining, is_module = list(words), False
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == "--":
            break
        key = option if not option.startswith("--") else f"--{option[2:].replace('_', '-')}"
        if key in launcher.module:
            is_module = True
        elif key in launcher.flags:
            continue
        elif not equals and (short := _SHORT_OPTION.fullmatch(key)):
            options[short[1]] = short[2]
        elif equals and key not in launcher.pairs:
            options[key] = value
        else:
            count = 2 if key in launcher.pairs else 1
            if len(remaining) < count:
                raise UsageError(f"{name} {option}: a value and the program are missing")
            options[key] = value if equals else " ".join(remaining[:count])
            del remaining[:count]
    return _Line(options=options, program=remaining, is_module=is_module)


def _on_nodes(launched: Launched, counts: _Counts, processes_by_default: int | None) -> Launched:
    """Return a program, or what a launcher launches, with the numbers of the scheduler that starts it on its nodes.

    Worked example: ``srun -N 2 torchrun --nproc-per-node 8 train.py`` → 2 nodes of 8 processes.

    Args:
        launched: the command that the scheduler starts on each node.
        counts: the scheduler's numbers.
        processes_by_default: number of processes on each node unless the scheduler's options say it.
    """
    if launched.nodes is not None or launched.per_node is not None or launched.processes is not None:
        nodes = launched.nodes if launched.nodes not in (None, 1) else counts.nodes or counts.processes
        return replace(launched, nodes=nodes or launched.nodes)
    if counts.nodes is not None and counts.per_node is None and counts.processes is None:
        counts = counts._replace(per_node=processes_by_default)
    return replace(launched, **counts._asdict())


def _count_hosts(text: str, *, are_counted: bool) -> _Counts:
    """Return the numbers of nodes and processes in a list of hosts; none for a file on another machine.

    Worked example: ``a:0,1@b:0,1`` of DeepSpeed, and ``a:2,b:2`` of MPI, are 2 nodes and 4 processes.

    Args:
        text: value of the option; for DeepSpeed also the path of a file with lines like ``a slots=2``.
        are_counted: True if each host has a number of slots, False if its slots are listed.
    """
    if are_counted:
        slots = [_number(host) if ":" in host else None for host in text.split(",")]
    elif Path(text).is_file():
        lines = [line.split("#")[0].strip() for line in Path(text).read_text().splitlines()]
        slots = [_number(line.rpartition("slots=")[2]) for line in lines if line]
    elif text[:1] in ("/", ".") or (":" not in text and "@" not in text):
        return _Counts()
    else:
        slots = [len(host.partition(":")[2].split(",")) if ":" in host else None for host in text.split("@")]
    known = [number for number in slots if number is not None]
    return _Counts(nodes=len(slots), processes=sum(known) if len(known) == len(slots) else None)


def _number(value: str) -> int | None:
    """Return the number in an option's value; for a range ``1:4``, the maximum; None for a word such as ``gpu``."""
    last = value.rpartition(":")[2]
    return int(last) if last.isdecimal() else None
