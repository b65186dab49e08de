"""Everyday scripts of the frameworks that people train with, unmodified, on simulated ranks.

Each script runs as one rank of four with a GPU that is not there, and what it sends is held to a closed form. Where its
framework trains on CPUs too, it also runs on four real ranks with gloo, and as one simulated rank of four on CPUs:
the same collectives, bytes, groups and order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest

import dsexplore

HERE = Path(__file__).parent
RANKS = 4
TABLE = HERE.parents[1] / "docs" / "frameworks.md"
TABLE_HEAD = """\
# Frameworks that run unmodified

`make frameworks` runs these scripts of `tests/frameworks/scripts/` with `dsexplore run` and torch {torch}, as rank 0 of
{ranks}, and writes this table. On GPUs that are not there, what each sends after its start-up is held to a closed form;
on CPUs, every collective to what {ranks} real ranks with gloo send.

| script | framework | collectives after start-up, simulated GPUs | collectives, CPUs, equal to real ranks |
|---|---|---|---|"""
COLUMNS = ["op", "message_bytes", "wire_bytes", "group_size", "dtype", "shape", "is_async"]

LLAMA = 2 * 128 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
"""Parameters of `scripts/small_llama.py`: two embeddings, two layers of attention, MLP and two norms, a last norm."""
LAYER = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64 + 4 * 64
"""Parameters of a ``TransformerEncoderLayer(64, 4, 128)``: attention, two linear layers and two norms, with biases."""
ENDS = 100 * 64 + 65 * 100
"""Parameters of an embedding of 100 words and of the linear layer that predicts them."""


@dataclass(frozen=True, eq=False)
class Case:
    """One script and what is known of it."""

    script: str
    arguments: tuple[str, ...] = ()
    package: str = "torch"
    """The package whose version stands in the table."""
    mesh: str = ""
    only_on_gpus: str = ""
    """Why real ranks on CPUs are not compared; empty where they are."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Message bytes by op, of all its messages that carry more than losses and norms."""

    @property
    def name(self) -> str:
        return " ".join((self.script.removesuffix(".py"), *self.arguments))


def sent(events: pl.DataFrame, op: str, least: int = 1024) -> int:
    """Message bytes of an op, without the small messages that carry losses and norms."""
    return int(events.filter((pl.col("op") == op) & (pl.col("message_bytes") >= least))["message_bytes"].sum())


