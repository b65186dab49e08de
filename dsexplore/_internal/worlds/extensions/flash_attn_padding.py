"""Stand-ins for ``flash_attn.bert_padding``: pack the sequences of a padded batch, and pad packed ones."""

from __future__ import annotations

from torch import Tensor, int32
from torch.nn.functional import pad

from dsexplore._internal.worlds.extensions.registry import Names


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002 # as FlashAttention's
    """Return the rows with these indices."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return rows of zeros, with the values at these indices."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def index_first_axis_residual(
    input: Tensor,  # noqa: A002 # as FlashAttention's
    indices: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the rows with these indices, and all rows, detached."""
    return input[indices], input.detach()


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack a batch.

    Args:
        hidden_states: batch with padding, shape (batch, length, ...).
        attention_mask: nonzero for tokens, shape (batch, length).
        unused_mask: nonzero for further positions to keep, shape (batch, length).

    Returns:
        the packed tokens, their indices in the flat batch, the offsets of the sequences, the longest length, and the
        number of tokens of each sequence.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=int32)
    indices = kept.flatten().nonzero().flatten()
    offsets = pad(lengths.cumsum(0, dtype=int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=int32)
    return hidden_states.flatten(0, 1)[indices], indices, offsets, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return packed tokens as a batch with zeros as padding, shape (batch, seqlen, ...)."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.reshape(batch, seqlen, *padded.shape[1:])


NAMES: Names = {
    f"bert_padding.{function.__name__}": function
    for function in (index_first_axis, index_put_first_axis, index_first_axis_residual, unpad_input, pad_input)
}
