"""Stand-ins for ``transformer_engine.pytorch``'s mixture of experts: grouped linear layers, permutations of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dsexplore._internal.worlds.extensions import grouped_gemm
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.extensions.transformer_engine_layers import initialize_weight


class GroupedLinear(nn.Module):
    """Several linear layers of one size, each for some of the input's rows."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        for number in range(num_gemms):
            layer = nn.Linear(in_features, out_features, bias, device=device, dtype=params_dtype)
            (options.get("init_method") or initialize_weight)(layer.weight)
            setattr(self, f"weight{number}", layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)
                self.register_parameter(f"bias{number}", layer.bias)

    def forward(self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None) -> Any:
        """Return the outputs of all layers, concatenated; with ``return_bias`` also the biases, which are not added.

        Args:
            inp: input, shape (..., width).
            m_splits: number of rows for each layer.
            is_first_microbatch: has no effect here.
        """
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        biases = [getattr(self, f"bias{number}", None) for number in range(self.num_gemms)]
        parts = inp.flatten(0, -2).split(list(m_splits))
        added = [None] * self.num_gemms if self.return_bias else biases
        out = torch.cat([linear(*layer) for layer in zip(parts, weights, added, strict=True)])
        out = out.view(*inp.shape[:-1], self.out_features)
        return (out, biases) if self.return_bias else out


def _rows(routing_map: Tensor, num_out_tokens: int) -> Tensor:
    """Return the flat indices of True in the transposed map, shape (experts, tokens), in order.

    Args:
        routing_map: True where an expert takes a token, shape (tokens, experts).
        num_out_tokens: number of indices; 0 or less for all.
    """
    chosen = routing_map.bool().T.flatten()
    count = num_out_tokens if num_out_tokens > 0 else int(chosen.sum())
    return (~chosen).to(torch.uint8).argsort(stable=True)[:count]


def moe_permute(
    inp: Tensor, routing_map: Tensor, num_out_tokens: int = -1, max_token_num: int = -1, map_type: str = "mask"
) -> tuple[Tensor, Tensor]:
    """Return the tokens in the order of their experts, and a map for `moe_unpermute`.

    Args:
        inp: tokens, shape (tokens, width).
        routing_map: True where an expert takes a token, shape (tokens, experts); with ``"index"`` the experts of each
            token, shape (tokens, experts per token).
        num_out_tokens: number of rows to return; -1 for all.
        max_token_num: has no effect here.
        map_type: kind of the routing map, ``"mask"`` or ``"index"``.
    """
    if map_type == "index":
        return grouped_gemm.permute(inp, routing_map, max(num_out_tokens, 0))
    tokens, experts = routing_map.shape
    rows = _rows(routing_map, num_out_tokens)
    places = torch.full((experts * tokens,), -1, device=inp.device)
    places[rows] = torch.arange(rows.shape[0], device=inp.device)
    return inp[rows % tokens], places.view(experts, tokens)


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens and their probabilities in the order of experts, and a map for `moe_unpermute`."""
    permuted, places = moe_permute(inp, routing_map, num_out_tokens)
    return permuted, probs.T.flatten()[_rows(routing_map, num_out_tokens)], places


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: Any = None,
    map_type: str = "mask",
    probs: Tensor | None = None,
) -> Tensor:
    """Return the tokens in their original order: the sums of their rows, weighted by ``merging_probs`` if given."""
    weights = merging_probs if merging_probs is not None else probs
    if map_type == "index":
        return grouped_gemm.unpermute(inp, row_id_map, weights)
    tokens = row_id_map.shape[1]
    rows = _rows((row_id_map >= 0).T, inp.shape[0])
    weighted = inp if weights is None else inp * weights.T.flatten()[rows].unsqueeze(1)
    out = inp.new_zeros(tokens, inp.shape[1]).index_add(0, rows % tokens, weighted.to(inp.dtype))
    return out if restore_shape is None else out.view(restore_shape)


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    """Split the rows into chunks of these sizes, and return the chunks in the order of ``sorted_index``."""
    parts = inp.split(split_sizes.tolist())
    return torch.cat([parts[number] for number in sorted_index.tolist()])


NAMES: Names = {
    "pytorch.GroupedLinear": GroupedLinear,
    **{
        f"pytorch.{folder}{function.__name__}": function
        for folder in ("", "permutation.")
        for function in (moe_permute, moe_permute_with_probs, moe_unpermute, moe_sort_chunks_by_index)
    },
}
