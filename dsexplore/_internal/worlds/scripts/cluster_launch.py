"""Supply a script with the variables and options that schedulers and older launchers pass.

``srun`` and ``mpirun`` set variables of their own; ``torch.distributed.launch`` and DeepSpeed's launcher pass
``--local_rank``. Frameworks that find such variables initialize in another way than under torchrun. So only the
script's own code sees them, and only while it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from dsexplore._internal.user_code import is_user_file
from dsexplore._internal.worlds.remarks import Remarks

_OPTIONS = ("--local_rank", "--local-rank")
_ENVIRONMENT = type(os.environ)
_READERS = {reader.__code__.co_filename for reader in (os.getenv, Mapping.get, Mapping.__contains__)}
"""Files of Python's functions that read an environment variable for their caller."""


def cluster_variables(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """Return the variables that Slurm, Open MPI, MPICH and MVAPICH set for a rank.

    Args:
        rank: the global rank.
        world_size: number of ranks.
        ranks_per_node: number of ranks on each node; the last node may have fewer.
    """
    node, local = divmod(rank, ranks_per_node)
    nodes = -(-world_size // ranks_per_node)
    on_node = min(ranks_per_node, world_size - node * ranks_per_node)
    size, per_node = str(world_size), str(ranks_per_node)
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), size),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), per_node),
        "SLURM_TASKS_PER_NODE": per_node if nodes == 1 else f"{per_node}(x{nodes})",
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "127.0.0.1"),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_CPUS_PER_TASK": "1",
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1"),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(on_node),
        "OMPI_COMM_WORLD_NODE_RANK": str(local),
        **dict.fromkeys(("PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"), str(rank)),
        **dict.fromkeys(("PMI_SIZE", "MV2_COMM_WORLD_SIZE"), size),
        **dict.fromkeys(("MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"), str(local)),
        **dict.fromkeys(("MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"), str(on_node)),
    }


@contextmanager
def launched_on_a_cluster(variables: Mapping[str, str], local_rank: int, remarks: Remarks) -> Iterator[None]:
    """Supply the program that runs in the block with such variables and options.

    Args:
        variables: names and values, from `cluster_variables`.
        local_rank: number of this rank on its node, for ``--local_rank``.
        remarks: gets a note on each that was supplied.
    """
    read = _ENVIRONMENT.__getitem__
    parse = argparse.ArgumentParser.parse_known_args
    _ENVIRONMENT.__getitem__ = _supply_variables(read, variables, remarks)  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_known_args = _supply_local_rank(parse, local_rank, remarks)  # type: ignore[method-assign]
    try:
        yield
    finally:
        _ENVIRONMENT.__getitem__ = read  # type: ignore[method-assign]
        argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]


def _supply_variables(read: Callable[..., str], variables: Mapping[str, str], remarks: Remarks) -> Callable[..., str]:
    """Wrap a read of an environment variable so that the script's own code also finds these."""

    @wraps(read)
    def supplied(environment: Any, name: str) -> str:
        if name in variables and _is_read_by_script(sys._getframe(1)):
            remarks.say(f"{name} is supplied as a scheduler sets it for this rank", quiet=True)
            return variables[name]
        return read(environment, name)

    return supplied


def _is_read_by_script(frame: FrameType | None) -> bool:
    """Return True if the program's own code reads the environment, rather than an installed package."""
    while frame is not None and frame.f_code.co_filename in _READERS:
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _supply_local_rank(parse: Callable[..., Any], local_rank: int, remarks: Remarks) -> Callable[..., Any]:
    """Wrap argument parsing so that it finds ``--local_rank`` if the script declares it."""

    @wraps(parse)
    def parsed(parser: argparse.ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        is_command_line = args is None or (arguments and arguments == sys.argv[1:])
        declared = [name for name in _OPTIONS if name in parser._option_string_actions]
        is_passed = any(argument.partition("=")[0] in _OPTIONS for argument in arguments)
        if is_command_line and declared and not is_passed:
            remarks.note(f"{declared[0]} is supplied as older launchers pass it")
            arguments.insert(0, f"{declared[0]}={local_rank}")
        return parse(parser, arguments, namespace)

    return parsed
