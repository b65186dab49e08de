"""Launch lines of clusters, read for their numbers and the program behind them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dsexplore.cli import main
from dsexplore.errors import UsageError
from dsexplore.worlds.scripts.launch_lines import Launched, read_launch_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py --lr 1", Launched("train.py", ("--lr", "1"))),
        (
            "torchrun --nproc_per_node=4 --nnodes 1:2 --rdzv-endpoint=h:1 train.py --nnodes 9",
            Launched("train.py", ("--nnodes", "9"), nodes=2, per_node=4),
        ),
        ("torchrun --standalone --nproc-per-node gpu -m pkg.train -v", Launched("pkg.train", ("-v",), is_module=True)),
        (
            "python -u -m torch.distributed.run --nproc-per-node 2 train.py",
            Launched("train.py", (), per_node=2),
        ),
        ("python3.12 -m torch.distributed.launch --use_env --nproc_per_node 8 t.py", Launched("t.py", (), per_node=8)),
        ("/usr/bin/python train.py -m x", Launched("train.py", ("-m", "x"))),
        ("python -m pkg.train", Launched("pkg.train", (), is_module=True)),
        (
            "accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --mixed_precision bf16 train.py",
            Launched("train.py", (), nodes=2, processes=16, variables=(("ACCELERATE_MIXED_PRECISION", "bf16"),)),
        ),
        (
            "deepspeed --num_nodes 2 --num_gpus 4 --hostfile h train.py --deepspeed ds.json",
            Launched("train.py", ("--deepspeed", "ds.json"), nodes=2, per_node=4),
        ),
        ("srun -N 2 --ntasks-per-node=8 -u python train.py", Launched("train.py", (), nodes=2, per_node=8)),
        ("mpiexec -np 4 --oversubscribe python -m pkg.t", Launched("pkg.t", (), is_module=True, processes=4)),
    ],
)
def test_a_line_is_read(line: str, expected: Launched) -> None:
    read = read_launch_line(shlex.split(line))
    assert read == expected


@pytest.mark.parametrize("line", ["torchrun --nnodes 2", "torchrun --nnodes", "python -u", "accelerate launch --cpu"])
def test_a_line_without_a_program_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="program"):
        read_launch_line(line.split())


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("torchrun --nproc-per-node 4 --nnodes 2", 8),
        ("accelerate launch --num_processes 6", 6),
        ("--world-size 2 torchrun --nproc-per-node 4", 2),
        ("--mesh dp=2,tp=2 torchrun --nproc-per-node gpu", 4),
    ],
)
def test_a_script_behind_a_launcher_runs_on_its_ranks(
    tmp_path: Path, line: str, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('nccl')\nprint('ranks', dist.get_world_size())\n"
    )
    assert main(["run", *line.split(), str(tmp_path / "train.py")]) == 0
    assert f"ranks {ranks}\n" in capsys.readouterr().out
