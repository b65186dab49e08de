"""Stand-ins for ``flash_attn.bert_padding``: batches with padding, and packed ones without."""

from __future__ import annotations

from torch import Tensor, int32
from torch.nn.functional import pad

from dsexplore._internal.worlds.extensions.registry import Names


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002 # as FlashAttention's
    """Return the rows of these indices."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return rows of zeros, but for those of these indices, which are the given values."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def index_first_axis_residual(
    input: Tensor,  # noqa: A002 # likewise
    indices: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the rows of these indices, and all rows without gradient."""
    return input[indices], input.detach()


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack a batch: its tokens, their indices, where sequences begin, the longest length, and the lengths."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=int32)
    indices = kept.flatten().nonzero().flatten()
    begins = pad(lengths.cumsum(0, dtype=int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=int32)
    return hidden_states.flatten(0, 1)[indices], indices, begins, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return a packed batch as ``(batch, length, ...)``, with zeros where there is no token."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.reshape(batch, seqlen, *padded.shape[1:])


NAMES: Names = {
    f"bert_padding.{function.__name__}": function
    for function in (index_first_axis, index_put_first_axis, index_first_axis_residual, unpad_input, pad_input)
}
