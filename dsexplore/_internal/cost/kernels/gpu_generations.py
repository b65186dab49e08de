"""`GENERATIONS`: what all GPUs of one generation share, and cluster files do not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class AttentionRates(NamedTuple):
    """The parts of the stated bf16 FLOP/s that attention reaches in the middle of long blocks of heads of 128."""

    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The constants that all GPUs of one generation share, and that cluster files do not have.

    Attributes:
        multiprocessors: how many work at a time.
        flash: what FlashAttention-2 reaches.
        channels: multiprocessors that the communication library's kernels hold while a collective runs.
        cudnn: what cuDNN's attention reaches; None where nobody published that it is faster.
        burst: the part of the stated bf16 FLOP/s that products reach before the GPU is at the limit of its power; 0
            where no table of single kernels was published.
        start: seconds that a single product takes besides.
        borrowed: whether these two are the means of other generations, as no table of this one was looked at.
        attention_start: seconds from the start of an attention's kernels to the first block, and from the last one.
        block_start: seconds in which a block of queries neither multiplies nor moves queries and results.
        cache: bytes of the second-level cache, where it is several times faster than the memory; else 0.
        narrow: FLOP/s of attention with heads of 64 beside heads of 128.
        host_link: B/s from a GPU to the CPU's memory, each way: 16 lanes of PCIe; large copies reach 80 % of it.
    """

    multiprocessors: int
    flash: AttentionRates
    channels: int
    cudnn: AttentionRates | None = None
    host_link: float = 0.0
    burst: float = 0.0
    start: float = 0.0
    borrowed: bool = False
    attention_start: float = 4e-6
    block_start: float = 1e-6
    narrow: float = 0.75
    cache: float = 0.0


_PCIE = {version: 0.8 * 16 * lane for version, lane in {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}.items()}
"""B/s of 16 lanes by version of PCIe; large copies reach about 80 % of it."""

GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        # Burst and start: vLLM's linear layers of aiconfigurator-core 0.12.0 (systems/data/*/gemm/vllm). Starts of
        # attention, heads of 64 and the cache's effect: vLLM's tables of A100, H100, B200 and L40S there and SGLang's
        # and TensorRT-LLM's of H100 (systems/data/*/attention): see benchmarks/prefill_attention_accuracy.py.
        # V100 datasheet; attention as on Ampere, where nothing better is published.
        "volta": Generation(multiprocessors=80, flash=AttentionRates(0.45, 0.40), channels=16, host_link=_PCIE[3]),
        # A100 whitepaper: 108. FlashAttention-2 (arXiv 2307.08691), figures 4 to 6, head width 128, causal, 8k to 16k:
        # 190 of 312 TFLOP/s forward, 172 backward. NCCL on 8 A100: 24 channels of one block each.
        "ampere": Generation(
            multiprocessors=108,
            flash=AttentionRates(0.61, 0.55),
            channels=24,
            host_link=_PCIE[4],
            burst=0.88,
            start=3.3e-6,
            attention_start=4e-6,
            block_start=0.8e-6,
        ),
        # L40S datasheet: 142, and 96 MB of cache; attention forward as FlashAttention-2 on Ampere.
        "ada": Generation(
            multiprocessors=142,
            flash=AttentionRates(0.61, 0.48),
            channels=16,
            host_link=_PCIE[4],
            burst=0.87,
            start=2.6e-6,
            borrowed=True,
            attention_start=1e-6,
            block_start=1.4e-6,
            narrow=0.80,
            cache=96e6,
        ),
        # NVIDIA RTX Blackwell PRO GPU architecture: RTX PRO 6000 has 188, and 128 MB of cache; no tensor memory, so
        # attention is FlashAttention-2's, as on Ada.
        "rtx-blackwell": Generation(
            multiprocessors=188,
            flash=AttentionRates(0.61, 0.48),
            channels=16,
            host_link=_PCIE[5],
            burst=0.87,
            start=2.6e-6,
            borrowed=True,
            attention_start=1e-6,
            block_start=1.4e-6,
            narrow=0.80,
            cache=128e6,
        ),
        # H100 whitepaper: 132. FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, H100 SXM, head width 128, 16k, of
        # 989 TFLOP/s: FlashAttention-2 has 335 forward, causal, and 322 backward; cuDNN 539 and 516. NCCL on 8 H100: 16
        # channels with NVLS, 24 with rings. Forward, cuDNN of torch 2.11 computed 530 TFLOP/s of 4 × 32 heads × 4,096
        # on an H100 (benchmarks/data/gpu_steps.json, 8 layers of 8b): 682 in the middle of its blocks.
        "hopper": Generation(
            multiprocessors=132,
            flash=AttentionRates(0.34, 0.325),
            channels=20,
            cudnn=AttentionRates(0.69, 0.52),
            host_link=_PCIE[5],
            burst=0.92,
            start=2.6e-6,
            attention_start=6e-6,
            block_start=0.5e-6,
            narrow=0.70,
        ),
        # B200: 148. cuDNN's attention there, as FlashAttention-2 does not run on it; forward as vLLM's table of B200
        # has it (aiconfigurator-core 0.12.0, systems/data/b200_sxm/attention/vllm/0.24.0).
        "blackwell": Generation(
            multiprocessors=148,
            flash=AttentionRates(0.58, 0.42),
            channels=20,
            host_link=_PCIE[5],
            burst=0.80,
            start=2e-6,
            attention_start=4.6e-6,
            block_start=2.6e-6,
            narrow=0.62,
        ),
        # MI300X datasheet: 304 compute units. FlashAttention-2 for ROCm (rocm.blogs.amd.com): about a third.
        "cdna3": Generation(multiprocessors=304, flash=AttentionRates(0.33, 0.25), channels=32, host_link=_PCIE[5]),
        # A CPU's ranks compute one product at a time on all their cores.
        "cpu": Generation(multiprocessors=1, flash=AttentionRates(0.50, 0.40), channels=0),
    }
)
