"""Parse command lines that launch programs on clusters: ``torchrun …``, ``accelerate launch …``, ``deepspeed …``.

Read are the numbers of nodes and processes, the program, and what accelerate passes on in environment variables; other
options have no effect in a simulated world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.accelerate_launch import config_options, options_as_variables


@dataclass(frozen=True)
class Launched:
    """Content of a launch line."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool = False
    nodes: int | None = None
    per_node: int | None = None
    processes: int | None = None
    """Number of processes on all nodes together."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables that the launcher sets for its options, with their values."""


@dataclass(frozen=True)
class _Launcher:
    """The options of one launcher; those that are not listed take one value."""

    flags: frozenset[str]
    """Options without a value."""
    pairs: frozenset[str] = frozenset()
    """Options with two values."""
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Options that list hosts, each with its slots: ``a:0,1@b:0,1``, or a file of them."""
    hosts_are_counted: bool = False
    """True if they are written with numbers of slots: ``a:2,b:2``."""
    module: tuple[str, ...] = ("-m", "--module")
    starts: int | None = None
    """Processes that it starts on a node if nothing says how many; None for one per GPU."""
    is_accelerate: bool = False
    runs_commands: bool = False
    """True if a command may follow its options: ``python train.py``, or a launcher."""


_TORCHRUN = _Launcher(
    flags=frozenset({"--standalone", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"}),
    nodes=("--nnodes",),
    per_node=("--nproc-per-node",),
    starts=1,
)
_ACCELERATE = _Launcher(
    flags=frozenset(
        {
            "-q",
            *(
                f"--{name}"
                for name in (
                    *("multi-gpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "cpu"),
                    *("tpu", "tpu-use-cluster", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "downcast-bf16"),
                    *("quiet", "no-python", "same-network", "enable-cpu-affinity", "debug", "use-mps-device"),
                    *("use-xpu", "standalone", "dynamo-use-fullgraph", "dynamo-use-dynamic"),
                    *("dynamo-use-regional-compilation", "fp8-use-autocast-during-eval"),
                )
            ),
        }
    ),
    nodes=("--num-machines",),
    processes=("--num-processes",),
    is_accelerate=True,
)
_DEEPSPEED = _Launcher(
    flags=frozenset(
        f"--{name}"
        for name in (
            *("no-python", "no-local-rank", "force-multi", "bind-cores-to-rank", "no-ssh", "no-ssh-check", "save-pid"),
            *("use-dedicated-env", "elastic-training"),
        )
    ),
    nodes=("--num-nodes",),
    per_node=("--num-gpus", "--num-accelerators"),
    hosts=("-i", "--include", "-H", "--hostfile"),
    module=("--module",),
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
    ("srun",): _Launcher(
        flags=frozenset(
            {
                *("-l", "--label", "-u", "--unbuffered", "-K", "--kill-on-bad-exit", "--exclusive", "--exact"),
                *(
                    "-E",
                    "--preserve-env",
                    "--overlap",
                    "-O",
                    "--overcommit",
                    "--pty",
                    "-Q",
                    "--quiet",
                    "-v",
                    "--verbose",
                ),
            }
        ),
        nodes=("-N", "--nodes"),
        per_node=("--ntasks-per-node",),
        processes=("-n", "--ntasks"),
        module=(),
        starts=1,
        runs_commands=True,
    ),
    ("mpirun",): _Launcher(
        flags=frozenset(
            {
                *("--allow-run-as-root", "--oversubscribe", "--nooversubscribe", "--tag-output", "--bind-to-core"),
                *("--use-hwthread-cpus", "--report-bindings", "--display-map", "--display-allocation", "-q", "-v"),
                *("-genvall", "-l"),
            }
        ),
        pairs=frozenset({"-mca", "--mca", "-gmca", "--gmca", "-genv", "-env"}),
        per_node=("-npernode", "--npernode", "-N", "-ppn"),
        processes=("-n", "-np", "--np", "-c"),
        hosts=("-H", "-host", "--host", "-hosts"),
        hosts_are_counted=True,
        module=(),
        runs_commands=True,
    ),
}
_ALIASES = {"mpiexec": "mpirun"}
_VARIABLES = {
    "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
"""What ``accelerate launch`` passes on of its options, where accelerate is not installed and cannot say it itself."""


def is_python(word: str) -> bool:
    """Return True for the name of a Python interpreter, ``python3.12``."""
    return Path(word).name.rstrip("0123456789.") in ("python", "python3")


def read_launch_line(words: Sequence[str], *, is_module: bool = False) -> Launched:
    """Parse a command line that runs a program with a launcher, with Python, or directly.

    Worked example: ``torchrun --nproc-per-node 4 train.py --lr 1`` → train.py with ``--lr 1``, 4 processes a node.

    Args:
        words: of the line.
        is_module: whether the first word is the name of a module.

    Raises:
        UsageError: a launcher without a program.
    """
    first = _ALIASES.get(Path(words[0]).name, Path(words[0]).name)
    if is_python(words[0]) and not is_module and not Path(words[0]).is_file():
        return _behind_python(words)
    for name, launcher in _LAUNCHERS.items():
        is_meant = first == name[0] and tuple(words[1 : len(name)]) == name[1:]
        if is_meant and is_module == ("." in name[0]) and not (Path(words[0]).is_file() and not is_module):
            return _behind_launcher(" ".join(name), launcher, words[len(name) :])
    return Launched(words[0], tuple(words[1:]), is_module)


def _behind_python(words: Sequence[str]) -> Launched:
    """Parse ``[options] (script | -m module)``, the arguments of Python."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    is_module = bool(rest) and rest[0] == "-m"
    rest = rest[is_module:]
    if not rest:
        raise UsageError(f"{' '.join(words)} runs no program: give a script or -m module after it")
    return read_launch_line(rest, is_module=is_module)


