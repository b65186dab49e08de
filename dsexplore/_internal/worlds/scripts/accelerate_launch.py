"""The settings of ``accelerate launch``: its configuration file, and the environment variables that programs find."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from dsexplore._internal.errors import UsageError

_VARIABLES = {
    "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
"""{option of ``accelerate launch``: the environment variable that it becomes}, for when accelerate is not installed."""

_CONFIG_OPTIONS = ("num_processes", "num_machines", "mixed_precision", "gradient_accumulation_steps")
_WITHOUT_EFFECT = ("OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
"""Variables with no effect on a process that is already running, or on a simulated GPU."""


def launch_settings(options: Mapping[str, str], words: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of a launch, with those of its configuration file, and the environment variables that it sets.

    Args:
        options: options on the command line, which count before those of the file.
        words: options, program and arguments, as given to ``accelerate launch``.

    Raises:
        UsageError: there is no such file, or accelerate refuses the options.
    """
    options = {**_options_of_file(options.get("--config-file")), **options}
    variables = {_VARIABLES[option]: value for option, value in options.items() if option in _VARIABLES}
    return options, variables | _variables_of_options(words)


def _options_of_file(config: str | None) -> dict[str, str]:
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


def _variables_of_options(words: Sequence[str]) -> dict[str, str]:
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