CASES = (
    # Three steps of 96 images in batches of 8 on four ranks, whose gradients are fp32.
    Case("ddp.py", expected={"all_reduce": 3 * 4 * (65 * 256 + 2 * 256 + 257 * 10)}),
    Case(
        "fsdp1.py",
        only_on_gpus="torch asks for an accelerator",
        expected={"reduce_scatter": 2 * 4 * (3 * LAYER + ENDS)},
    ),
    # Two replicas of two shards: what was scattered is reduced again between replicas, half of it each.
    Case(
        "fsdp2.py",
        expected={"reduce_scatter": 2 * 4 * (3 * LAYER + ENDS), "all_reduce": 2 * 4 * (3 * LAYER + ENDS) // 2},
    ),
    Case("trainer_ddp.py", (), "transformers", expected={"all_reduce": 3 * 4 * LLAMA}),
    Case(
        "trainer_fsdp2.py",
        (),
        "transformers",
        only_on_gpus="on CPUs it trains with DDP instead, the same 22 collectives as `trainer_ddp`",
        expected={"reduce_scatter": 3 * 4 * LLAMA},
    ),
    # Of L layers 2L + 1 activations forward and 5L + 1 of their gradients backward, each of 16 tokens.
    Case("trainer_tp.py", (), "transformers", "tp=4", expected={"all_reduce": 2 * (7 * 2 + 2) * 16 * 64 * 4}),
    # 32 / (2 × 4) batches, two of which make one step.
    Case("accelerate_ddp.py", (), "accelerate", expected={"all_reduce": 2 * 4 * LLAMA}),
    Case("trl_sft.py", (), "trl", expected={"all_reduce": 3 * 4 * LLAMA}),
    Case("lightning_fabric.py", ("ddp",), "lightning", expected={"all_reduce": 2 * 4 * (2 * LAYER + ENDS)}),
    Case(
        "lightning_fabric.py",
        ("fsdp",),
        "lightning",
        only_on_gpus="Lightning asks for GPUs",
        expected={"reduce_scatter": 2 * 4 * (2 * LAYER + ENDS)},
    ),
    Case("lightning_trainer.py", ("ddp",), "lightning", expected={"all_reduce": 3 * 4 * (3 * 65 * 64 + ENDS)}),
    Case(
        "lightning_trainer.py",
        ("fsdp",),
        "lightning",
        only_on_gpus="Lightning asks for GPUs",
        expected={"reduce_scatter": 3 * 4 * (3 * 65 * 64 + ENDS)},
    ),
    Case(
        "lightning_trainer.py",
        ("model_parallel",),
        "lightning",
        only_on_gpus="not compared: equal in each run that ended, but one of eleven runs of the real ranks failed",
        expected={"reduce_scatter": 3 * 4 * (3 * 65 * 64 + ENDS)},
    ),
)


def environment() -> dict[str, str]:
    """One thread a rank, loopback only, and dsexplore from this tree."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(dsexplore.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def simulated(case: Case, folder: Path, *options: str) -> pl.DataFrame:
    """The events of rank 0 of four."""
    file = folder / "simulated.parquet"
    size = ("--mesh", case.mesh) if case.mesh else ("--world-size", str(RANKS))
    run("dsexplore", "run", *size, *options, "-o", str(file), str(HERE / "scripts" / case.script), *case.arguments)
    return dsexplore.load(file).events


def on_real_ranks(case: Case, folder: Path) -> pl.DataFrame:
    """The events of rank 0 of four processes."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    launcher += ("--log-dir", str(folder / "logs"))
    script = str(HERE / "scripts" / case.script)
    run(*launcher, str(HERE / "on_each_rank.py"), str(folder / "real"), script, *case.arguments)
    return dsexplore.load(folder / "real").events.filter(pl.col("rank") == 0)


@pytest.fixture(scope="session")
def counted() -> Iterator[dict[tuple[Case, str], int]]:
    """Collectives of each script that passed, on ``GPUs`` and on ``CPUs``; once all have, the docs' table."""
    counts: dict[tuple[Case, str], int] = {}
    yield counts
    if counts.keys() == {(case, "GPUs") for case in CASES} | {
        (case, "CPUs") for case in CASES if not case.only_on_gpus
    }:
        TABLE.write_text(table(counts), encoding="utf-8")


def table(counts: Mapping[tuple[Case, str], int]) -> str:
    """Markdown: each script, its framework's version, and how many collectives were compared."""
    lines = [TABLE_HEAD.format(torch=version("torch"), ranks=RANKS)]
    for case in CASES:
        on_cpus = case.only_on_gpus or str(counts[case, "CPUs"])
        lines.append(f"| `{case.name}` | {case.package} {version(case.package)} | {counts[case, 'GPUs']} | {on_cpus} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sends_on_gpus_what_its_formula_says(case: Case, tmp_path: Path, counted: dict[tuple[Case, str], int]) -> None:
    events = simulated(case, tmp_path).filter(pl.col("phase") != "start-up")
    assert events.height > 0
    assert {op: sent(events, op) for op in case.expected} == case.expected
    counted[case, "GPUs"] = events.height


@pytest.mark.parametrize("case", [case for case in CASES if not case.only_on_gpus], ids=lambda case: case.name)
def test_sends_on_cpus_what_real_ranks_send(case: Case, tmp_path: Path, counted: dict[tuple[Case, str], int]) -> None:
    expected = on_real_ranks(case, tmp_path).select(COLUMNS)
    assert expected.height > 0
    assert simulated(case, tmp_path, "--gpu", "cpu").select(COLUMNS).rows() == expected.rows()
    counted[case, "CPUs"] = expected.height
