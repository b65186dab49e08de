"""Scripts of frameworks, how each is run, and the closed form of what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtitan_assets import torchtitan_arguments

from dsexplore._internal.torch_internals.names import torch_at_least

HERE = Path(__file__).parent

LLAMA = 2 * 128 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
"""Parameters of `scripts/small_llama.py`: two embeddings, two layers of attention, MLP and two norms, a last norm."""
LLAMA_LAYERS = LLAMA - 2 * 128 * 64 - 64
"""Those of its two layers."""
ADAPTERS = 2 * 2 * 4 * (64 + 64)
"""Parameters that `scripts/peft_fsdp2.py` adds: of rank 4, to queries and values of two layers."""
FLUX = 4 * (64 + 16) // 4 * 64
"""Bytes of a rank's queries, keys or values in `scripts/diffusers_flux.py`: 80 tokens on four ranks, 64 wide, fp32."""
LAYER = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64 + 4 * 64
"""Parameters of a ``TransformerEncoderLayer(64, 4, 128)``: attention, two linear layers and two norms, with biases."""
ENDS = 100 * 64 + 65 * 100
"""Parameters of an embedding of 100 words and of the linear layer that predicts them."""
ZERO_WEIGHTS = 64 * 128 + 128 * 128 + 128 * 12
ZERO = ZERO_WEIGHTS + 128 + 128 + 12
"""Parameters of `scripts/deepspeed_zero.py`, without and with biases."""
FLOAT8 = 3 * 2 * 64 * 256
"""Parameters of `scripts/torchao_float8.py`."""
ACTIVATIONS = 2 * 32 * 2 * 64
"""Bytes of what layers of `scripts/megatron_gpt.py` hand on: 32 tokens of 2 sequences, 64 wide, bf16."""
MICRO_BATCHES = 2 * 4
"""Of its two steps."""


