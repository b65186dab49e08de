"""What ``accelerate launch`` hands on to the processes that it starts.

Its options reach a program as environment variables, some 80 of them, and its configuration file stands in for options.
Where accelerate is installed, it is asked itself; else a configuration's numbers of processes and machines are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dsexplore._internal.errors import UsageError

_OF_CONFIG = ("num_processes", "num_machines", "mixed_precision", "gradient_accumulation_steps")
_OF_THIS_PROCESS = ("OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
"""Variables with no effect on a process that runs already, or on a simulated GPU."""


def config_options(config: str | None) -> dict[str, str]:
    """Return the options that a configuration file sets: ``num_processes: 8`` → ``{"--num-processes": "8"}``.

    Args:
        config: the file of ``--config_file``; None for what ``accelerate config`` has written, if anything.

    Raises:
        UsageError: there is no such file.
    """
    written = (
        Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "accelerate" / "default_config.yaml"
    )
    if config is None and not written.is_file():
        return {}
    try:
        text = Path(written if config is None else config).read_text()
    except OSError as error:
        raise UsageError(f"accelerate launch --config_file {config}: {error.strerror}") from error
    lines = re.findall(r"""^(\w+):[ \t]*["']?([\w.-]+)""", text, re.MULTILINE)
    return {f"--{name.replace('_', '-')}": value for name, value in lines if name in _OF_CONFIG}


def options_as_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that accelerate sets for a launch; none where it is not installed.

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
        options.main_process_port = 0  # any that is free, for none is used
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
        if os.environ.get(name) != value and name not in _OF_THIS_PROCESS
    }
