"""Extensions that are not installed are found while a simulated world of GPUs is open, where a program needs them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions import registry

NOTE = "flash_attn is not installed: a stand-in with the same shapes ran"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def run(folder: Path, text: str, **options: str) -> dsexplore.Trace:
    script = folder / "train.py"
    script.write_text(text)
    return dsexplore.run(script, world_size=2, **options)  # type: ignore[arg-type] # of names


class TestAScript:
    def test_finds_them_and_a_note_names_each(self, tmp_path: Path) -> None:
        trace = run(tmp_path, "from flash_attn.layers.rotary import apply_rotary_emb\nimport flash_attn.bert_padding\n")
        assert [note for note in trace.info.notes if "not installed" in note] == [NOTE]
        assert not [name for name in sys.modules if name.startswith("flash_attn")]
        with pytest.raises(ModuleNotFoundError):
            import_module("flash_attn")

    def test_finds_a_package_that_is_there_instead(self, tmp_path: Path) -> None:
        (tmp_path / "flash_attn.py").write_text("VALUE = 7\n")
        trace = run(tmp_path, "from flash_attn import VALUE\nassert VALUE == 7\n")
        del sys.modules["flash_attn"]
        assert NOTE not in trace.info.notes

    @pytest.mark.parametrize(
        "statement", ["from flash_attn import flash_attention", "import flash_attn.flash_attention"]
    )
    def test_that_imports_what_they_lack_is_told_how_to_add_it(self, tmp_path: Path, statement: str) -> None:
        with pytest.raises(UsageError, match=r"flash_attn .* has no flash_attention.*register_extension\('flash_attn'"):
            run(tmp_path, statement)

    def test_can_ask_what_they_have(self, tmp_path: Path) -> None:
        run(
            tmp_path,
            "import flash_attn\n"
            "assert hasattr(flash_attn, 'flash_attn_func') and not hasattr(flash_attn, 'flash_attention')\n"
            "assert flash_attn.__version__ and flash_attn.layers.rotary.RotaryEmbedding\n"
            "try:\n"
            "    from flash_attn import flash_attention\n"
            "except ImportError:\n"
            "    flash_attention = None\n",
        )

    def test_on_cpus_finds_none(self, tmp_path: Path) -> None:
        with pytest.raises(ModuleNotFoundError):
            run(tmp_path, "import flash_attn", hardware="cpu")


class TestWhatAProgramCanDoWithout:
    @pytest.mark.parametrize(
        "text",
        [
            "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n",
            "try:\n    from flash_attn import layers as flash_attn\nexcept Exception:\n    flash_attn = None\n",
            "try:\n    import flash_attn\nexcept (ValueError, ModuleNotFoundError):\n    flash_attn = None\n",
            "def load():\n    import flash_attn\ntry:\n    load()\nexcept ImportError:\n    flash_attn = None\n",
        ],
    )
    def test_is_not_stood_in_for(self, tmp_path: Path, text: str) -> None:
        trace = run(tmp_path, text + "assert flash_attn is None\n")
        assert "flash_attn is not installed: the program took its own alternative" in trace.info.notes

    def test_is_what_it_asks_for(self, tmp_path: Path) -> None:
        trace = run(tmp_path, "from importlib.util import find_spec\nassert find_spec('flash_attn') is None\n")
        assert NOTE not in trace.info.notes

    @pytest.mark.parametrize("end", ["raise", "raise SystemExit('install it')", "import sys\n    sys.exit(1)"])
    def test_is_not_what_ends_it(self, tmp_path: Path, end: str) -> None:
        trace = run(tmp_path, f"try:\n    import flash_attn\nexcept ImportError:\n    {end}\n")
        assert NOTE in trace.info.notes

    def test_is_not_what_something_else_catches(self, tmp_path: Path) -> None:
        main = "def main():\n    import flash_attn\ntry:\n    main()\nexcept Exception:\n    found = False\n"
        assert NOTE in run(tmp_path, main).info.notes


class TestABlock:
    def test_finds_them_before_anything_is_on_a_gpu(self) -> None:
        with dsexplore.simulate(2), dsexplore.commtrace() as trace:
            attend = import_module("flash_attn").flash_attn_func
            assert attend(*[torch.ones(1, 2, 1, 4)] * 3).shape == (1, 2, 1, 4)
        assert NOTE in trace.info.notes
        assert find_spec("flash_attn") is None


class TestTheRegistry:
    def test_takes_a_users_own(self, tmp_path: Path) -> None:
        dsexplore.register_extension("fast_kernels", lambda: {"ops.gelu": torch.nn.functional.gelu, "VERSION": 2})
        trace = run(
            tmp_path,
            "import torch\nfrom fast_kernels.ops import gelu\nfrom fast_kernels import VERSION\n"
            "assert VERSION == 2 and gelu is torch.nn.functional.gelu\n",
        )
        assert "fast_kernels is not installed: a stand-in with the same shapes ran" in trace.info.notes

    def test_adds_to_ours(self, tmp_path: Path) -> None:
        dsexplore.register_extension("flash_attn", lambda: {"flash_attention": len})
        run(tmp_path, "from flash_attn import flash_attention, flash_attn_func\nassert flash_attention is len\n")

    def test_has_a_module_for_each_of_ours(self) -> None:
        for name in registry._factories:
            assert registry.names_of(name), name

    def test_refuses_what_is_no_package_or_function(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no name of a package"):
            dsexplore.register_extension("fast-kernels", dict)
        with pytest.raises(UsageError, match="no function"):
            dsexplore.register_extension("fast_kernels", {})  # type: ignore[arg-type] # that is what is tested
        dsexplore.register_extension("fast_kernels", lambda: [len])  # type: ignore[arg-type, return-value] # likewise
        with pytest.raises(UsageError, match=r"registered for fast_kernels returned \["):
            run(tmp_path, "import fast_kernels")
