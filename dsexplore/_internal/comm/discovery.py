"""Find rank, world size and rendezvous of a process that no torch launcher has started.

Each function reads only the environment passed to it (and MPI, if it is for MPI), and returns the variables to set, so
that they can be inspected first.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Mapping

from dsexplore._internal.comm.constants import DEFAULT_AML_MASTER_PORT, DEFAULT_AML_NCCL_SOCKET_IFNAME
from dsexplore._internal.errors import UsageError
from dsexplore._internal.launch_constants import TORCH_DISTRIBUTED_DEFAULT_PORT
from dsexplore._internal.signatures import names_arguments

_log = logging.getLogger("dsexplore.comm")

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AML_PORT_OF_SEVERAL_NODES = 6105


@names_arguments
def in_aml(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True on Azure Machine Learning.

    Examples:
        >>> dist.in_aml({"AZUREML_EXPERIMENT_ID": "7"})
        True
    """
    return "AZUREML_EXPERIMENT_ID" in environment


@names_arguments
def in_aws_sm(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True on AWS SageMaker.

    Examples:
        >>> dist.in_aws_sm({"SM_TRAINING_ENV": "{}"})
        True
    """
    return "SM_TRAINING_ENV" in environment


@names_arguments
def in_dlts(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True on a DLTS cluster, where Azure's variables are set but must be ignored.

    Examples:
        >>> dist.in_dlts({"DLTS_JOB_ID": "7"})
        True
    """
    return "DLTS_JOB_ID" in environment


def in_open_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if Open MPI's ``mpirun`` started the process."""
    return "OMPI_COMM_WORLD_RANK" in environment


def discover(
    environment: Mapping[str, str] = os.environ, distributed_port: int = TORCH_DISTRIBUTED_DEFAULT_PORT
) -> dict[str, str]:
    """Return the variables that a torch launcher would have set; empty if all are set.

    Raises:
        UsageError: none of the known launchers started this process.
    """
    if all(name in environment for name in NEEDED):
        return {}
    if in_aml(environment) and not in_dlts(environment):
        return from_aml(environment)
    if in_aws_sm(environment):
        return from_sagemaker(environment)
    if importlib.util.find_spec("mpi4py") is not None and not _complete_without_mpi4py(environment):
        return from_mpi4py(distributed_port)
    if in_open_mpi(environment):
        return from_open_mpi(environment, distributed_port)
    missing = ", ".join(name for name in NEEDED if name not in environment)
    raise UsageError(
        f"cannot initialize: {missing} not set, and no MPI, Azure ML or SageMaker found."
        " Start the program with torchrun or mpirun, or pass rank, world_size and init_method"
    )


def _complete_without_mpi4py(environment: Mapping[str, str]) -> bool:
    """Return True if Open MPI's variables suffice to rendezvous; on several nodes they lack the master's address."""
    return in_open_mpi(environment) and ("MASTER_ADDR" in environment or _single_node(environment))


def _single_node(environment: Mapping[str, str]) -> bool:
    return environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment.get("OMPI_COMM_WORLD_SIZE")


def from_open_mpi(environment: Mapping[str, str], distributed_port: int) -> dict[str, str]:
    """Return the variables of a torch launcher, made from mpirun's; the master's address and port are kept if set."""
    if "MASTER_ADDR" not in environment and not _single_node(environment):
        hint = "set MASTER_ADDR to the node of rank 0, or install mpi4py, which finds it"
        raise UsageError(f"mpirun started this on several nodes and MASTER_ADDR is not set: {hint}")
    return {
        **_ranks_of_open_mpi(environment, "mpirun"),
        "MASTER_ADDR": environment.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environment.get("MASTER_PORT", str(distributed_port)),
    }


def from_aml(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a torch launcher, made from Azure Machine Learning's."""
    variables = _ranks_of_open_mpi(environment, "Azure ML")
    if environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables["WORLD_SIZE"]:
        variables["MASTER_ADDR"] = _needed(environment, "AZ_BATCHAI_MPI_MASTER_NODE", "Azure ML")
        variables["MASTER_PORT"] = DEFAULT_AML_MASTER_PORT
    else:
        variables["MASTER_ADDR"] = _needed(environment, "AZ_BATCH_MASTER_NODE", "Azure ML").partition(":")[0]
        variables["MASTER_PORT"] = environment.get("MASTER_PORT", str(_AML_PORT_OF_SEVERAL_NODES))
    variables["NCCL_SOCKET_IFNAME"] = DEFAULT_AML_NCCL_SOCKET_IFNAME
    return variables


def from_sagemaker(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a torch launcher, made from SageMaker's, which sets the master's address itself."""
    return _ranks_of_open_mpi(environment, "SageMaker")


def from_mpi4py(distributed_port: int) -> dict[str, str]:
    """Return a torch launcher's variables from MPI; every rank of MPI's world must make the call."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    address = world.bcast(_local_address() if rank == 0 else None, root=0)
    hosts = world.allgather(MPI.Get_processor_name())
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world.Get_size()),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "MASTER_ADDR": str(address),
        "MASTER_PORT": str(distributed_port),
    }


def _local_address() -> str:
    """Return the address of the default route's interface, at which other nodes reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; connecting a datagram socket sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


@names_arguments
def mpi_discovery(distributed_port: int = TORCH_DISTRIBUTED_DEFAULT_PORT, verbose: bool = True) -> None:
    """Set the variables of a torch launcher from MPI."""
    _set(from_mpi4py(distributed_port), verbose)


@names_arguments
def patch_aml_env_for_torch_nccl_backend(master_port: int = _AML_PORT_OF_SEVERAL_NODES, verbose: bool = True) -> None:
    """Set the variables of a torch launcher from Azure Machine Learning's."""
    _set(from_aml({"MASTER_PORT": str(master_port), **os.environ}), verbose)


@names_arguments
def patch_aws_sm_env_for_torch_nccl_backend(verbose: bool = True) -> None:
    """Set the variables of a torch launcher from SageMaker's."""
    _set(from_sagemaker(os.environ), verbose)


def _set(variables: Mapping[str, str], verbose: bool) -> None:
    os.environ.update(variables)
    if verbose and variables:
        _log.info("found %s", ", ".join(f"{name}={value}" for name, value in variables.items()))


def apply(distributed_port: int, verbose: bool) -> None:
    """Set the environment variables that `discover` finds."""
    _set(discover(os.environ, distributed_port), verbose)


def _ranks_of_open_mpi(environment: Mapping[str, str], where: str) -> dict[str, str]:
    return {
        "RANK": _needed(environment, "OMPI_COMM_WORLD_RANK", where),
        "WORLD_SIZE": _needed(environment, "OMPI_COMM_WORLD_SIZE", where),
        "LOCAL_RANK": _needed(environment, "OMPI_COMM_WORLD_LOCAL_RANK", where),
    }


def _needed(environment: Mapping[str, str], name: str, where: str) -> str:
    if name not in environment:
        raise UsageError(f"{where} was found, but {name} is not set: start the job through MPI, or with torchrun")
    return environment[name]
