"""Initialize and end the world of processes, and configure the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as td
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal import launch_constants
from dsexplore._internal.comm import discovery
from dsexplore._internal.comm.constants import COMMS_LOGGER, GLOO_BACKEND, NCCL_BACKEND
from dsexplore._internal.comm.faults import explain
from dsexplore._internal.comm.logs.logger import comms_logger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.comm.ranks import is_initialized, require_initialized
from dsexplore._internal.comm.torch_backend import TorchBackend
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

_log = logging.getLogger("dsexplore.comm")
_backend: TorchBackend | None = None


@names_arguments
def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = launch_constants.TORCH_DISTRIBUTED_DEFAULT_PORT,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: object = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Initialize the world, or adopt it if torch.distributed is initialized.

    Args:
        dist_backend: torch's name of a backend; None for NCCL where there is a GPU, else gloo.
        auto_mpi_discovery: without a torch launcher's variables, find them through Open MPI, mpi4py, Azure
            Machine Learning or SageMaker.
        distributed_port: to meet at, where discovery has to choose one.
        verbose: log what was found, at level INFO of the logger ``dsexplore.comm``.
        timeout: after which a collective gives up; None for ``default_pg_timeout``.
        init_method: URL to meet at; None for the environment variables.
        dist_init_required: False to insist that the world is there already.
        config: of the comms logger, as `configure` takes it.
        rank: for an ``init_method`` that needs it.
        world_size: for an ``init_method`` that needs it.

    Raises:
        UsageError: no launcher was found; the world should be there and is not; a bad configuration.
        ValueError: ``DEEPSPEED_TIMEOUT`` is not a positive whole number.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.init_distributed()
        ...     print(dist.get_world_size())
        4
    """
    global _backend
    configure(config)
    if dist_init_required is False and not is_initialized():
        hint = "initialize torch.distributed before, or leave dist_init_required out"
        raise UsageError(f"dist_init_required=False, but there is no process group: {hint}")
    if not is_initialized() and auto_mpi_discovery and not _names_its_ranks(init_method, rank, world_size):
        discovery.apply(distributed_port, verbose)
    if timeout is None:
        timeout = launch_constants.default_pg_timeout
    if dist_backend is None and not is_initialized():
        dist_backend = NCCL_BACKEND if torch.cuda.is_available() and td.is_nccl_available() else GLOO_BACKEND
    _backend = TorchBackend(dist_backend, timeout, init_method, rank, world_size)
    if verbose and td.get_rank() == 0:
        _log.info("initialized with backend %s, %d ranks", td.get_backend(), td.get_world_size())


def _names_its_ranks(init_method: str | None, rank: int, world_size: int) -> bool:
    return init_method is not None and (not init_method.startswith("env://") or (rank >= 0 and world_size > 0))


def current_backend() -> TorchBackend | None:
    """Return the backend in use, adopting a world initialized elsewhere; None if there is no world."""
    global _backend
    if not is_initialized():
        _backend = None
    elif _backend is None:
        _backend = TorchBackend(None, None, None)
    return _backend


@names_arguments
def destroy_process_group(group: td.ProcessGroup | None = None) -> None:
    """Destroy a process group; without an argument all of them, and the world."""
    require_initialized("destroy_process_group")
    try:
        td.destroy_process_group(group)
    except Exception as error:
        explain(error, "destroy_process_group", group)
        raise


@names_arguments
def initialize_mesh_device(mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...] | None) -> DeviceMesh:
    """Create a DeviceMesh of all ranks.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.initialize_mesh_device((2, 2), ("dp", "tp")).size()
        4
    """
    require_initialized("initialize_mesh_device")
    backend = current_backend()
    assert backend is not None
    return backend.init_device_mesh(
        tuple(mesh_shape), mesh_dim_names if mesh_dim_names is None else tuple(mesh_dim_names)
    )


@names_arguments
def configure(
    deepspeed_config: object = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Iterable[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Set up the comms logger; what is omitted stays as it is.

    Args:
        deepspeed_config: a ds_config as a dict or the path of its JSON file, a `CommsLoggerConfig`, or the
            config object of DeepSpeed.
        enabled: record at all.
        prof_all: record every op.
        prof_ops: names to record while ``prof_all`` is off.
        verbose: print a line for each op on rank 0.
        debug: add the calling function to the name that an op is logged under.

    Raises:
        UsageError: an unknown key or a value of the wrong type.

    Examples:
        >>> dist.configure(enabled=True, prof_all=False)
        >>> dist.comms_logger.enabled
        True
        >>> dist.configure(enabled=False, prof_all=True)
    """
    config = _config_of(deepspeed_config) if deepspeed_config is not None else None
    if config is not None:
        comms_logger.configure(config)
    given: dict[str, Any] = {"enabled": enabled, "prof_all": prof_all, "verbose": verbose, "debug": debug}
    given["prof_ops"] = prof_ops if prof_ops is None or isinstance(prof_ops, str) else list(prof_ops)
    given = {key: value for key, value in given.items() if value is not None}
    if given:
        checked = CommsLoggerConfig.parse({COMMS_LOGGER: given})
        comms_logger.configure(replace(comms_logger.config, **{key: getattr(checked, key) for key in given}))


def _config_of(given: Any) -> CommsLoggerConfig | None:
    """Return the given configuration; None for DeepSpeed's config object with the comms logger disabled."""
    if isinstance(given, CommsLoggerConfig):
        return given
    if isinstance(given, (str, os.PathLike, Mapping)):
        return CommsLoggerConfig.parse(given)
    of_deepspeed = getattr(given, "comms_config", given)
    if hasattr(of_deepspeed, "comms_logger_enabled"):
        if not of_deepspeed.comms_logger_enabled:
            return None
        block = of_deepspeed.comms_logger
        return CommsLoggerConfig.parse(
            {COMMS_LOGGER: {f.name: getattr(block, f.name) for f in fields(CommsLoggerConfig)}}
        )
    return CommsLoggerConfig.parse(given)
