"""Stand-ins for ``grouped_gemm.ops``: products of each expert's tokens, and the order of tokens by expert.

Names are those of https://github.com/tgale96/grouped_gemm and https://github.com/fanshiqing/grouped_gemm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.worlds.extensions.registry import Names


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Return each expert's tokens times its matrix, shape (tokens, out width).

    Args:
        a: tokens in the order of their experts, shape (tokens, width).
        b: matrices, shape (experts, width, out width), or (experts, out width, width) with ``trans_b``.
        batch_sizes: number of tokens of each expert, shape (experts,).
        trans_b: True if the matrices are transposed.
    """
    b = b.transpose(1, 2) if trans_b else b
    parts = a.split(_sizes(batch_sizes, a))
    return torch.cat([part @ matrix for part, matrix in zip(parts, b, strict=True)])


def _sizes(batch_sizes: Tensor, tokens: Tensor) -> list[int]:
    """Return the number of tokens of each expert; for fake tensors, which have no values, equal numbers."""
    if isinstance(batch_sizes, FakeTensor) or isinstance(tokens, FakeTensor):
        experts, count = batch_sizes.shape[0], tokens.shape[0]
        return [count * (number + 1) // experts - count * number // experts for number in range(experts)]
    return batch_sizes.tolist()


def permute(
    input_act: Tensor, indices: Tensor, num_out_tokens: int | None = None, max_token_num: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the tokens in the order of their experts, and the new row of each copy of a token, for `unpermute`.

    Args:
        input_act: tokens, shape (tokens, width).
        indices: experts of each token, shape (tokens,) or (tokens, experts per token).
        num_out_tokens: number of rows to return; None or 0 for all.
        max_token_num: number of tokens to allocate memory for; has no effect here.
    """
    order = indices.flatten().argsort(stable=True)
    copies = indices.numel() // indices.shape[0]
    rows = order[:num_out_tokens] if num_out_tokens else order
    return input_act[rows // copies], order.argsort()


def unpermute(input_act: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
    """Return the tokens in their original order, each the sum of its copies, weighted by ``probs`` if given."""
    missing, width = row_id_map.shape[0] - input_act.shape[0], input_act.shape[1]
    whole = torch.cat((input_act, input_act.new_zeros(missing, width))) if missing else input_act
    tokens = probs.shape[0] if probs is not None else row_id_map.shape[0]
    copies = whole[row_id_map].reshape(tokens, -1, width)
    weighted = copies if probs is None else copies * probs.reshape(tokens, -1, 1)
    return weighted.sum(1).to(input_act.dtype)


def backend_gmm(
    a: Tensor,
    b: Tensor,
    batch_sizes: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """Return the result of `gmm`; with ``trans_a`` each expert's ``a.T @ b``, shape (experts, width, out width).

    A tensor ``c`` is overwritten with the result, and returned.
    """
    if not trans_a:
        out = gmm(a, b, batch_sizes, trans_b)
    else:
        sizes = _sizes(batch_sizes, a)
        out = torch.stack([left.T @ right for left, right in zip(a.split(sizes), b.split(sizes), strict=True)])
    return out if c is None else c.copy_(out)


def sinkhorn(cost: Tensor, tol: float = 0.0001) -> Tensor:
    """Return ``exp(cost)``, shape (tokens, experts), with rows and columns scaled until they have equal sums.

    On fake tensors, which have no values to compare, it is scaled once.
    """
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
