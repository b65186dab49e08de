import json
from pathlib import Path

import numpy as np
import pytest

from dsexplore import aio
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig


def test_defaults_are_deepspeeds() -> None:
    assert AioConfig() == AioConfig(1048576, 8, 1, False, True, False)
    assert (aio.AIO, aio.AIO_THREAD_COUNT, aio.AIO_INTRA_OP_PARALLELISM) == (
        "aio",
        "thread_count",
        "intra_op_parallelism",
    )


def test_format_parses_to_the_defaults() -> None:
    assert AioConfig.from_dict(json.loads("{" + aio.AIO_FORMAT + "}")) == AioConfig()


def test_each_constant_is_the_default_of_its_key() -> None:
    names = ("BLOCK_SIZE", "QUEUE_DEPTH", "THREAD_COUNT", "SINGLE_SUBMIT", "OVERLAP_EVENTS", "USE_GDS")
    for name in names:
        key = getattr(aio, f"AIO_{name}")
        assert getattr(AioConfig(), key) == getattr(aio, f"AIO_{name}_DEFAULT")
    assert AioConfig().intra_op_parallelism == aio.AIO_INTRA_OP_PARALLELISM_DEFAULT


def test_round_trip() -> None:
    config = AioConfig(262144, 32, 4, True, False)
    block = config.to_ds_config()
    assert AioConfig.from_dict(block) == config
    assert AioConfig.from_dict(json.loads(config.to_json())) == config
    assert [type(value) for value in block["aio"].values()] == [int, int, int, int, bool, bool]


def test_whole_numbers_of_numpy_become_pythons() -> None:
    config = AioConfig(np.int64(4096), np.int32(4), np.uint8(2))  # type: ignore[arg-type]
    assert config == AioConfig(4096, 4, 2)
    assert {type(value) for value in config.to_ds_config()["aio"].values()} == {int, bool}
    assert AioConfig.from_dict({"intra_op_parallelism": np.int64(3)}).to_json() == AioConfig(thread_count=3).to_json()
    with pytest.raises(UsageError, match=r"queue_depth np.float64\(8.0\) is float64"):
        AioConfig(queue_depth=np.float64(8))  # type: ignore[arg-type]


def test_both_names_of_the_thread_count() -> None:
    assert AioConfig.from_dict({"intra_op_parallelism": 3}).thread_count == 3
    assert AioConfig.from_dict({"intra_op_parallelism": 3, "thread_count": 3}).thread_count == 3
    with pytest.raises(UsageError, match="thread_count 2 and intra_op_parallelism 3 are one setting"):
        AioConfig.from_dict({"intra_op_parallelism": 3, "thread_count": 2})


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"block_size": 0}, "block_size 0 is too small"),
        ({"block_size": 1000}, "block_size 1000 is not a multiple of 512.*1024"),
        ({"queue_depth": -3}, "queue_depth -3 is too small"),
        ({"queue_depth": "8"}, "queue_depth '8' is str"),
        ({"queue_depth": True}, "queue_depth True is bool"),
        ({"queue_depth": 8.0}, "queue_depth 8.0 is float"),
        ({"thread_count": 0}, "thread_count 0 is too small"),
        ({"intra_op_parallelism": "2"}, "intra_op_parallelism '2' is str"),
        ({"single_submit": 1}, "single_submit 1 is int"),
        ({"overlap_events": "true"}, "overlap_events 'true' is str"),
        ({"use_gds": None}, "use_gds None is NoneType"),
        ({"blocksize": 4096}, "unknown key 'blocksize' \\(value 4096\\).*block_size"),
        ({"aio": 3}, "block is 3"),
    ],
)
def test_wrong_values_name_key_value_and_rule(block: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AioConfig.from_dict(block)


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"train_batch_size": 8, "aio": {"queue_depth": 32}}')
    assert AioConfig.from_file(path) == AioConfig(queue_depth=32)
    path.write_text('{"train_batch_size": 8}')
    assert AioConfig.from_file(path) == AioConfig()
    path.write_text('{"queue_depth": 16}')
    assert AioConfig.from_file(path) == AioConfig(queue_depth=16)
    path.write_text("{oops")
    with pytest.raises(UsageError, match=r"ds_config\.json is not a JSON"):
        AioConfig.from_file(path)
    with pytest.raises(FileNotFoundError):
        AioConfig.from_file(tmp_path / "none.json")