def _behind_launcher(name: str, launcher: _Launcher, words: Sequence[str]) -> Launched:
    given, rest, is_module = _read_options(name, launcher, words)
    if not rest:
        raise UsageError(f"{name} launches no program: give a script, or -m module, after its options")
    variables: dict[str, str] = {}
    if launcher.is_accelerate:
        given = {**config_options(given.get("--config-file")), **given}
        variables = {_VARIABLES[option]: value for option, value in given.items() if option in _VARIABLES}
        variables |= options_as_variables(words)
    numbers = {
        kind: next((_number(given[option]) for option in getattr(launcher, kind) if option in given), None)
        for kind in ("nodes", "per_node", "processes")
    }
    for option in launcher.hosts:
        if option in given:
            listed = _count_hosts(given[option], launcher.hosts_are_counted)
            numbers = {kind: number if number is not None else listed.get(kind) for kind, number in numbers.items()}
    if launcher.runs_commands:
        return _count_nodes(read_launch_line(rest), numbers, launcher.starts)
    if numbers["per_node"] is None and numbers["processes"] is None:
        asks_for_gpus = launcher.starts is None or any(option in given for option in launcher.per_node)
        if asks_for_gpus:
            numbers["nodes"] = numbers["nodes"] or 1
        elif numbers["nodes"] is not None:
            numbers["per_node"] = launcher.starts
    return Launched(rest[0], tuple(rest[1:]), is_module, **numbers, variables=tuple(variables.items()))


def _read_options(name: str, launcher: _Launcher, words: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """Parse a launcher's options.

    Worked example: ``-n4 --mpi=pmix python t.py`` of srun → ``{"-n": "4", "--mpi": "pmix"}``, ``["python", "t.py"]``.

    Returns:
        the value of each option; the words behind them; whether the program is a module.
    """
    given: dict[str, str] = {}
    rest, is_module = list(words), False
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        key = option if not option.startswith("--") else f"--{option[2:].replace('_', '-')}"
        if key in launcher.module:
            is_module = True
            continue
        if key in launcher.flags:
            continue
        if not equals and key[0] != key[1:2] and key[2:].isdecimal():  # -n4, -r3
            given[key[:2]] = key[2:]
            continue
        count = 2 if key in launcher.pairs else 0 if equals else 1
        if len(rest) < count:
            raise UsageError(f"{name} {option}: a value and the program are missing")
        given[key] = value if equals else " ".join(rest[:count])
        del rest[:count]
    return given, rest, is_module


def _count_nodes(launched: Launched, numbers: dict[str, int | None], starts: int | None) -> Launched:
    """Return what a command launches that a scheduler starts on several nodes, be it a program or a launcher itself.

    Worked example: ``srun -N 2 torchrun --nproc-per-node 8 train.py`` → 2 nodes of 8 processes.
    """
    if launched.nodes is not None or launched.per_node is not None or launched.processes is not None:
        nodes = launched.nodes if launched.nodes not in (None, 1) else numbers["nodes"] or numbers["processes"]
        return replace(launched, nodes=nodes or launched.nodes)
    if numbers["nodes"] is not None and numbers["per_node"] is None and numbers["processes"] is None:
        numbers = {**numbers, "per_node": starts}
    return replace(launched, nodes=numbers["nodes"], per_node=numbers["per_node"], processes=numbers["processes"])


def _count_hosts(text: str, are_counted: bool) -> dict[str, int | None]:
    """Return the numbers of nodes and processes in a list of hosts.

    Worked example: ``a:0,1@b:0,1`` of DeepSpeed, and ``a:2,b:2`` of MPI, are 2 nodes and 4 processes.

    Args:
        text: of the option; for DeepSpeed also a file with lines like ``a slots=2``, if there is one.
        are_counted: whether slots are given as numbers.
    """
    if are_counted:
        slots = [_number(host) if ":" in host else None for host in text.split(",")]
    elif Path(text).is_file():
        lines = [line.split("#")[0].strip() for line in Path(text).read_text().splitlines()]
        slots = [_number(line.rpartition("slots=")[2]) for line in lines if line]
    elif text[:1] in ("/", ".") or (":" not in text and "@" not in text):
        return {}  # a file that is elsewhere
    else:
        slots = [len(host.partition(":")[2].split(",")) if ":" in host else None for host in text.split("@")]
    given = [number for number in slots if number is not None]
    return {"nodes": len(slots), "processes": sum(given) if len(given) == len(slots) else None}


def _number(value: str) -> int | None:
    """Return the number in an option's value; for a range ``1:4``, the maximum; None for a word such as ``gpu``."""
    last = value.rpartition(":")[2]
    return int(last) if last.isdecimal() else None
