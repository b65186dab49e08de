"""Stand-ins for the masks of ``xformers.ops.fmha.attn_bias``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from dsexplore._internal.worlds.extensions.plain_attention import Form, packed_mask

Mask = TypeVar("Mask", bound="BlockDiagonalMask")


class AttentionBias:
    """The keys that queries see, and the bias added to their scores."""

    form = Form()

    def seen_by(self, query: Tensor, key: Tensor) -> Tensor:
        """Return which keys queries ``(batch, queries, heads, width)`` see, as a mask ``(1, 1, queries, keys)``."""
        return self.materialize((1, 1, query.shape[1], key.shape[1]), device=query.device, dtype=torch.bool)

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the bias added to scores of this shape; for ``dtype=torch.bool`` the mask of visible keys."""
        seen = self._seen(shape[-2], shape[-1], torch.device(device)).expand(*shape)
        if dtype == torch.bool:
            return seen
        return torch.zeros(*shape, dtype=dtype, device=device).masked_fill(~seen, float("-inf"))

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        ends = (torch.tensor([0, length], device=device) for length in (queries, keys))
        of_queries, of_keys = ends
        return packed_mask(of_queries, queries, of_keys, keys, self.form)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """A query sees keys up to its own place, where the last query is at the last key."""

    form = Form(causal=True)


class LowerTriangularMask(AttentionBias):
    """A query sees keys up to its own place, counted from the first key."""

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        """Return this mask with a bias for the scores."""
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """A causal mask with a bias for the scores.

    Args:
        bias: ``(batch, heads, queries, keys)``.
    """

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias

    def seen_by(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the bias added to the scores."""
        seen = super().seen_by(query, key)
        return self._bias.masked_fill(~seen, float("-inf"))


class _Lengths:
    """Where the sequences of a packed batch begin and end.

    Attributes:
        seqstart: ``(sequences + 1,)``.
        seqstart_py: the same as numbers.
        max_seqlen: the longest length.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str | None = None) -> None:
        self.seqstart_py = [0]
        for length in lengths:
            self.seqstart_py.append(self.seqstart_py[-1] + length)
        self.seqstart = torch.tensor(self.seqstart_py, dtype=torch.int32, device=device)
        self.max_seqlen = max(lengths, default=0)
        self.min_seqlen = min(lengths, default=0)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yield where each sequence begins and ends."""
        return zip(self.seqstart_py, self.seqstart_py[1:], strict=False)


class BlockDiagonalMask(AttentionBias):
    """A query sees the keys of its own sequence; several sequences are one, packed."""

    def __init__(
        self,
        q_seqinfo: _Lengths,
        k_seqinfo: _Lengths,
        _batch_sizes: Sequence[int] | None = None,
        form: Form | None = None,
    ) -> None:
        self.q_seqinfo, self.k_seqinfo, self._batch_sizes = q_seqinfo, k_seqinfo, _batch_sizes
        self.form = form or type(self).form

    @classmethod
    def from_seqlens(
        cls: type[Mask],
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> Mask:
        """Return the mask of sequences of these lengths; ``kv_seqlen`` is that of queries unless given."""
        queries = _Lengths(q_seqlen, device)
        keys = queries if kv_seqlen is None else _Lengths(kv_seqlen, device)
        return cls(queries, keys)

    @classmethod
    def from_tensor_list(cls: type[Mask], tensors: Sequence[Tensor]) -> tuple[Mask, Tensor]:
        """Return the mask of batches ``(batch, length, ...)``, and these packed, ``(1, tokens, ...)``."""
        lengths = [tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors]
        return mask, torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors], 1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Return the sequences of a packed batch, ``(batch, length, ...)`` each, as they were packed."""
        parts = [tensor[:, begin:end] for begin, end in self.q_seqinfo.intervals()]
        split: list[Tensor] = []
        for size in self._batch_sizes or [1] * len(parts):
            split.append(torch.cat(parts[:size]))
            del parts[:size]
        return split

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Return the mask in which queries see keys up to their own place, counted from the first key."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, Form(causal=True))

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        """Return the causal mask in which queries see so many keys."""
        form = Form(causal=True, window=(window_size - 1, 0))
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, form)

    make_causal_from_bottomright = make_causal

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        ends = (self.q_seqinfo.seqstart.to(device), self.k_seqinfo.seqstart.to(device))
        return packed_mask(ends[0], queries, ends[1], keys, self.form)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """A query sees the keys of its own sequence, up to its own place."""

    form = Form(causal=True)


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalCausalMask):
    """Likewise, where the last query is at the last key."""


class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """Likewise, of the last few keys."""


CLASSES = (
    AttentionBias,
    LowerTriangularMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMaskWithTensorBias,
    BlockDiagonalMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
)
