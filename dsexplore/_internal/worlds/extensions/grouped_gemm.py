"""Stand-ins for ``grouped_gemm.ops``: products of each expert's tokens, and the order of tokens by expert.

Names are those of https://github.com/tgale96/grouped_gemm and https://github.com/fanshiqing/grouped_gemm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.worlds.extensions.registry import Names


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Return each expert's tokens times its matrix, ``(tokens, width out)``.

    Args:
        a: ``(tokens, width)``, in the order of experts.
        b: ``(experts, width, width out)``; the last two the other way round with ``trans_b``.
        batch_sizes: ``(experts,)``: numbers of tokens.
        trans_b: whether the matrices are transposed.
    """
    b = b.transpose(1, 2) if trans_b else b
    if isinstance(a, FakeTensor):  # which has no numbers to divide it by
        expert = torch.bucketize(torch.arange(a.shape[0], device=a.device), batch_sizes.to(a.device).cumsum(0))
        return (a.unsqueeze(1) @ b[expert.clamp(max=b.shape[0] - 1)]).squeeze(1)
    parts = a.split(batch_sizes.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, b, strict=True)])


def permute(
    input_act: Tensor, indices: Tensor, num_out_tokens: int | None = None, max_token_num: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return tokens in the order of their experts, and where each of them went, for `unpermute`.

    Args:
        input_act: ``(tokens, width)``.
        indices: the experts of each token, ``(tokens,)`` or ``(tokens, experts of each)``.
        num_out_tokens: how many to keep; None for all.
        max_token_num: of the kernel.
    """
    order = indices.flatten().argsort(stable=True)
    copies = indices.numel() // indices.shape[0]
    kept = order if not num_out_tokens else order[:num_out_tokens]
    return input_act[kept // copies], order.argsort()


def unpermute(permuted: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
    """Return tokens in the order that `permute` found, the sum of their copies, weighted by ``probs``."""
    missing = row_id_map.shape[0] - permuted.shape[0]
    whole = torch.cat((permuted, permuted.new_zeros(missing, permuted.shape[1]))) if missing else permuted
    tokens = probs.shape[0] if probs is not None else row_id_map.shape[0]
    copies = whole[row_id_map].reshape(tokens, -1, permuted.shape[1])
    weighted = copies if probs is None else copies * probs.reshape(tokens, -1, 1)
    return weighted.sum(1).to(permuted.dtype)


def backend_gmm(
    a: Tensor,
    b: Tensor,
    batch_sizes: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """Return what `gmm` does; with ``trans_a`` each expert's ``a.T @ b``, ``(experts, width, width out)``."""
    if not trans_a:
        out = gmm(a, b, batch_sizes, trans_b)
    elif isinstance(a, FakeTensor):
        out = a.new_empty(batch_sizes.shape[0], a.shape[1], b.shape[1])
    else:
        sizes = batch_sizes.tolist()
        out = torch.stack([left.T @ right for left, right in zip(a.split(sizes), b.split(sizes), strict=True)])
    return out if c is None else c.copy_(out)


def sinkhorn(cost: Tensor, tol: float = 0.0001) -> Tensor:
    """Return ``exp(cost)`` with rows and columns scaled until they have equal sums, ``(tokens, experts)``."""
    scaled = cost.float().exp()
    rows, columns = scaled.new_ones(scaled.shape[0]), scaled.new_ones(scaled.shape[1])
    tiny, error = 1e-8, float("inf")
    while error > tol:
        before = columns
        rows = 1 / (rows.shape[0] * ((columns * scaled).sum(1) + tiny))
        columns = 1 / (columns.shape[0] * ((rows.unsqueeze(1) * scaled).sum(0) + tiny))
        error = 0.0 if isinstance(cost, FakeTensor) else (before - columns).abs().mean().item()
    return columns * scaled * rows.unsqueeze(1)


_FUNCTIONS: Names = {function.__name__: function for function in (gmm, permute, unpermute)}

EXTENSIONS: dict[str, Names] = {
    "grouped_gemm": {
        **{f"ops.{name}": value for name, value in _FUNCTIONS.items()},
        **_FUNCTIONS,
        "ops.sinkhorn": sinkhorn,
        "backend.gmm": backend_gmm,
    },
}
