"""Initialize torch.distributed and destroy its process groups, and configure the comms logger."""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
"""The backend of the world that was last initialized or adopted."""


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
    """Initialize torch.distributed, or adopt its world if it is initialized.

    Args:
        dist_backend: torch's name of a backend; None for NCCL if there is a GPU, else gloo.
        auto_mpi_discovery: if a torch launcher has not set its variables, find them through Open MPI, mpi4py, Azure
            Machine Learning or SageMaker.
        distributed_port: port of the rendezvous, if discovery has to choose one.
        verbose: log what was found, at level INFO of the logger ``dsexplore.comm``.
        timeout: timeout of collectives; None for ``default_pg_timeout``.
        init_method: URL of the rendezvous; None to use the environment variables.
        dist_init_required: False to raise if torch.distributed is not initialized; None or True to initialize it.
        config: configuration of the comms logger, see `configure`; None to leave it as it is.
        rank: rank of this process, for an ``init_method`` without ranks; −1 to read it from the environment.
        world_size: number of processes, for an ``init_method`` without ranks; −1 to read it from the environment.

    Raises:
        UsageError: no launcher was found, ``dist_init_required`` is False and there is no world, or the configuration
            is invalid.
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
        raise UsageError(
            "dist_init_required=False, but there is no process group: initialize torch.distributed before, or omit "
            "dist_init_required"
        )
    if not is_initialized():
        if auto_mpi_discovery and not _has_ranks(init_method, rank, world_size):
            discovery.apply(distributed_port, verbose)
        if dist_backend is None:
            dist_backend = NCCL_BACKEND if torch.cuda.is_available() and td.is_nccl_available() else GLOO_BACKEND
    if timeout is None:
        timeout = launch_constants.default_pg_timeout
    _backend = TorchBackend(dist_backend, timeout, init_method, rank=rank, world_size=world_size)
    if verbose and td.get_rank() == 0:
        _log.info("initialized with backend %s, %d ranks", td.get_backend(), td.get_world_size())


def _has_ranks(init_method: str | None, rank: int, world_size: int) -> bool:
    """Return True if the ranks are given by the arguments, so that the environment need not name them."""
    return init_method is not None and (not init_method.startswith("env://") or (rank >= 0 and world_size > 0))


def current_backend() -> TorchBackend | None:
    """Return the backend in use; a world initialized elsewhere is adopted. None if there is no world."""
    global _backend
    if not is_initialized():
        _backend = None
    elif _backend is None:
        _backend = TorchBackend(backend=None, timeout=None, init_method=None)
    return _backend


@names_arguments
def destroy_process_group(group: td.ProcessGroup | None = None) -> None:
    """Destroy a process group; without an argument all process groups, the world included."""
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
    names = None if mesh_dim_names is None else tuple(mesh_dim_names)
    return backend.init_device_mesh(tuple(mesh_shape), names)


@names_arguments
def configure(
    deepspeed_config: object = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Iterable[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Configure the comms logger; omitted settings stay as they are.

    Args:
        deepspeed_config: a ds_config as a dict or the path of its JSON file, a `CommsLoggerConfig`, or DeepSpeed's
            config object.
        enabled: log collectives.
        prof_all: log every op.
        prof_ops: names of the ops to log if `prof_all` is off.
        verbose: print a line for each logged op on rank 0.
        debug: add the calling function to the name that an op is logged under.

    Raises:
        UsageError: an unknown key or a value of the wrong type.

    Examples:
        >>> dist.configure(enabled=True, prof_all=False)
        >>> dist.comms_logger.enabled
        True
        >>> dist.configure(enabled=False, prof_all=True)
    """
    if deepspeed_config is not None:
        config = _parsed(deepspeed_config)
        if config is not None:
            comms_logger.configure(config)
    if prof_ops is not None and not isinstance(prof_ops, str):  # text is refused by `CommsLoggerConfig.parse`
        prof_ops = list(prof_ops)
    options = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    changed = {key: option for key, option in options.items() if option is not None}
    if changed:
        checked = CommsLoggerConfig.parse({COMMS_LOGGER: changed})
        comms_logger.configure(replace(comms_logger.config, **{key: getattr(checked, key) for key in changed}))


def _parsed(config: Any) -> CommsLoggerConfig | None:
    """Return a configuration in any of the forms that `configure` accepts.

    None for DeepSpeed's config object if it does not enable the comms logger: then nothing is to be changed.
    """
    if isinstance(config, CommsLoggerConfig):
        return config
    deepspeeds = getattr(config, "comms_config", config)
    if not hasattr(deepspeeds, "comms_logger_enabled"):
        return CommsLoggerConfig.parse(config)
    if not deepspeeds.comms_logger_enabled:
        return None
    block = {field.name: getattr(deepspeeds.comms_logger, field.name) for field in fields(CommsLoggerConfig)}
    return CommsLoggerConfig.parse({COMMS_LOGGER: block})
