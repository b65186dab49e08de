"""The handles of a batch of sends and receives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsexplore._internal.comm import p2p
from dsexplore._internal.comm import spellings as s
from dsexplore._internal.comm.logs.log_records import LoggedCall


class Done:
    """A work that has completed."""

    def wait(self) -> bool:
        return True


@pytest.mark.parametrize("events", [None, 0, 1, 2])
def test_a_handle_copies_back_its_own_tensor_whatever_was_logged(events: int | None) -> None:
    """The second receive is not over when the first is waited for."""
    call = None
    if events is not None:
        call = LoggedCall(s.IRECV, "batch_isend_irecv", is_wanted=True, ends_with_call=False)
        issued: Any = object()
        call.issued = [issued] * events
    outputs, received = torch.zeros(2, 2), torch.ones(2, 2)
    copies = [[(outputs[0], received[0])], [(outputs[1], received[1])]]
    handles: list[Any] = list(p2p._handles([Done(), Done()], None, call, copies))
    for handle in handles:
        handle._call = None  # what is logged of it is another test
    handles[0].wait()
    assert outputs.tolist() == [[1, 1], [0, 0]]
    handles[1].wait()
    assert outputs.tolist() == [[1, 1], [1, 1]]


def test_the_one_handle_of_a_whole_batch_copies_all_back() -> None:
    outputs = torch.zeros(2, 2)
    copies = [[(output, torch.ones(2))] for output in outputs]
    (handle,) = p2p._handles([Done()], None, None, copies)
    handle.wait()
    assert outputs.tolist() == [[1, 1], [1, 1]]
