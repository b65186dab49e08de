"""Parse command lines that launch programs on clusters: ``torchrun …``, ``accelerate launch …``, ``deepspeed …``.

Read are the numbers of nodes and processes, and the program; other options have no effect in a simulated world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsexplore.errors import UsageError


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
    """For an option, the environment variable that passes on its value."""


@dataclass(frozen=True)
class _Launcher:
    """The options of one launcher; those that are not listed take one value."""

    flags: frozenset[str]
    """Options without a value."""
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    module: tuple[str, ...] = ("-m", "--module")
    variables: tuple[tuple[str, str], ...] = ()
    """For an option, the environment variable that passes on its value."""
    runs_python: bool = False
    """True if ``python`` stands before the script."""


_TORCHRUN = _Launcher(
    flags=frozenset({"--standalone", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"}),
    nodes=("--nnodes",),
    per_node=("--nproc-per-node",),
)
_LAUNCHERS: dict[tuple[str, ...], _Launcher] = {
    ("torchrun",): _TORCHRUN,
    ("torch.distributed.run",): _TORCHRUN,
    ("torch.distributed.launch",): _TORCHRUN,
    ("accelerate", "launch"): _Launcher(
        flags=frozenset(
            f"--{name}"
            for name in (
                *("multi-gpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "cpu", "tpu"),
                *("quiet", "no-python", "same-network", "enable-cpu-affinity", "debug", "use-mps-device", "use-xpu"),
                *("fsdp-activation-checkpointing", "standalone", "tpu-use-cluster", "dynamo-use-fullgraph"),
            )
        ),
        nodes=("--num-machines",),
        processes=("--num-processes",),
        variables=(
            ("--mixed-precision", "ACCELERATE_MIXED_PRECISION"),
            ("--gradient-accumulation-steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
        ),
    ),
    ("deepspeed",): _Launcher(
        flags=frozenset(
            {
                *("--no-python", "--no-local-rank", "--force-multi", "--enable-each-rank-log", "--bind-cores-to-rank"),
                *("--no-ssh", "--no-ssh-check", "--save-pid", "--use-dedicated-env", "--elastic-training"),
            }
        ),
        nodes=("--num-nodes",),
        per_node=("--num-gpus", "--num-accelerators"),
        module=("--module",),
    ),
    ("srun",): _Launcher(
        flags=frozenset({"-l", "--label", "-u", "--unbuffered", "-K", "--kill-on-bad-exit", "--exclusive"}),
        nodes=("-N", "--nodes"),
        per_node=("--ntasks-per-node",),
        processes=("-n", "--ntasks"),
        module=(),
        runs_python=True,
    ),
    ("mpirun",): _Launcher(
        flags=frozenset({"--allow-run-as-root", "--oversubscribe", "--tag-output"}),
        per_node=("-npernode", "--npernode", "-ppn"),
        processes=("-n", "-np", "--np", "-c"),
        module=(),
        runs_python=True,
    ),
}
_ALIASES = {"mpiexec": "mpirun"}


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
        raise UsageError(f"{' '.join(words)} runs no program: give a script or -m module behind it")
    return read_launch_line(rest, is_module=is_module)


def _behind_launcher(name: str, launcher: _Launcher, words: Sequence[str]) -> Launched:
    numbers: dict[str, int | None] = {}
    variables: dict[str, str] = {}
    handed_on = dict(launcher.variables)
    rest, is_module = list(words), False
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        key = option if not option.startswith("--") else f"--{option[2:].replace('_', '-')}"
        if key in launcher.module:
            is_module = True
            continue
        if key in launcher.flags:
            continue
        if not value:
            if not rest:
                raise UsageError(f"{name} {option}: a value and the program are missing")
            value = rest.pop(0)
        for kind in ("nodes", "per_node", "processes"):
            if key in getattr(launcher, kind):
                numbers[kind] = _number(value)
        if key in handed_on:
            variables[handed_on[key]] = value
    if not rest:
        raise UsageError(f"{name} launches no program: give a script, or -m module, behind its options")
    if launcher.runs_python and is_python(rest[0]):
        behind = _behind_python(rest)
        rest, is_module = [behind.script, *behind.arguments], behind.is_module
    return Launched(rest[0], tuple(rest[1:]), is_module, **numbers, variables=tuple(variables.items()))


def _number(value: str) -> int | None:
    """Return the number in an option's value; for a range ``1:4``, the maximum; None for a word such as ``gpu``."""
    last = value.rpartition(":")[2]
    return int(last) if last.isdecimal() else None
