"""What tensors hold at the largest sum, by use."""

from __future__ import annotations

import torch

from dsexplore.capture.live_memory import LiveMemory


def test_what_was_made_behind_the_largest_sum_is_no_part_of_it_whatever_use_it_gets() -> None:
    memory = LiveMemory()
    large = torch.ones(100)
    memory.made([large], "activations")
    del large
    small = torch.ones(10)
    memory.made([small], "activations")
    memory.assign([small], "buffers")
    memory.end_segment()
    assert {use: size for use, size in memory.rows()[0].items() if size} == {"activations": 400}
    memory.release()
