"""Ranks that exchange tensors by invented values send each expert as many tokens, and agree on shapes.

Modules: ``worlds/fake/invented_values.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import dsexplore

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")


TOKENS, EXPERTS, TOP = 64, 4, 2
EACH = TOKENS * TOP // EXPERTS


def routed() -> torch.Tensor:
    return torch.topk(torch.randn(TOKENS, EXPERTS).softmax(-1), TOP).indices


@pytest.mark.usefixtures("fake")
class TestRouting:
    """Each form of routing in mixtures of experts sends each expert as many tokens."""

    def test_by_where(self) -> None:
        assert [torch.where(routed() == expert)[0].shape[0] for expert in range(EXPERTS)] == [EACH] * EXPERTS

    def test_by_a_mask(self) -> None:
        mask = (routed() == 3).any(-1)
        assert mask.any()
        x = torch.randn(TOKENS, 8)
        assert x[routed().flatten()[:TOKENS] == 3].shape == (TOKENS // EXPERTS, 8)

    def test_by_one_hot_as_transformers_does(self) -> None:
        mask = F.one_hot(routed(), num_classes=EXPERTS).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        assert len(hit) == EXPERTS
        assert [torch.where(mask[each].squeeze(0))[1].shape[0] for each in hit] == [EACH] * EXPERTS

    def test_by_counts(self) -> None:
        assert torch.bincount(routed().flatten(), minlength=EXPERTS).tolist() == [EACH] * EXPERTS
        splits = torch.histc(routed().float(), bins=EXPERTS, min=0, max=EXPERTS).int().tolist()
        received = torch.empty(sum(splits), 8)
        dist.all_to_all_single(received, torch.randn(sum(splits), 8), splits, splits)
        assert sum(torch.bincount(routed().flatten(), minlength=6).tolist()) == TOKENS * TOP  # does not divide
        counts = torch.bincount(routed().flatten(), minlength=EXPERTS)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        assert others.tolist() == counts.tolist()  # the other ranks route as many

    def test_by_repeats_and_unique(self) -> None:
        assert torch.repeat_interleave(torch.arange(3), torch.tensor([1, 2, 3])).shape == (6,)
        values, counts = torch.unique(routed(), return_counts=True)
        assert (values.shape, sum(counts.tolist())) == ((EXPERTS,), TOKENS * TOP)
        assert torch.masked_select(torch.randn(8), torch.randn(8) > 0).shape == (4,)

    def test_by_the_first_of_the_last_dim_or_of_another(self) -> None:
        scores = torch.randn(6, 4)
        for places, count in ((scores.topk(2)[1], 4), (scores.topk(2, 0)[1], 6), (scores.argmax(0), 6)):
            assert places.float().mean().item() == (count - 1) / 2
        assert torch.randn(6).topk(2)[1].float().mean().item() == 2.5

    def test_by_random_numbers(self) -> None:
        assert torch.randint(8, (5,)).float().mean().item() == 3.5
        assert torch.randint(2, 8, (5,)).float().mean().item() == 4.5
        assert torch.bincount(torch.randint(8, (TOKENS,))).tolist() == [TOKENS // 8] * 8

    def test_by_what_is_not_zero(self) -> None:
        yes, no = torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.bool)
        assert [len(each.nonzero()) for each in (yes, no, torch.randn(8))] == [8, 0, 4]

    def test_by_scattered_ones(self) -> None:
        hit = torch.zeros(8).scatter(0, torch.randint(8, (2,)), 1.0)
        assert hit.sum().item() == 2
        again = hit.scatter(0, torch.randint(8, (4,)), 0.0)
        assert again.sum().item() == 1

    def test_by_joining(self) -> None:
        one, two = torch.tensor([3, 5]), torch.tensor([7])
        assert [torch.cat(parts).tolist() for parts in ([one], [one, two])] == [[3, 5], [3, 5, 7]]

    def test_by_a_grouped_product_in_fp32(self) -> None:
        weights = torch.randn(EXPERTS, 8, 16, requires_grad=True)
        ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
        made = torch._grouped_mm(torch.randn(TOKENS, 8), weights, offs=ends)
        assert (made.shape, made.dtype) == ((TOKENS, 16), torch.float32)
        made.sum().backward()
        assert weights.grad is not None


GATHERS = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
logits = torch.randn(4, 32, device="cuda")
shape = torch.tensor(logits.shape, device="cuda")[None]
flat = torch.empty(2 * shape.numel(), dtype=shape.dtype, device="cuda")
dist.all_gather_into_tensor(flat, shape)
listed = [torch.empty_like(shape) for _ in range(2)]
dist.all_gather(listed, shape)
assert flat.view(-1, 2).cpu().tolist() == torch.cat(listed).tolist() == [[4, 32]] * 2
assert max(size[1] for size in flat.view(-1, 2).cpu()) == 32
generator = torch.Generator()
state = generator.get_state().to("cuda")
dist.broadcast(state, 0)
generator.set_state(state.cpu())
torch.randperm(8, generator=generator)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_shapes_and_random_states_that_ranks_agree_on(rank: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GATHERS)
    trace = dsexplore.run(path, world_size=2, rank=rank, fake=True)
    assert trace.events["op"].to_list() == ["all_gather", "all_gather", "broadcast"]
