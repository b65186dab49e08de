"""How far the attention of a prompt is from published tables of single kernels. Run it without arguments.

``data/prefill_attention_perf.csv`` has 60 rows in bf16, causal, without windows or a past, drawn by chance, of each
table of vLLM, SGLang and TensorRT-LLM on ten GPUs in NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0,
systems/data/*/attention/*/context_attention_perf.parquet). These calls write the keys and values of the prompt into a
cache besides, which is predicted as the copy that it is. TensorRT-LLM's begin with a kernel for lengths, and with one
that rotates queries and keys (``invokeBuildDecoderInfo`` and ``invokeQKVPreprocessing`` of its attention op). On Hopper
they are FlashAttention-3's or TensorRT's, for which cuDNN's stand here.

The tables of `SEEN` were looked at for the mechanism that is there now. Of the other tables of A100, H200, B200 and
L40S the errors of mechanisms before it were known. Those of B300, GB200, GB300 and RTX PRO 6000 were drawn when it was
fixed; afterwards RTX PRO 6000 was given the constants of L40S in place of those of B200.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from published_kernels import Row, compare, read_rows

DATA = Path(__file__).with_name("data") / "prefill_attention_perf.csv"
SEEN = (
    "a100-sxm trtllm 1.0.0",
    "a100-sxm vllm 0.14.0",
    "b200-sxm vllm 0.24.0",
    "h100-sxm sglang 0.5.14",
    "h100-sxm trtllm 1.3.0rc20",
    "h100-sxm vllm 0.24.0",
    "l40s vllm 0.24.0",
)
BANDS = {"below 30 µs": 30e-6, "30 to 100 µs": 100e-6, "0.1 to 1 ms": 1e-3, "longer": float("inf")}


def kernels(row: Row) -> list[dict[str, Any]]:
    """Return the rows of `schema.KERNELS` of one causal bf16 attention, and of the copy of its keys and values."""
    batch, heads, kv_heads, queries, width = (
        int(row[name]) for name in ("batch", "heads", "kv_heads", "queries", "width")
    )
    own, kept = 2 * batch * heads * queries * width, 2 * 2 * batch * kv_heads * queries * width
    both = {"dtype": "bfloat16", "count": 1, "phase": "forward"}
    attention = {
        "kind": "attention",
        "op": "flash_attention, causal",
        "shape": [batch, heads, queries, queries, width],
        "flops": 4 * batch * heads * width * queries * (queries + 1) // 2,
        "read_bytes": own + kept,
        "written_bytes": own,
    }
    cache = {"kind": "memory", "op": "index_put", "shape": [], "flops": 0, "read_bytes": kept, "written_bytes": kept}
    if not row["library"].startswith("trtllm"):
        return [attention | both, cache | both]
    rotation = cache | {"read_bytes": own + kept, "written_bytes": own + kept}
    lengths = cache | {"read_bytes": 4 * batch, "written_bytes": 4 * batch * queries}
    return [attention | both, rotation | both, lengths | both]


def lines(_row: Row, name: str, measured: float) -> Iterator[str]:
    """Yield the table of a row, all that were seen or unseen, and for an unseen one how long it takes."""
    seen = "seen" if name in SEEN else "unseen"
    yield f"{name}, {seen}"
    yield f"all {seen}"
    if seen == "unseen":
        yield f"all unseen, {next(band for band, most in BANDS.items() if measured < most)}"


if __name__ == "__main__":
    compare(read_rows(DATA), kernels, lines, attention="cudnn")
