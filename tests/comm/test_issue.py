"""How a call is issued whose tensors are not contiguous."""

from __future__ import annotations

import torch

from dsexplore.comm.issue import stage
from dsexplore.comm.spellings import ALL_GATHER


def test_a_list_with_a_tensor_that_is_not_contiguous_is_sent_in_copies() -> None:
    strided, plain, given = torch.zeros(4, 2)[:, 0], torch.zeros(4), torch.ones(4)
    (staged, sent, *rest), copies = stage(ALL_GATHER, ([strided, plain], given, None, False))
    assert all(tensor.is_contiguous() for tensor in staged)
    assert staged[1] is plain
    assert sent is given
    assert rest == [None, False]
    assert [tensor is strided and copy is staged[0] for tensor, copy in copies] == [True]
    args = ([plain], given, None, False)
    assert stage(ALL_GATHER, args) == (args, [])
