"""Everyday scripts of the frameworks that people train with, unmodified, on simulated ranks.

Modules: ``worlds/scripts/``.

Each script runs as one rank of four with a GPU that is not there, and what it sends is held to a closed form; once more
on fake tensors, as another rank, with the arguments that send what no others do. Where its framework trains on CPUs
too, it also runs on four real ranks with gloo, and as one simulated rank of four on CPUs: the same collectives, bytes,
groups and order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions, version
from pathlib import Path

import polars as pl
import pytest
from framework_cases import CASES, Case

import dsexplore

HERE = Path(__file__).parent
RANKS = 4
FOLDERS = {package: Path(sys.prefix) / f"for-{package}" for package in ("torchtitan", "torchao")}
"""Folders of packages for one framework alone: others would take the Triton of torchtitan, or torchtitan would take
torchao, for a way to run kernels."""
TABLE = HERE.parents[1] / "docs" / "frameworks.md"
TABLE_HEAD = """\
# Frameworks that run unmodified

`make frameworks` runs these scripts of `tests/frameworks/scripts/` with `dsexplore run` and torch {torch}, as rank 0 of
{ranks}, and writes this table. On GPUs that are not there, what each sends after its start-up is held to a closed form;
on CPUs, every collective to what {ranks} real ranks with gloo send. With `--fake`, without memory for tensors, each
script is run once more, as rank 3 where that sends as much, and held to the same closed form; of its arguments, those
that send what no other ones do.

| script | framework | collectives after start-up, simulated GPUs | collectives, CPUs, equal to real ranks |
|---|---|---|---|"""
pytestmark = pytest.mark.timeout(600)  # a loaded machine takes minutes to build what DeepSpeed wants
TABLE_TAIL = """
- DeepSpeed's optimizer is torch's (`"torch_adam": true`), as its fused one is an extension for GPUs. Real ranks build
  DeepSpeed's extension for shared memory, which takes a C++ compiler and most of a minute, once.
- Megatron-core runs without Transformer Engine and Apex, which are extensions for GPUs: so its script brings a layer
  norm for sequence parallelism, and sets one name that version 0.16.1 reads in every mixture of experts and defines
  with Transformer Engine alone. Its groups have no mesh; their axes are those that their descriptions say (`tp`,
  `dp`, `pp`, `ep`, `edp`). It warns that drawing on a GPU changes the CPU's random state: there is one generator
  here.
