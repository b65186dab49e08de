"""Notes of a trace name the remedy for errors that a simulated world causes.

Modules: ``worlds/scripts/script_notes.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dsexplore

WORLD = 'import torch, torch.distributed as dist\ndist.init_process_group("gloo")\n'


def notes_of(tmp_path: Path, code: str, error: type[BaseException], **world: object) -> tuple[str, ...]:
    (tmp_path / "train.py").write_text(WORLD + code)
    with pytest.raises(error) as caught:
        dsexplore.run(tmp_path / "train.py", **{"world_size": 4, **world})  # type: ignore[arg-type]
    return caught.value.trace.info.notes  # type: ignore[attr-defined,no-any-return]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
@pytest.mark.parametrize(
    "code",
    [
        'torch.ones(2, device="cuda")',
        "torch.cuda.set_device(0)",
        "torch.nn.ReLU().cuda()",
        "torch.cuda.Stream()",
        "torch.cuda.Event().record()",
        "torch.Generator('cuda')",
        "torch.ones(1).pin_memory()",
    ],
)
def test_a_script_for_gpus_in_a_world_without(tmp_path: Path, code: str) -> None:
    code += '\ntorch.ones(1, device="cuda")'
    notes = notes_of(tmp_path, code, BaseException, hardware="cpu")
    assert any("in this world there is none: leave out --hardware cpu" in note for note in notes)


def test_a_file_of_that_name_is_no_gpu(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, "open('cuda_kernels.json')", FileNotFoundError, hardware="cpu")
    assert not any("asks for a GPU" in note for note in notes)


def test_a_file_that_rank_0_would_have_written(tmp_path: Path) -> None:
    code = f"if dist.get_rank() == 0: open({str(tmp_path / 'a')!r}, 'w').close()\nopen({str(tmp_path / 'a')!r})"
    notes = notes_of(tmp_path, code, FileNotFoundError, rank=2)
    assert any(f"{tmp_path / 'a'}, which does not exist: while rank" in note for note in notes)
    dsexplore.run(tmp_path / "train.py", world_size=4)
    dsexplore.run(tmp_path / "train.py", world_size=4, rank=2)


def test_rank_0_writes_its_files_itself(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, "open('nowhere/a')", FileNotFoundError)
    assert not any("which is not there" in note for note in notes)


@pytest.mark.parametrize(
    ("module", "remedy"), [("triton.language", "pip install triton"), ("flash_attn.layers", "torch's own form")]
)
def test_a_package_for_gpus(tmp_path: Path, module: str, remedy: str) -> None:
    code = f"raise ModuleNotFoundError('No module named {module}', name='{module}')"
    assert any(remedy in note for note in notes_of(tmp_path, code, ModuleNotFoundError))
    assert not any(remedy in note for note in notes_of(tmp_path, "import nobodys_package", ModuleNotFoundError))


def test_a_world_of_cpus_has_no_stand_ins(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, "import flash_attn", ModuleNotFoundError, hardware="cpu")
    assert any("a world of GPUs has a stand-in for flash_attn: leave out --hardware cpu" in note for note in notes)


def test_an_op_with_kernels_for_gpus_alone(tmp_path: Path) -> None:
    """Libraries of ring attention call torch's attention kernels by name."""
    code = (
        'q = torch.ones(1, 2, 8, 4, device="cuda")\n'
        "torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, True)\n"
    )
    notes = notes_of(tmp_path, code, NotImplementedError, hardware="h100")
    assert any("calls aten::_scaled_dot_product_efficient_attention itself" in note for note in notes)
    dsexplore.run(tmp_path / "train.py", world_size=4, hardware="h100", fake=True)
