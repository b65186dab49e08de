"""Real DeepSpeed jobs on two gloo ranks: the comms log, by whatever way it reaches torch, and states on a disk.

Modules: ``comm/``, ``aio/deepspeed_operator.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import dsexplore

SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_zero3.py"
STEPS, RANKS = 2, 2
MODEL = 4 * (64 * 128 + 128 + 128 * 8 + 8)
"""Bytes of the model's parameters, which two ranks share without padding."""
LAYER_OF = {"plain": "deepspeed.comm", "before": "dsexplore.comm", "after": "dsexplore.comm"}


def run(way: str, folder: Path, script: Path = SCRIPT) -> list[dict[str, Any]]:
    """Return what each rank wrote."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(dsexplore.__file__).parents[1]),
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*launcher, "--log-dir", str(folder / "logs"), str(script), str(folder), way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return, by the way in which the log was turned on, what each rank wrote."""
    return {way: run(way, tmp_path_factory.mktemp(way)) for way in LAYER_OF}


@pytest.mark.parametrize("way", LAYER_OF)
def test_the_log_of_zero_3_is_what_the_recorder_saw_and_its_formula(
    reports: dict[str, list[dict[str, Any]]], way: str
) -> None:
    for report in reports[way]:
        logged = [(op, size) for op, size, *_ in report["log"]]
        assert logged == [(op, size) for op, size, *_ in report["trace"]]
        sent: dict[str, int] = defaultdict(int)
        for op, size, *_, dtype, _phase, _trigger, _source in report["trace"]:
            if dtype != "int64":  # ZeRO-3 compares the order of modules between ranks
                sent[op] += size
        assert dict(sent) == {
            "broadcast": 2 * MODEL,  # when the parameters are divided, and when the engine begins
            "barrier": 0,
            # Each parameter by itself when the engine begins. In the first step it is let go after the forward pass;
            # from the second one on DeepSpeed knows that it will be used again at once.
            "all_gather": MODEL + 2 * MODEL + (STEPS - 1) * MODEL,
            "reduce_scatter": STEPS * MODEL,
            "all_reduce": STEPS * 8,  # the norm of the gradients, in fp64
        }


@pytest.mark.parametrize("way", LAYER_OF)
def test_each_call_has_its_layer_its_name_and_the_users_line(
    reports: dict[str, list[dict[str, Any]]], way: str
) -> None:
    for report in reports[way]:
        assert {(layer, name) for _, _, layer, name, _ in report["log"]} == {
            (LAYER_OF[way], name)
            for name in ("broadcast", "barrier", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
        }
        lines = {source for *_, source in report["log"]}
        assert all(source.rpartition(":")[0].endswith(SCRIPT.name) for source in lines)
        assert len(lines) == 4  # initialize, forward, backward, step


def test_deepspeed_trains_alike_on_both(reports: dict[str, list[dict[str, Any]]]) -> None:
    losses = [report["losses"] for way in LAYER_OF for report in reports[way]]
    assert losses == [losses[0]] * len(losses)
    assert losses[0][1] < losses[0][0]


@pytest.mark.extension
def test_states_on_a_disk_are_those_of_deepspeeds_handle_and_seen_by_a_trace(tmp_path: Path) -> None:
    script = SCRIPT.with_name("deepspeed_offload.py")
    for way in ("ours", "theirs"):
        (tmp_path / way).mkdir()
    ours, theirs = (run(way, tmp_path / way, script) for way in ("ours", "theirs"))
    assert [report["losses"] for report in ours] == [report["losses"] for report in theirs]
    for report in ours:
        ops = {access["op"] for access in report["io"]}
        assert ops == {"read", "write", "wait"}
        assert all(access["end"] >= access["start"] for access in report["io"])
        waited = sum(access["end"] - access["start"] for access in report["io"] if access["op"] == "wait")
        assert sum(row["seconds"] for row in report["waits"]) == pytest.approx(waited / 1e9)
        assert any("waits for the disk" in sentence for sentence in report["headline"])
    assert [report["io"] for report in theirs] == [[], []]