- torchtitan's rows are one step of `dsexplore run --steps 1 -m torchtitan.train --module llama3 --config
  llama3_debugmodel`, or of `deepseek_v3`, with a tokenizer and texts made by hand, `--training.disable_cuda_graphs`,
  as no graph can be captured here, and `--parallelism.spmd_backend partial_dtensor`, as its default and what it calls
  after the first step need a newer torch than 2.13. With torch 2.15's CUDA build, on a machine without a GPU, the
  defaults run too (FSDP2 and tensor parallelism were tried by hand). It imports Triton, which installs without a GPU;
  FlexAttention is computed by torch's plain form of it, and `torch.compile` is left out.
"""
COLUMNS = ["op", "message_bytes", "wire_bytes", "group_size", "dtype", "shape", "is_async"]


def sent(events: pl.DataFrame, what: str, least: int = 1024) -> int:
    """Message bytes of ``"op"`` or ``"op axis"``, without the small messages that carry losses and norms."""
    op, _, axis = what.partition(" ")
    chosen = events.filter((pl.col("op") == op) & (pl.col("message_bytes") >= least))
    return int(chosen.filter(pl.col("axis") == axis if axis else pl.lit(True))["message_bytes"].sum())


def environment() -> dict[str, str]:
    """Return the environment: one thread a rank, loopback only, and dsexplore from this tree."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(dsexplore.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def run(*command: str, variables: Mapping[str, str] | None = None) -> None:
    variables = {**environment(), **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=variables, capture_output=True, text=True, timeout=420, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def simulated(case: Case, folder: Path, *options: str, variables: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Return the events of rank 0 of four.

    Of torchtitan one step: torch 2.13 has not what it calls after the first. Filling parameters, which comes before it,
    gathers them with torch 2.15 (``aten.any``), and is left out: one step does not tell that it happens once.
    """
    if case.package == "torchtitan":
        options = (*options, "--steps", "1")
    if case.package in FOLDERS:
        variables = {"PYTHONPATH": os.pathsep.join((environment()["PYTHONPATH"], str(FOLDERS[case.package])))}
    file = folder / "simulated.parquet"
    size = ("--mesh", case.mesh) if case.mesh else ("--world-size", str(RANKS))
    run("dsexplore", "run", *size, *options, "--save", str(file), *case.line(folder), variables=variables)
    events = dsexplore.load(file).events
    return events.filter(~pl.col("cause").str.starts_with("aten.any")) if case.package == "torchtitan" else events


def on_real_ranks(case: Case, folder: Path) -> pl.DataFrame:
    """Return the events of rank 0 of four processes."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    launcher += ("--log-dir", str(folder / "logs"))
    traced = (str(HERE / "on_each_rank.py"), str(folder / "real"), *case.line(folder))
    run(*launcher, *traced, variables=case.variables)
    return dsexplore.load(folder / "real").events.filter(pl.col("rank") == 0)


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Collectives of each script that passed, by its name and ``GPUs`` or ``CPUs``; once all have, the docs' table.

    Each process that runs some of the tests leaves what it counted in a folder of them all: the last one sees all.
    """
    counts: dict[str, int] = {}
    yield counts
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if worker else own
    new = own / "counts.json"
    new.write_text(json.dumps(counts), encoding="utf-8")
    new.replace(folder / f"counts-{worker}.json")
    for file in folder.glob("counts-*.json"):
        counts = counts | json.loads(file.read_text(encoding="utf-8"))
    on_cpus = [case for case in CASES if not case.only_on_gpus]
    if counts.keys() == {f"{case.name}, GPUs" for case in CASES} | {f"{case.name}, CPUs" for case in on_cpus}:
        TABLE.write_text(table(counts), encoding="utf-8")


def version_of(package: str) -> str:
    """Return the version of an installed package, of those for one framework too."""
    found = distributions(name=package, path=[*sys.path, *map(str, FOLDERS.values())])
    return next(one.version for one in found)


def table(counts: Mapping[str, int]) -> str:
    """Markdown: each script, its framework's version, and how many collectives were compared."""
    lines = [TABLE_HEAD.format(torch=version("torch"), ranks=RANKS)]
    for case in CASES:
        on_cpus = case.only_on_gpus or str(counts[f"{case.name}, CPUs"])
        on_gpus = case.remark or str(counts[f"{case.name}, GPUs"])
        lines.append(f"| `{case.name}` | {case.package} {version_of(case.package)} | {on_gpus} | {on_cpus} |")
    return "\n".join(lines) + "\n" + TABLE_TAIL


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sends_on_gpus_what_its_formula_says(case: Case, tmp_path: Path, counted: dict[str, int]) -> None:
    if case.is_refused:
        with pytest.raises(AssertionError, match=case.ends_with):
            simulated(case, tmp_path)
        counted[f"{case.name}, GPUs"] = 0
        return
    events = simulated(case, tmp_path).filter(pl.col("phase") != "start-up")
    assert events.height > 0
    assert {op: sent(events, op) for op in case.expected} == case.expected
    counted[f"{case.name}, GPUs"] = events.height


SENT_BY_OTHERS = {
    "diffusers_flux.py ring",
    "lightning_fabric.py ddp",
    "lightning_trainer.py ddp",
    "lightning_trainer.py fsdp",
    "deepspeed_zero.py 1",
    "torchtitan llama3",
    "torchtitan llama3 --parallelism.tensor_parallel_degree 2",
    "torchtitan llama3 --parallelism.context_parallel_degree 2",
}
"""Cases whose kinds of collectives another case of the same script sends on fake tensors, or one of torch's own."""
ON_FAKE_TENSORS = [
    case for case in CASES if not case.is_refused and " ".join((case.script, *case.arguments)) not in SENT_BY_OTHERS
]


@pytest.mark.parametrize("case", ON_FAKE_TENSORS, ids=lambda case: case.name)
def test_sends_as_much_on_fake_tensors_and_on_another_rank(case: Case, tmp_path: Path) -> None:
    rank = 0 if "--pipeline-parallel" in case.arguments else 3  # the last stage has a norm more
    events = simulated(case, tmp_path, "--fake", "--rank", str(rank)).filter(pl.col("phase") != "start-up")
    assert {op: sent(events, op) for op in case.expected} == case.expected


@pytest.mark.parametrize("case", [case for case in CASES if not case.only_on_gpus], ids=lambda case: case.name)
def test_sends_on_cpus_what_real_ranks_send(case: Case, tmp_path: Path, counted: dict[str, int]) -> None:
    expected = on_real_ranks(case, tmp_path).select(COLUMNS)
    assert expected.height > 0
    events = simulated(case, tmp_path, "--hardware", "cpu", variables=case.variables)
    assert events.select(COLUMNS).rows() == expected.rows()
    counted[f"{case.name}, CPUs"] = expected.height
