"""A program finds missing extensions that it needs while a simulated world of GPUs is open."""

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

pytestmark = pytest.mark.usefixtures("registered")
NOTE = "flash_attn is not installed: a stand-in with the same shapes ran"


IMPORTED = {
    "bitsandbytes": """
        optim.Adam8bit optim.AdamW8bit optim.PagedAdamW8bit optim.PagedAdamW32bit optim.Lion optim.Lion8bit
        optim.PagedLion8bit optim.LAMB8bit optim.LARS8bit optim.RMSprop8bit optim.Adagrad8bit optim.AdEMAMix8bit
        optim.SGD8bit optim.GlobalOptimManager nn.Linear8bitLt nn.Linear4bit nn.LinearNF4 nn.Params4bit nn.Int8Params
        nn.Embedding nn.StableEmbedding functional.quantize_4bit functional.dequantize_4bit
        functional.quantize_blockwise functional.dequantize_blockwise matmul_4bit""",
    "apex": """
        optimizers.FusedAdam optimizers.FusedLAMB optimizers.FusedSGD optimizers.FusedNovoGrad optimizers.FusedAdagrad
        optimizers.FusedMixedPrecisionLamb parallel.DistributedDataParallel parallel.SyncBatchNorm parallel.LARC
        parallel.convert_syncbn_model parallel.create_syncbn_process_group parallel.Reducer mlp.MLP
        fused_dense.FusedDense fused_dense.FusedDenseGeluDense contrib.xentropy.SoftmaxCrossEntropyLoss
        contrib.layer_norm.FastLayerNorm contrib.clip_grad.clip_grad_norm_ amp.initialize amp.scale_loss
        amp.master_params amp.state_dict amp.load_state_dict amp.half_function amp.register_float_function
        fp16_utils.network_to_half fp16_utils.BN_convert_float fp16_utils.prep_param_lists fp16_utils.FP16_Optimizer
        fp16_utils.model_grads_to_master_grads fp16_utils.master_params_to_model_params fp16_utils.to_python_float
        fp16_utils.tofp16 contrib.optimizers.distributed_fused_adam.DistributedFusedAdam""",
    "flash_attn": """
        flash_attn_func flash_attn_varlen_func bert_padding.unpad_input bert_padding.pad_input
        layers.rotary.RotaryEmbedding losses.cross_entropy.CrossEntropyLoss modules.mha.MHA modules.mlp.Mlp
        modules.mlp.GatedMlp modules.block.Block ops.fused_dense.FusedDense ops.fused_dense.FusedMLP
        ops.activations.swiglu ops.rms_norm.RMSNorm ops.layer_norm.dropout_add_layer_norm""",
    "xformers": """
        ops.memory_efficient_attention ops.rmsnorm.RMSNorm ops.rmsnorm.rms_norm ops.merge_attentions ops.SwiGLU
        profiler.profile profiler.step profiler.PyTorchProfiler""",
    "cut_cross_entropy": "linear_cross_entropy LinearCrossEntropy",
    "grouped_gemm": "ops.gmm ops.permute ops.unpermute ops.sinkhorn backend.gmm",
    "liger_kernel": """
        transformers.LigerKLDIVLoss transformers.LigerJSD transformers.LigerFusedLinearJSD transformers.LigerRMSNorm
        transformers.AutoLigerKernelForCausalLM transformers.apply_liger_kernel_to_llama
        ops.cross_entropy.LigerCrossEntropyFunction ops.kl_div.LigerKLDivLossFunction ops.jsd.LigerJSDFunction
        ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction chunked_loss.LigerFusedLinearDPOLoss
        chunked_loss.LigerFusedLinearORPOLoss chunked_loss.LigerFusedLinearCPOLoss
        chunked_loss.LigerFusedLinearSimPOLoss chunked_loss.LigerFusedLinearKTOLoss
        chunked_loss.LigerFusedLinearGRPOLoss chunked_loss.LigerFusedLinearJSDLoss
        chunked_loss.LigerFusedLinearCosineSimilarityLoss""",
    "transformer_engine": """
        pytorch.Linear pytorch.GroupedLinear pytorch.moe_permute pytorch.moe_unpermute pytorch.moe_permute_with_probs
        pytorch.attention.DotProductAttention pytorch.fp8.fp8_autocast pytorch.distributed.checkpoint
        pytorch.distributed.CudaRNGStatesTracker pytorch.cross_entropy.parallel_cross_entropy""",
}
"""{package: names that public training scripts import}."""


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

    @pytest.mark.parametrize(("package", "names"), IMPORTED.items())
    def test_has_the_names_that_training_scripts_import(self, package: str, names: str) -> None:
        assert set(names.split()) <= set(registry.names_of(package))

    def test_is_what_the_docs_list(self) -> None:
        page = (Path(__file__).parents[3] / "docs/howto/my_script_needs_a_gpu_extension.md").read_text()
        roots = {name.partition(".")[0] for name in registry._factories}
        assert [root for root in sorted(roots - {"amp_C", "pynvml"}) if f"`{root}`" not in page] == []

    def test_refuses_what_is_no_package_or_function(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="not a name of a package"):
            dsexplore.register_extension("fast-kernels", dict)
        with pytest.raises(UsageError, match="not a function"):
            dsexplore.register_extension("fast_kernels", {})  # type: ignore[arg-type] # that is what is tested
        dsexplore.register_extension("fast_kernels", lambda: [len])  # type: ignore[arg-type, return-value] # likewise
        with pytest.raises(UsageError, match=r"registered for fast_kernels returned \["):
            run(tmp_path, "import fast_kernels")
