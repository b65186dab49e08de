"""Find the rank, the world size and the rendezvous of a process that was not started by a torch launcher.

Each function reads only the environment that it is passed, or MPI, and returns the environment variables to set.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import warnings
from collections.abc import Mapping

from dsexplore._internal.comm.constants import DEFAULT_AML_MASTER_PORT, DEFAULT_AML_NCCL_SOCKET_IFNAME
from dsexplore._internal.errors import UsageError
from dsexplore._internal.launch_constants import TORCH_DISTRIBUTED_DEFAULT_PORT
from dsexplore._internal.signatures import names_arguments

_log = logging.getLogger("dsexplore.comm")

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AML_MULTI_NODE_PORT = 6105


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

    They are read from the variables of Azure ML, of SageMaker, from MPI by mpi4py, or from Open MPI's variables: the
    first of these that apply. With mpi4py installed, a process that no launcher started is rank 0 of 1; a warning names
    a RANK or WORLD_SIZE that is set and differs.

    Raises:
        UsageError: none of the known launchers started this process.
    """
    if all(name in environment for name in _REQUIRED):
        return {}
    if in_aml(environment) and not in_dlts(environment):
        return from_aml(environment)
    if in_aws_sm(environment):
        return from_sagemaker(environment)
    if importlib.util.find_spec("mpi4py") is not None and not _has_open_mpi_rendezvous(environment):
        variables = from_mpi4py(distributed_port)
        _warn_of_replaced(environment, variables)
        return variables
    if in_open_mpi(environment):
        return from_open_mpi(environment, distributed_port)
    missing = ", ".join(name for name in _REQUIRED if name not in environment)
    raise UsageError(
        f"cannot initialize: {missing} not set, and no MPI, Azure ML or SageMaker found."
        " Start the program with torchrun or mpirun, or pass rank, world_size and init_method"
    )


def _warn_of_replaced(environment: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Warn of a rank or world size in the environment that MPI's replaces, as in DeepSpeed."""
    for name in ("RANK", "WORLD_SIZE"):
        if environment.get(name, variables[name]) != variables[name]:
            missing = ", ".join(required for required in _REQUIRED if required not in environment)
            warnings.warn(
                f"{name}={environment[name]} is replaced by MPI's {variables[name]}, as {missing} is not set and "
                f"mpi4py is installed: set {missing} too to keep it",
                RuntimeWarning,
                stacklevel=2,
            )


def _has_open_mpi_rendezvous(environment: Mapping[str, str]) -> bool:
    """Return True if Open MPI's variables suffice to rendezvous; on several nodes they lack the master's address."""
    return in_open_mpi(environment) and ("MASTER_ADDR" in environment or _is_single_node(environment))


def _is_single_node(environment: Mapping[str, str]) -> bool:
    """Return True if all ranks of Open MPI's world are on this node; False if its variables do not say."""
    size = environment.get("OMPI_COMM_WORLD_SIZE")
    return size is not None and environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size


def from_open_mpi(environment: Mapping[str, str], distributed_port: int) -> dict[str, str]:
    """Return the variables that a torch launcher would set, from mpirun's; a set master address and port are kept."""
    if "MASTER_ADDR" not in environment and not _is_single_node(environment):
        raise UsageError(
            "mpirun started this on several nodes and MASTER_ADDR is not set: set MASTER_ADDR to the node of rank 0, "
            "or install mpi4py, which finds it"
        )
    return {
        **_open_mpi_ranks(environment, "mpirun"),
        "MASTER_ADDR": environment.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environment.get("MASTER_PORT", str(distributed_port)),
    }


def from_aml(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a torch launcher would set, from Azure Machine Learning's."""
    variables = _open_mpi_ranks(environment, "Azure ML")
    if environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables["WORLD_SIZE"]:
        variables["MASTER_ADDR"] = _required(environment, "AZ_BATCHAI_MPI_MASTER_NODE", "Azure ML")
        variables["MASTER_PORT"] = DEFAULT_AML_MASTER_PORT
    else:
        variables["MASTER_ADDR"] = _required(environment, "AZ_BATCH_MASTER_NODE", "Azure ML").partition(":")[0]
        variables["MASTER_PORT"] = environment.get("MASTER_PORT", str(_AML_MULTI_NODE_PORT))
    variables["NCCL_SOCKET_IFNAME"] = DEFAULT_AML_NCCL_SOCKET_IFNAME
    return variables


def from_sagemaker(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a torch launcher would set, from SageMaker's; it sets the master address itself."""
    return _open_mpi_ranks(environment, "SageMaker")


def from_mpi4py(distributed_port: int) -> dict[str, str]:
    """Return the variables that a torch launcher would set, from MPI; every rank of MPI's world must call this."""
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
    """Set the variables that a torch launcher would set, from MPI."""
    _set(from_mpi4py(distributed_port), verbose)


@names_arguments
def patch_aml_env_for_torch_nccl_backend(master_port: int = _AML_MULTI_NODE_PORT, verbose: bool = True) -> None:
    """Set the variables that a torch launcher would set, from Azure Machine Learning's.

    MASTER_PORT of the environment is used before `master_port`, as in DeepSpeed.
    """
    _set(from_aml({"MASTER_PORT": str(master_port), **os.environ}), verbose)


@names_arguments
def patch_aws_sm_env_for_torch_nccl_backend(verbose: bool = True) -> None:
    """Set the variables that a torch launcher would set, from SageMaker's."""
    _set(from_sagemaker(os.environ), verbose)


def _set(variables: Mapping[str, str], verbose: bool) -> None:
    """Set environment variables, and log them if `verbose`."""
    os.environ.update(variables)
    if verbose and variables:
        _log.info("found %s", ", ".join(f"{name}={value}" for name, value in variables.items()))


def apply(distributed_port: int, verbose: bool) -> None:
    """Set the environment variables that `discover` returns for this process."""
    _set(discover(os.environ, distributed_port), verbose)


def _open_mpi_ranks(environment: Mapping[str, str], launcher: str) -> dict[str, str]:
    """Return rank, world size and local rank from Open MPI's variables; `launcher` is its name in errors."""
    return {
        "RANK": _required(environment, "OMPI_COMM_WORLD_RANK", launcher),
        "WORLD_SIZE": _required(environment, "OMPI_COMM_WORLD_SIZE", launcher),
        "LOCAL_RANK": _required(environment, "OMPI_COMM_WORLD_LOCAL_RANK", launcher),
    }


def _required(environment: Mapping[str, str], name: str, launcher: str) -> str:
    """Return an environment variable; raise UsageError if it is not set."""
    if name not in environment:
        raise UsageError(f"{launcher} was found, but {name} is not set: start the job through MPI, or with torchrun")
    return environment[name]
