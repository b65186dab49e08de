"""Command lines of launchers are parsed to a program and the numbers of its processes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dsexplore._internal.cli import main
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.launch_lines import Launched, read_launch_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py --lr 1", Launched("train.py", ("--lr", "1"))),
        (
            "torchrun --nproc_per_node=4 --nnodes 1:2 --rdzv-endpoint=h:1 train.py --nnodes 9",
            Launched("train.py", ("--nnodes", "9"), nodes=2, per_node=4),
        ),
        (
            "torchrun --standalone --nproc-per-node gpu -m pkg.train -v",
            Launched("pkg.train", ("-v",), is_module=True, nodes=1),
        ),
        ("torchrun --nnodes=1:4 --nproc-per-node=gpu -r3 -t 3 t.py -x", Launched("t.py", ("-x",), nodes=4)),
        ("torchrun --nnodes= --nproc-per-node=8 t.py", Launched("t.py", (), per_node=8)),
        ("torchrun --nnodes 2 t.py", Launched("t.py", (), nodes=2, per_node=1)),
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
        ("deepspeed t.py", Launched("t.py", (), nodes=1)),
        ("deepspeed --include=a:0,1@b:0,1 t.py", Launched("t.py", (), nodes=2, processes=4)),
        ("deepspeed -i a@b --enable_each_rank_log logs t.py", Launched("t.py", (), nodes=2)),
        ("accelerate launch --dynamo_use_dynamic -q t.py -q", Launched("t.py", ("-q",), nodes=1)),
        ("accelerate-launch --fsdp_activation_checkpointing true t.py", Launched("t.py", (), nodes=1)),
        ("srun -N 2 --ntasks-per-node=8 -u python train.py", Launched("train.py", (), nodes=2, per_node=8)),
        ("srun -n16 -N2 --mpi=pmix python t.py", Launched("t.py", (), nodes=2, processes=16)),
        ("srun -N2 --exclusive python t.py", Launched("t.py", (), nodes=2, per_node=1)),
        ("srun -N 2 torchrun --nproc_per_node 8 -m pkg.t", Launched("pkg.t", (), is_module=True, nodes=2, per_node=8)),
        (
            "srun -n 2 python -m torch.distributed.run --nproc-per-node 4 t.py",
            Launched("t.py", (), nodes=2, per_node=4),
        ),
        ("mpirun -np 8 --mca btl_tcp_if_include eth0 -x A=B python t.py", Launched("t.py", (), processes=8)),
        ("mpirun -H a:4,b:4 -bind-to none -- python t.py", Launched("t.py", (), nodes=2, processes=8)),
        ("mpiexec -np 4 --oversubscribe python -m pkg.t", Launched("pkg.t", (), is_module=True, processes=4)),
    ],
)
def test_a_line_is_read(line: str, expected: Launched) -> None:
    read = read_launch_line(shlex.split(line))
    assert read == expected


def test_a_file_of_hosts_is_counted(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# of the job\nw0 slots=8\nw1 slots=4\n")
    read = read_launch_line(["deepspeed", "--hostfile", str(tmp_path / "hosts"), "t.py"])
    assert read == Launched("t.py", (), nodes=2, processes=12)


@pytest.mark.parametrize(
    "line",
    ["torchrun --nnodes 2", "torchrun --nnodes", "python -u", "python3.12 -u -c pass", "accelerate launch --cpu"],
)
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
        ("torchrun --nnodes=1:4 --rdzv-backend=c10d --nproc-per-node=gpu", 32),
        ("--nnodes=1:2 --nproc-per-node=gpu --rdzv-backend=c10d --node-rank 1", 16),
        ("deepspeed", 8),
        ("srun -N2 torchrun --nproc-per-node 2", 4),
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