def gpt_layer(tp: int) -> int:
    """Parameters of a layer of `scripts/megatron_gpt.py` on one rank, with Megatron's alignment of each to 64."""
    split = (3 * 64 * 64, 3 * 64, 64 * 64, 64 * 256, 256, 256 * 64)
    return sum(-(-size // tp // 64) * 64 for size in split) + 2 * 64 + 4 * 64


GPT_TP = 4 * gpt_layer(2) + 2 * 128 * 64 // 2 + 2 * 64
GPT_PP = 2 * gpt_layer(1) + 128 * 64
"""Parameters of one rank: half of all, but for norms and some biases; the embedding and two of the four layers."""
GPT_DENSE = 4 * (3 * 64 * 64 + 64 * 64 + 4 * 64 + 4 * 64) + 2 * 128 * 64 + 2 * 64
GPT_EXPERTS = 4 * 2 * 2 * 64 * 256
"""Of a rank that has two of four experts, without biases: attention, router, norms, embeddings; its experts."""

LLAMA3_SPLIT = 2 * 2048 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 768)
LLAMA3 = LLAMA3_SPLIT + 13 * 256
"""Parameters of torchtitan's llama3 debug model, what tensor parallelism splits and all: two embeddings, six layers of
attention, MLP and two norms, a last norm."""
DEEPSEEK_EXPERTS = 8 // 2 * 3 * 256 * 256
"""Parameters of a rank's experts in each of the five layers of torchtitan's deepseek_v3 debug model that have any."""
TITAN = 256 * 256 * 2
"""Bytes of what layers of these models hand on: 256 tokens, 256 wide, bf16."""


OF_TORCHTITAN = torch_at_least("2.15")
"""True for the versions of torch that have all that torchtitan calls."""


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
    """Message bytes by op, or by op and axis, of all its messages that carry more than losses and norms."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables by which the framework is told to use CPUs, where that is compared."""
    ends_with: str = ""
    """The error that it ends with on simulated GPUs of torch 2.13, where it cannot run; torch 2.15 runs all."""
    remark: str = ""
    """Why that is, for the table."""

    @property
    def is_refused(self) -> bool:
        """True where the installed torch cannot run it on simulated GPUs."""
        return bool(self.ends_with) and not OF_TORCHTITAN

    @property
    def name(self) -> str:
        return " ".join((self.script.removesuffix(".py"), *self.arguments))

    def line(self, folder: Path) -> tuple[str, ...]:
        """Return the command line behind that of dsexplore, or of Python: the script, or the module, and arguments."""
        if self.script.endswith(".py"):
            return str(HERE / "scripts" / self.script), *self.arguments
        _, model, *arguments = (*self.script.split(), *self.arguments)
        return "-m", "torchtitan.train", "--module", model, *torchtitan_arguments(model, folder), *arguments


def titan(model: str, *arguments: str, **known: Any) -> Case:
    """Return a case of torchtitan, whose one step leaves CUDA graphs out, as dsexplore asks in its error."""
    return Case(f"torchtitan {model}", arguments, "torchtitan", only_on_gpus="torchtitan asks for GPUs", **known)


def lightning(script: str, gradients: int) -> tuple[Case, Case]:
    """Return the cases of a script of Lightning, whose gradients DDP reduces and FSDP scatters: so many bytes of all
    steps."""
    return (
        Case(script, ("ddp",), "lightning", expected={"all_reduce": gradients}),
        Case(
            *(script, ("fsdp",), "lightning"),
            only_on_gpus="Lightning asks for GPUs",
            expected={"reduce_scatter": gradients},
        ),
    )


def fully_sharded(parameters: int) -> dict[str, int]:
    """Return what torchtitan's one step sends: parameters are gathered forward and backward in bf16, gradients reduced
    in fp32."""
    return {"all_gather fsdp": 2 * 2 * parameters, "reduce_scatter fsdp": 4 * parameters}


CPUS = {"DS_ACCELERATOR": "cpu"}


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
    # Weights are gathered in float8, forward and backward; their gradients are reduced in fp32.
    Case(
        "torchao_float8.py",
        (),
        "torchao",
        only_on_gpus="gloo sends no float8",
        expected={"all_gather": 3 * 2 * FLOAT8, "reduce_scatter": 3 * 4 * FLOAT8},
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
    # The frozen weights are gathered with the adapters, for backward too but for the root's; gradients are adapters'.
    Case(
        "peft_fsdp2.py",
        (),
        "peft",
        expected={
            "all_gather": 2 * 4 * (LLAMA + LLAMA_LAYERS + 2 * ADAPTERS) + 4 * ADAPTERS,
            "reduce_scatter": 2 * 4 * ADAPTERS,
        },
    ),
    # Three batches of 8 samples on each of four ranks.
    Case("ignite_loop.py", (), "pytorch-ignite", expected={"all_reduce": 3 * 4 * (65 * 64 + 65 * 4)}),
    # Of three layers queries, keys, values and what attention makes of them are exchanged for heads, and back.
    Case(
        *("diffusers_flux.py", ("ulysses",), "diffusers"),
        only_on_gpus="diffusers asks for GPUs",
        expected={"all_to_all ulysses": 2 * 3 * 2 * 4 * FLUX, "all_gather ulysses": 2 * 4 * 64 * 16},
    ),
    # Keys and values of all ranks are gathered, forward and backward; gradients of both go on to the next rank.
    Case(
        *("diffusers_flux.py", ("ring",), "diffusers"),
        only_on_gpus="diffusers asks for GPUs",
        expected={
            "all_gather ring": 2 * (3 * 2 * 4 * 2 * FLUX + 4 * 64 * 16),
            "all_to_all ring": 2 * 3 * 4 * 2 * FLUX,
        },
    ),
    *lightning("lightning_fabric.py", 2 * 4 * (2 * LAYER + ENDS)),
    *lightning("lightning_trainer.py", 3 * 4 * (3 * 65 * 64 + ENDS)),
    Case(
        "lightning_trainer.py",
        ("model_parallel",),
        "lightning",
        only_on_gpus="not compared: equal in each run that ended, but one of eleven runs of the real ranks failed",
        expected={"reduce_scatter": 3 * 4 * (3 * 65 * 64 + ENDS)},
    ),
    # Three steps in bf16. What is gathered is padded to pairs of elements on each rank.
    *(
        Case(
            *("deepspeed_zero.py", (stage,), "deepspeed"),
            expected={"all_reduce": 3 * 2 * ZERO, "all_gather": 3 * 2 * (-(-ZERO // 8) * 8)},
            variables=CPUS,
        )
        for stage in ("1", "2")
    ),
    # Each parameter is gathered alone at set-up, as start-up, then forward in each step, and backward in the first
    # one alone: from the second on DeepSpeed knows the order, and keeps what backward uses again.
    Case(
        *("deepspeed_zero.py", ("3",), "deepspeed"),
        expected={"reduce_scatter": 3 * 2 * ZERO, "all_gather": 2 * 4 * ZERO},
        variables=CPUS,
    ),
    # Of L = 4 layers, attention and MLP gather their input and scatter their output, the embedding scatters, the output
    # layer gathers; backward does the opposite of each, and gathers each input once more. Gradients are fp32.
    Case(
        *("megatron_gpt.py", ("--tensor-parallel", "2"), "megatron-core"),
        only_on_gpus="Megatron asks for GPUs",
        expected={
            "all_gather tp": MICRO_BATCHES * 3 * (2 * 4 + 1) * ACTIVATIONS,
            "reduce_scatter tp": MICRO_BATCHES * 2 * (2 * 4 + 1) * ACTIVATIONS,
            "all_reduce tp": 2 * 4 * (4 * (4 * 64 + 2 * 64) + 2 * 64),  # gradients of norms and of biases behind them
            "reduce_scatter dp": 2 * 4 * GPT_TP,
            "all_gather dp": 2 * 2 * GPT_TP,
        },
    ),
    Case(
        *("megatron_gpt.py", ("--pipeline-parallel", "2"), "megatron-core"),
        only_on_gpus="Megatron asks for GPUs",
        expected={
            "send pp": MICRO_BATCHES * ACTIVATIONS,
            "recv pp": MICRO_BATCHES * ACTIVATIONS,
            "reduce_scatter dp": 2 * 4 * GPT_PP,
            "all_gather dp": 2 * 2 * GPT_PP,
        },
    ),
    # Two of four experts for each token, padded: to them and back, forward and backward. Two optimizers, of dense and
    # of expert parameters, each gather all.
    Case(
        *("megatron_gpt.py", ("--experts", "4", "--expert-parallel", "2"), "megatron-core"),
        only_on_gpus="Megatron asks for GPUs",
        expected={
            "all_to_all ep": MICRO_BATCHES * 4 * 4 * 2 * ACTIVATIONS,
            "reduce_scatter dp": 2 * 4 * GPT_DENSE,
            "reduce_scatter edp": 2 * 4 * GPT_EXPERTS,
            "all_gather dp": 2 * 2 * 2 * GPT_DENSE,
            "all_gather edp": 2 * 2 * 2 * GPT_EXPERTS,
        },
    ),
    titan("llama3", expected=fully_sharded(LLAMA3)),
    # Of six layers, attention and MLP gather their input, forward and in recomputation, and their output's gradient;
    # the output layer gathers its input once, and the embedding its gradient.
    titan(
        *("llama3", "--parallelism.tensor_parallel_degree", "2"),
        expected={
            "all_gather tp": (3 * 2 * 6 + 2) * TITAN,
            "reduce_scatter tp": 2 * (2 * 6 + 1) * TITAN,
            **fully_sharded(LLAMA3 - LLAMA3_SPLIT // 2),
        },
    ),
    # Keys and values of each layer, forward and in recomputation; then their gradients.
    titan(
        *("llama3", "--parallelism.context_parallel_degree", "2"),
        expected={
            "all_gather cp": 2 * 2 * 6 * TITAN,
            "reduce_scatter cp": 2 * 6 * TITAN,
            **fully_sharded(LLAMA3),
        },
    ),
    # Half the tokens, and half the heads of keys and values.
    titan(
        *("llama3", "--parallelism.tensor_parallel_degree", "2", "--parallelism.context_parallel_degree", "2"),
        expected={
            "all_gather tp": (3 * 2 * 6 + 2) * TITAN // 2,
            "reduce_scatter tp": 2 * (2 * 6 + 1) * TITAN // 2,
            "all_gather cp": 2 * 2 * 6 * TITAN // 2,
            "reduce_scatter cp": 2 * 6 * TITAN // 2,
            "all_gather fsdp": 2 * 2 * (LLAMA3 - LLAMA3_SPLIT // 2),
        },
    ),
    # Three of eight experts for each token, to them and back, forward and backward.
    titan(
        *("deepseek_v3", "--parallelism.expert_parallel_degree", "2"),
        expected={
            "all_to_all ep": 5 * 2 * 2 * 3 * TITAN,
            "all_gather efsdp": 5 * 2 * 2 * DEEPSEEK_EXPERTS,
            "reduce_scatter efsdp": 5 * 4 * DEEPSEEK_EXPERTS,
        },
    ),
    titan(
        *("llama3", "--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "4"),
        # Each rank has two of four stages: three of the boundaries between them are crossed forward and backward.
        expected={"send pp": 3 * 4 * TITAN, "recv pp": 3 * 4 * TITAN},
        ends_with="arg_mbs",
        remark="no: it gives schedules their microbatches as torch 2.15 takes them (`arg_mbs`); there it runs",
    ),
)
