"""Parse command lines that launch programs on clusters: ``torchrun …``, ``accelerate launch …``, ``deepspeed …``.

The numbers of nodes and processes, the program, and the environment variables that accelerate sets are read; other
options have no effect in a simulated world.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from dsexplore._internal.errors import UsageError


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
        starts: number of processes that it starts on a node unless an option says it; None for one per GPU.
        is_accelerate: True for accelerate, which has a configuration file and sets environment variables.
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
    starts: int | None = None
    is_accelerate: bool = False
    runs_commands: bool = False


def _words(text: str, prefix: str = "") -> frozenset[str]:
    """Split a text into words, and put a prefix before each."""
    return frozenset(f"{prefix}{word}" for word in text.split())


_TORCHRUN = _Launcher(
    flags=_words("standalone no-python run-path use-env virtual-local-rank", "--"),
    nodes=("--nnodes",),
    per_node=("--nproc-per-node",),
    starts=1,
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
    is_accelerate=True,
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
    starts=1,
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
_VARIABLES = {
    "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
"""{option of ``accelerate launch``: the environment variable that it becomes}, for when accelerate is not installed."""

_CONFIG_OPTIONS = ("num_processes", "num_machines", "mixed_precision", "gradient_accumulation_steps")
_WITHOUT_EFFECT = ("OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
"""Variables with no effect on a process that is already running, or on a simulated GPU."""


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


def _parse_launcher(name: str, launcher: _Launcher, words: Sequence[str]) -> Launched:
    """Parse the words after the name of a launcher."""
    options, program, is_module = _read_options(name, launcher, words)
    if not program:
        raise UsageError(f"{name} launches no program: give a script, or -m module, after its options")
    variables: dict[str, str] = {}
    if launcher.is_accelerate:
        options = {**_accelerate_config(options.get("--config-file")), **options}
        variables = {_VARIABLES[option]: value for option, value in options.items() if option in _VARIABLES}
        variables |= _accelerate_variables(words)
    numbers = {
        "nodes": _first_number(options, launcher.nodes),
        "per_node": _first_number(options, launcher.per_node),
        "processes": _first_number(options, launcher.processes),
    }
    for option in launcher.hosts:
        if option in options:
            counts = _count_hosts(options[option], are_counted=launcher.hosts_are_counted)
            numbers = {kind: number if number is not None else counts.get(kind) for kind, number in numbers.items()}
    if launcher.runs_commands:
        return _on_nodes(read_launch_line(program), numbers, launcher.starts)
    if numbers["per_node"] is None and numbers["processes"] is None:
        asks_for_gpus = launcher.starts is None or any(option in options for option in launcher.per_node)
        if asks_for_gpus:
            numbers["nodes"] = numbers["nodes"] or 1
        elif numbers["nodes"] is not None:
            numbers["per_node"] = launcher.starts
    return Launched(program[0], tuple(program[1:]), is_module, **numbers, variables=tuple(variables.items()))


def _first_number(options: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Return the number in the first of these options that is present; None without one, or for a word."""
    for name in names:
        if name in options:
            return _number(options[name])
    return None


def _read_options(name: str, launcher: _Launcher, words: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """Parse a launcher's options.

    Worked example: ``-n4 --mpi=pmix python t.py`` of srun → ``{"-n": "4", "--mpi": "pmix"}``, ``["python", "t.py"]``.

    Returns:
        {option: its value}; the words after the options; True if the program is a module.
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
        elif not equals and key[0] != key[1:2] and key[2:].isdecimal():  # -n4, -r3
            options[key[:2]] = key[2:]
        elif equals and key not in launcher.pairs:
            options[key] = value
        else:
            count = 2 if key in launcher.pairs else 1
            if len(remaining) < count:
                raise UsageError(f"{name} {option}: a value and the program are missing")
            options[key] = value if equals else " ".join(remaining[:count])
            del remaining[:count]
    return options, remaining, is_module


def _on_nodes(launched: Launched, numbers: dict[str, int | None], starts: int | None) -> Launched:
    """Return a program, or what a launcher launches, with the numbers of the scheduler that starts it on its nodes.

    Worked example: ``srun -N 2 torchrun --nproc-per-node 8 train.py`` → 2 nodes of 8 processes.

    Args:
        launched: the command that the scheduler starts on each node.
        numbers: the scheduler's numbers: nodes, per_node and processes.
        starts: number of processes on each node unless the scheduler's options say it.
    """
    if launched.nodes is not None or launched.per_node is not None or launched.processes is not None:
        nodes = launched.nodes if launched.nodes not in (None, 1) else numbers["nodes"] or numbers["processes"]
        return replace(launched, nodes=nodes or launched.nodes)
    if numbers["nodes"] is not None and numbers["per_node"] is None and numbers["processes"] is None:
        numbers = {**numbers, "per_node": starts}
    return replace(launched, nodes=numbers["nodes"], per_node=numbers["per_node"], processes=numbers["processes"])


def _count_hosts(text: str, *, are_counted: bool) -> dict[str, int | None]:
    """Return the numbers of nodes and processes in a list of hosts; empty for a file on another machine.

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
        return {}
    else:
        slots = [len(host.partition(":")[2].split(",")) if ":" in host else None for host in text.split("@")]
    known = [number for number in slots if number is not None]
    return {"nodes": len(slots), "processes": sum(known) if len(known) == len(slots) else None}


def _number(value: str) -> int | None:
    """Return the number in an option's value; for a range ``1:4``, the maximum; None for a word such as ``gpu``."""
    last = value.rpartition(":")[2]
    return int(last) if last.isdecimal() else None


def _accelerate_config(config: str | None) -> dict[str, str]:
    """Return the options that a configuration file sets: ``num_processes: 8`` → ``{"--num-processes": "8"}``.

    Args:
        config: path of the file, from ``--config_file``; None for the one that ``accelerate config`` writes, if any.

    Raises:
        UsageError: there is no such file.
    """
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    default = cache / "accelerate" / "default_config.yaml"
    if config is None and not default.is_file():
        return {}
    try:
        text = Path(default if config is None else config).read_text()
    except OSError as error:
        raise UsageError(f"accelerate launch --config_file {config}: {error.strerror}") from error
    lines = re.findall(r"""^(\w+):[ \t]*["']?([\w.-]+)""", text, re.MULTILINE)
    return {f"--{name.replace('_', '-')}": value for name, value in lines if name in _CONFIG_OPTIONS}


def _accelerate_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that accelerate sets for a launch; none where it is not installed.

    A program finds accelerate's options in about 80 environment variables.

    Args:
        words: options, program and arguments, as given to ``accelerate launch``.

    Raises:
        UsageError: accelerate refuses the options.
    """
    if find_spec("accelerate") is None:
        return {}
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    try:
        options, config, has_precision = _validate_launch_command(launch_command_parser().parse_args(list(words)))
        options.main_process_port = 0  # any free port, as none is used
        fields = [*getattr(config, "deepspeed_config", {}), *(["mixed_precision"] if has_precision else [])]
        options.deepspeed_fields_from_accelerate_config = ",".join(fields)
        prepare = prepare_deepspeed_cmd_env if options.use_deepspeed and not options.cpu else prepare_multi_gpu_env
        prepared = prepare(options)
    except (ValueError, RuntimeError, SystemExit) as error:
        raise UsageError(f"accelerate launch {' '.join(words)}: {error}") from error
    variables = prepared[1] if isinstance(prepared, tuple) else prepared
    return {
        name: value
        for name, value in variables.items()
        if os.environ.get(name) != value and name not in _WITHOUT_EFFECT
    }
