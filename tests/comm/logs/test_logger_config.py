"""`CommsLoggerConfig` checks the keys of a ds_config; constants and variables have DeepSpeed's names."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dsexplore.comm as dist
from dsexplore import constants
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.errors import UsageError
from dsexplore.comm import constants as comm_constants

KEYS = ("enabled", "prof_all", "prof_ops", "verbose", "debug")


def test_the_sample_block_is_a_configuration() -> None:
    _, key, value = comm_constants.COMMS_LOGGER_FORMAT.partition('"comms_logger"')
    config = CommsLoggerConfig.parse(json.loads("{" + key + value + "}"))
    assert config.enabled
    assert config.prof_ops == ("all_reduce", "all_gather")


def test_defaults_are_those_of_the_constants() -> None:
    default = CommsLoggerConfig.parse({})
    for key in KEYS:
        value = getattr(comm_constants, f"COMMS_LOGGER_{key.upper()}_DEFAULT")
        assert getattr(comm_constants, f"COMMS_LOGGER_{key.upper()}") == key
        assert getattr(default, key) == (tuple(value) if key == "prof_ops" else value)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"enable": True}, r"comms_logger\.enable: no such key; valid keys are enabled, prof_all, prof_ops, verbose"),
        ({"enabled": "yes"}, r"comms_logger\.enabled is 'yes': give true or false"),
        ({"enabled": 1}, r"comms_logger\.enabled is 1"),
        ({"prof_ops": "all_reduce"}, r"comms_logger\.prof_ops is 'all_reduce': give a list"),
        ({"prof_ops": [1]}, r"comms_logger\.prof_ops is \[1\]"),
        ([], r"'comms_logger' is \[\]: write an object"),
    ],
)
def test_a_bad_block_is_refused_by_key(block: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        dist.configure({"comms_logger": block})
    assert not dist.comms_logger.enabled


def test_a_file_a_dict_and_an_object_of_deepspeed_say_the_same(tmp_path: Path) -> None:
    block = {"enabled": True, "prof_all": False, "prof_ops": ["barrier"], "verbose": "auto"}
    config = {"train_batch_size": 8, "comms_logger": block}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    of_deepspeed = SimpleNamespace(
        comms_config=SimpleNamespace(
            comms_logger_enabled=True,
            comms_logger=SimpleNamespace(**{**block, "verbose": False, "debug": False}),
        )
    )
    for given in (config, path, str(path), of_deepspeed):
        dist.configure(CommsLoggerConfig())
        dist.configure(given)
        assert dist.comms_logger.config == CommsLoggerConfig(True, False, ("barrier",), False, False)


def test_a_logger_takes_its_configuration_in_any_form(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"comms_logger": {"enabled": true, "prof_ops": ["reduce"]}}')
    for given in (path, json.loads(path.read_text()), CommsLoggerConfig(enabled=True, prof_ops=("reduce",))):
        log = dist.CommsLogger(given)
        assert (log.enabled, log.prof_all, log.prof_ops) == (True, True, ["reduce"])
    with pytest.raises(UsageError, match=r"comms_logger\.enable: no such key"):
        dist.CommsLogger({"comms_logger": {"enable": True}})


def test_a_block_that_says_disabled_disables() -> None:
    dist.configure({"comms_logger": {"enabled": False, "verbose": True}})
    assert not dist.comms_logger.enabled


@pytest.mark.parametrize(
    ("content", "told"), [("[1]", "outermost value must be an object"), ("{", "is not JSON"), (None, "cannot be read")]
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=f"broken.json.*{told}"):
        dist.configure(path)


def test_single_settings_leave_the_others(tmp_path: Path) -> None:
    dist.configure(enabled=True, prof_ops=["reduce"])
    dist.configure(prof_all=False, verbose=True)
    assert dist.comms_logger.config == CommsLoggerConfig(True, False, ("reduce",), True, False)
    dist.comms_logger.verbose = False
    assert dist.comms_logger.prof_ops == ["reduce"]
    with pytest.raises(UsageError, match="enabled is 3"):
        dist.configure(enabled=3)  # type: ignore[arg-type]


def test_constants_have_deepspeeds_values() -> None:
    names = ("NCCL", "CCL", "MPI", "GLOO", "SCCL", "HCCL")
    assert [getattr(dist, f"{name}_BACKEND") for name in names] == [name.lower() for name in names]
    assert dist.DEFAULT_AML_MASTER_PORT == "54965"
    assert dist.DEFAULT_AML_NCCL_SOCKET_IFNAME == "^docker0,lo"
    assert dist.COMMS_LOGGER == "comms_logger"
    assert constants.TORCH_DISTRIBUTED_DEFAULT_PORT == 29500
    assert (constants.INFERENCE_GENERIC_MODE, constants.INFERENCE_SPECIALIZED_MODE) == ("generic", "specialized")


@pytest.mark.parametrize(("text", "minutes"), [(None, 30), ("7", 7), (" 90 ", 90)])
def test_the_timeout_follows_the_environment(monkeypatch: pytest.MonkeyPatch, text: str | None, minutes: int) -> None:
    monkeypatch.delenv("DEEPSPEED_TIMEOUT", raising=False)
    if text is not None:
        monkeypatch.setenv("DEEPSPEED_TIMEOUT", text)
    assert constants.default_pg_timeout == timedelta(minutes=minutes)
    assert dist.default_pg_timeout == timedelta(minutes=minutes)


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "ten", ""])
def test_a_timeout_that_is_no_number_of_minutes_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"DEEPSPEED_TIMEOUT='{text}' is not a positive whole number"):
        _ = constants.default_pg_timeout
