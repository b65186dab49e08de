"""Stand-ins for the masks of ``xformers.ops.fmha.attn_bias``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Mask = TypeVar("Mask", bound="BlockDiagonalMask")


class AttentionBias:
    """The keys that queries see, and the bias added to their scores."""

    def seen_by(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the mask of visible keys, shape (1, 1, queries, keys), or a bias for the scores.

        Args:
            query: queries, shape (batch, queries, heads, width).
            key: keys, shape (batch, keys, heads, width).
        """
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
        """Return the mask of the keys that each query sees, shape (queries, keys)."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """A query sees keys up to its own position; the last query is at the last key."""

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._seen(queries, keys, device).tril(keys - queries)


class LowerTriangularMask(AttentionBias):
    """A query sees keys up to its own position; the first query is at the first key."""

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._seen(queries, keys, device).tril()

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        """Return this mask with a bias that is added to the scores."""
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """A causal mask with a bias that is added to the scores.

    Args:
        bias: the bias, shape (batch, heads, queries, keys).
    """

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias

    def seen_by(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the bias added to the scores."""
        return self.materialize((1, 1, query.shape[1], key.shape[1]), self._bias.dtype, self._bias.device)

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the bias added to scores of this shape, -inf for invisible keys; for ``torch.bool`` the mask."""
        mask = super().materialize(shape, dtype, device)
        return mask if dtype == torch.bool else mask + self._bias.to(device=device, dtype=dtype)


class _Lengths:
    """The offsets of packed sequences.

    Args:
        lengths: lengths of the sequences.
        device: device of the offsets.

    Attributes:
        seqstart: offsets, shape (sequences + 1,), int32.
        seqstart_py: the same as a list.
        max_seqlen: the longest length.
        min_seqlen: the shortest length.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str | None = None) -> None:
        self.seqstart_py = [0]
        for length in lengths:
            self.seqstart_py.append(self.seqstart_py[-1] + length)
        self.seqstart = torch.tensor(self.seqstart_py, dtype=torch.int32, device=device)
        self.max_seqlen = max(lengths, default=0)
        self.min_seqlen = min(lengths, default=0)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each sequence."""
        return zip(self.seqstart_py, self.seqstart_py[1:], strict=False)


class BlockDiagonalMask(AttentionBias):
    """For packed sequences: a query sees the keys of its own sequence.

    Args:
        q_seqinfo: offsets of the sequences of queries.
        k_seqinfo: offsets of the sequences of keys.
        _batch_sizes: how many sequences each tensor given to `from_tensor_list` has; None for masks made otherwise.
    """

    def __init__(
        self,
        q_seqinfo: _Lengths,
        k_seqinfo: _Lengths,
        _batch_sizes: Sequence[int] | None = None,
    ) -> None:
        self.q_seqinfo, self.k_seqinfo, self._batch_sizes = q_seqinfo, k_seqinfo, _batch_sizes

    @classmethod
    def from_seqlens(
        cls: type[Mask],
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> Mask:
        """Return the mask for sequences of these lengths; ``kv_seqlen=None`` for keys as long as the queries."""
        queries = _Lengths(q_seqlen, device)
        keys = queries if kv_seqlen is None else _Lengths(kv_seqlen, device)
        return cls(queries, keys)

    @classmethod
    def from_tensor_list(cls: type[Mask], tensors: Sequence[Tensor]) -> tuple[Mask, Tensor]:
        """Pack batches, shape (batch, length, ...), into (1, tokens, ...); return their mask and the packed tensor."""
        lengths = [tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors]
        return mask, torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors], 1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Split a packed tensor into the batches that it was packed from, shape (batch, length, ...)."""
        parts = [tensor[:, begin:end] for begin, end in self.q_seqinfo.intervals()]
        split: list[Tensor] = []
        for size in self._batch_sizes or [1] * len(parts):
            split.append(torch.cat(parts[:size]))
            del parts[:size]
        return split

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Return this mask with causal sequences; the first query of each is at its first key."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        """Return this mask with causal sequences; the last query of each is at its last key."""
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        """Return `make_causal`'s mask, of which a query sees the last ``window_size`` keys."""
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        """Return `make_causal_from_bottomright`'s mask, of which a query sees the last ``window_size`` keys."""
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        blocks = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        seen: Tensor = torch.block_diag(*(self._block(q[1] - q[0], k[1] - k[0], device) for q, k in blocks))
        return seen

    def _block(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return the mask of one sequence, shape (queries, keys)."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """For packed sequences: a query sees keys up to its own position; the first query is at the first key."""

    def _block(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._block(queries, keys, device).tril()


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """For packed sequences: a query sees keys up to its own position; the last query is at the last key.

    Raises:
        ValueError: a sequence has fewer keys than queries, as in xformers.
    """

    def __init__(
        self,
        q_seqinfo: _Lengths,
        k_seqinfo: _Lengths,
        _batch_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(q_seqinfo, k_seqinfo, _batch_sizes)
        for q, k in zip(q_seqinfo.intervals(), k_seqinfo.intervals(), strict=True):
            if k[1] - k[0] < q[1] - q[0]:
                raise ValueError(
                    f"a sequence has {q[1] - q[0]} queries but {k[1] - k[0]} keys: give at least as many keys, as "
                    "the first queries would see none"
                )

    def _block(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._block(queries, keys, device).tril(keys - queries)


class _Windowed(BlockDiagonalMask):
    """For packed sequences: a query sees only the last ``_window_size`` keys of those that its class lets it see.

    Raises:
        ValueError: the window has no keys, as in xformers.
    """

    def __init__(
        self,
        q_seqinfo: _Lengths,
        k_seqinfo: _Lengths,
        _batch_sizes: Sequence[int] | None = None,
        _window_size: int = 0,
    ) -> None:
        super().__init__(q_seqinfo, k_seqinfo, _batch_sizes)
        if _window_size <= 0:
            raise ValueError(f"_window_size={_window_size} has no keys: give 1 or more, as make_local_attention does")
        self._window_size = _window_size


class BlockDiagonalCausalLocalAttentionMask(_Windowed, BlockDiagonalCausalMask):
    """As `BlockDiagonalCausalMask`, of which a query sees only the last ``_window_size`` keys."""

    def _block(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._block(queries, keys, device).triu(1 - self._window_size)


class BlockDiagonalCausalLocalAttentionFromBottomRightMask(_Windowed, BlockDiagonalCausalFromBottomRightMask):
    """As `BlockDiagonalCausalFromBottomRightMask`, of which a query sees only the last ``_window_size`` keys."""

    def _block(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return super()._block(queries, keys, device).triu(keys - queries + 1 - self._window_size)


CLASSES = (
    AttentionBias,
    LowerTriangularMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMaskWithTensorBias,
    BlockDiagonalMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
    BlockDiagonalCausalLocalAttentionFromBottomRightMask,
)
