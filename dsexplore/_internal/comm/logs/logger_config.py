"""The comms logger's configuration: a block of a ds_config, checked key by key."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dsexplore._internal.comm import constants as names
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments_of_methods


@dataclass(frozen=True)
class CommsLoggerConfig:
    """Settings of the comms logger: what it records and shows."""

    enabled: bool = names.COMMS_LOGGER_ENABLED_DEFAULT
    """True if collectives are logged."""
    prof_all: bool = names.COMMS_LOGGER_PROF_ALL_DEFAULT
    """True to log every op; otherwise only the ops in ``prof_ops`` and calls with ``prof=True`` are logged."""
    prof_ops: tuple[str, ...] = tuple(names.COMMS_LOGGER_PROF_OPS_DEFAULT)
    """Names to log if ``prof_all`` is off: a plain op, the name of a function, or a call's ``log_name``."""
    verbose: bool = names.COMMS_LOGGER_VERBOSE_DEFAULT
    """True to print a line for each logged op on rank 0."""
    debug: bool = names.COMMS_LOGGER_DEBUG_DEFAULT
    """True to add the calling function to the name that an op is logged under."""

    @classmethod
    def parse(cls, source: Mapping[str, object] | str | os.PathLike[str]) -> CommsLoggerConfig:
        """Parse the ``"comms_logger"`` block of a ds_config; without the block, the logger is off.

        Args:
            source: the ds_config as a dict, or the path of its JSON file. Other blocks are ignored.

        Raises:
            UsageError: the file holds no JSON object, a key is unknown, or a value has the wrong type.
        """
        block = _load(source).get(names.COMMS_LOGGER, {})
        if not isinstance(block, Mapping):
            raise UsageError(f"{names.COMMS_LOGGER!r} is {block!r}: write an object with {', '.join(_KEYS)}")
        for key in block:
            if key not in _KEYS:
                raise UsageError(f"{names.COMMS_LOGGER}.{key}: no such key; valid keys are {', '.join(_KEYS)}")
        # In a config of DeepSpeed, "auto" stands for the default.
        return cls(**{key: _checked(key, setting) for key, setting in block.items() if setting != "auto"})


names_arguments_of_methods(CommsLoggerConfig)


_KEYS = tuple(field.name for field in fields(CommsLoggerConfig))


def _checked(key: str, setting: Any) -> Any:
    """Return the setting of a key, a list as a tuple; raise UsageError if it has the wrong type."""
    if key == names.COMMS_LOGGER_PROF_OPS:
        if isinstance(setting, (list, tuple)) and all(isinstance(op, str) for op in setting):
            return tuple(setting)
        expected = 'a list of op names, such as ["all_reduce"]'
    else:
        if isinstance(setting, bool):
            return setting
        expected = "true or false"
    valid = ", ".join(_KEYS)
    raise UsageError(f"{names.COMMS_LOGGER}.{key} is {setting!r}: give {expected} (valid keys are {valid})")


def _load(source: Mapping[str, object] | str | os.PathLike[str]) -> Mapping[str, object]:
    """Return a ds_config as a dict; a path is read as a JSON file."""
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"a config is a dict or the path of a JSON file, not {type(source).__name__}: {source!r}")
    path = Path(source)
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"config {str(path)!r} cannot be read: {error.strerror}; give a dict or a JSON file"
        ) from error
    except ValueError as error:
        raise UsageError(f"config {str(path)!r} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise UsageError(f"config {str(path)!r} holds a {type(loaded).__name__}: its outermost value must be an object")
    return loaded
