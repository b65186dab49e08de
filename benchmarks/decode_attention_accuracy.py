"""How far the attention of a decoder's next token is from published tables of single kernels. Run it without arguments.

``data/decode_attention_perf.csv`` has 60 rows in bf16, without windows, drawn by chance, of each table of vLLM, SGLang
and TensorRT-LLM on A100, H100, H200, B200 and L40S in NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0,
systems/data/*/attention/*/generation_attention_perf.parquet). vLLM's on A100 and H100 were looked at when the mechanism
was written; the others were not, and nothing was changed after their errors were seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from published_kernels import Row, compare, read_rows

DATA = Path(__file__).with_name("data") / "decode_attention_perf.csv"
SEEN = ("a100-sxm vllm 0.14.0", "h100-sxm vllm 0.24.0")


def attention(batch: int, heads: int, kv_heads: int, keys: int, width: int) -> dict[str, Any]:
    """Return the row of `schema.KERNELS` of one bf16 attention with one query a sequence."""
    queries = batch * heads * width
    return {
        "kind": "attention",
        "op": "scaled_dot_product_attention",
        "dtype": "bfloat16",
        "shape": [batch, heads, 1, keys, width],
        "count": 1,
        "flops": 4 * queries * keys,
        "read_bytes": 2 * (queries + 2 * batch * kv_heads * keys * width),
        "written_bytes": 2 * queries,
        "phase": "forward",
    }


def kernels(row: Row) -> list[dict[str, Any]]:
    """Return the one kernel of a row."""
    return [attention(*(int(row[name]) for name in ("batch", "heads", "kv_heads", "keys", "width")))]


def lines(_row: Row, name: str, _measured: float) -> Iterator[str]:
    """Yield the table of a row, and all that were seen or unseen."""
    seen = "seen" if name in SEEN else "unseen"
    yield f"{name}, {seen}"
    yield f"all {seen}"


if __name__ == "__main__":
    compare(read_rows(DATA), kernels, lines)
