"""Rules of reasons on tensors: each with what it explains, and with what it must leave to others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsexplore.numerics.compared_values import Compared
from dsexplore.numerics.numeric_records import Phase, RunRecord
from dsexplore.numerics.reasons.all_reasons import explain
from dsexplore.numerics.reasons.match import Match
from tests.numerics.compared import comparison_of, entry_of, values

WHOLE = values(4, 8, 6)
PARTIAL = values(4, 8, 6, seed=1)


def explained(whole: Tensor, parts: list[Tensor], mesh: str, phase: Phase = "forward") -> Match | None:
    entry = entry_of(whole, parts, mesh, phase)
    return explain(entry, comparison_of(mesh, entry))


@pytest.mark.parametrize("factor", [2.0, 4.0, 3.0, 0.5, 0.25])
@pytest.mark.parametrize("phase", ["forward", "gradient"])
def test_a_whole_factor_is_told_with_the_axes_of_that_size(factor: float, phase: Phase) -> None:
    match = explained(WHOLE, [WHOLE * factor] * 4, "dp=2,tp=2", phase)
    assert match is not None
    assert match.reason == "factor"
    axes = {2.0: "dp", 0.5: "dp", 4.0: "dp × tp", 0.25: "dp × tp"}.get(factor)
    assert (f"ranks of {axes}" in match.looks_like) if axes else "ranks" not in match.looks_like


def test_any_other_factor_is_none() -> None:
    assert explained(WHOLE, [WHOLE * 1.3] * 2, "dp=2") is None


@pytest.mark.parametrize("phase", ["forward", "gradient", "optimizer"])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_missing_reduction_is_told_with_its_axis(kind: str, phase: Phase) -> None:
    one, other = PARTIAL, WHOLE - PARTIAL
    scale = 1 if kind == "sum" else 2
    match = explained(WHOLE, [one * scale, other * scale] * 2, "dp=2,tp=2", phase)
    assert match is not None
    assert match.reason == "missing reduction"
    assert f"the {kind} over tp is right" in match.looks_like


def test_parts_of_a_cut_batch_are_reduced_over_the_other_axis() -> None:
    parts = [part for rows in WHOLE.chunk(2) for part in (rows * 3, rows * -2)]
    match = explained(WHOLE, parts, "dp=2,tp=2")
    assert match is not None
    assert "the sum over tp is right" in match.looks_like


def test_columns_in_another_order_are_a_permutation() -> None:
    order = torch.tensor([0, 3, 1, 4, 2, 5])
    match = explained(WHOLE, [WHOLE[..., order]] * 2, "tp=2")
    assert match is not None
    assert match.reason == "permutation"
    assert "columns" in match.looks_like


def test_shards_that_are_dealt_in_turn_are_a_permutation() -> None:
    match = explained(WHOLE, [WHOLE[..., 0::2], WHOLE[..., 1::2]], "tp=2")
    assert match is not None
    assert match.reason == "permutation"


@pytest.mark.parametrize(
    "parts",
    [
        [WHOLE[:, :4], WHOLE[:, :4]],
        [WHOLE[:, 4:], WHOLE[:, :4]],
        [WHOLE.roll(1, 1)[:, :4], WHOLE.roll(1, 1)[:, 4:]],
    ],
)
def test_what_belongs_to_other_positions_is_a_shift(parts: list[Tensor]) -> None:
    match = explained(WHOLE, parts, "cp=2")
    assert match is not None
    assert match.reason == "shift"


def test_some_right_positions_look_like_a_mask() -> None:
    wrong = WHOLE.clone()
    wrong[:, :-1] += PARTIAL[:, :-1]
    match = explained(WHOLE, [wrong] * 2, "tp=2")
    assert match is not None
    assert match.reason == "mask"
    assert "positions 7" in match.looks_like


def test_other_zeros_are_another_draw_of_dropout() -> None:
    def dropped(seed: int) -> Tensor:
        return WHOLE * (values(*WHOLE.shape, seed=seed) > -0.5) / 0.7

    match = explained(dropped(3), [dropped(4), dropped(3)], "tp=2")
    assert match is not None
    assert match.reason == "dropout"


def test_factors_of_each_rank_are_unequal_batches() -> None:
    parts = [WHOLE[:1] * 4.0, WHOLE[1:] * 4 / 3]
    match = explained(WHOLE, parts, "dp=2", "backward")
    assert match is not None
    assert match.reason == "unequal batches"
    assert "rank 0 8, rank 1 24" in match.looks_like


def test_factors_that_are_not_those_of_numbers_of_rows_are_no_unequal_batches() -> None:
    assert explained(WHOLE, [WHOLE[:2] * 8, WHOLE[2:] * 16], "dp=2", "backward") is None


def test_what_one_rank_has_whole_and_others_not_at_all_is_no_missing_reduction() -> None:
    assert explained(WHOLE, [WHOLE, torch.zeros_like(WHOLE)], "dp=2", "gradient") is None


def test_an_update_that_some_ranks_lack_leaves_their_parameters_stale() -> None:
    match = explained(WHOLE, [WHOLE, torch.zeros_like(WHOLE)], "dp=2", "optimizer")
    assert match is not None
    assert (match.reason, "rank 1, and does on rank 0" in match.looks_like) == ("stale parameters", True)
    assert explained(WHOLE, [torch.zeros_like(WHOLE)] * 2, "dp=2", "optimizer") is None


def at_step(step: int, whole: Tensor, parts: list[Tensor]) -> Compared:
    entry = entry_of(whole, parts, "dp=2", "gradient")
    return replace(entry, record=replace(entry.record, step=step))


def test_the_sum_of_steps_is_of_stale_gradients() -> None:
    before = at_step(0, WHOLE, [WHOLE] * 2)
    for value, reason in ((WHOLE + PARTIAL, "stale gradients"), (WHOLE + 2 * PARTIAL, None)):
        entry = at_step(1, PARTIAL, [value] * 2)
        match = explain(entry, comparison_of("dp=2", before, entry))
        assert (match.reason if match is not None else None) == reason


@pytest.mark.parametrize(("times", "reason"), [(65536, "factor"), (1.0 / 65536, None), (65535, None)])
def test_a_large_power_of_two_is_the_scale_of_a_loss(times: float, reason: str | None) -> None:
    match = explained(WHOLE, [WHOLE * times] * 2, "dp=2", "gradient")
    assert (match.reason if match is not None else None) == reason
    assert match is None or "unscale" in match.change


@pytest.mark.parametrize(("more", "reason"), [(1, "factor"), (0.5, None), (4, None)])
def test_a_bias_that_each_rank_adds_is_a_factor(more: float, reason: str | None) -> None:
    bias = values(6, seed=5)
    entry = entry_of(WHOLE, [WHOLE + more * bias] * 2, "tp=2")
    comparison = comparison_of("tp=2", entry)
    comparison.ranks.extend(RunRecord(rank=rank, start={"bias": bias}) for rank in range(2))
    match = explain(entry, comparison)
    assert (match.reason if match is not None else None) == reason


@pytest.mark.parametrize(("module", "reason"), [("layers.0.self_attn", "mask"), ("layers.0.norm", None)])
def test_attention_that_is_right_in_some_sequences_looks_like_a_mask(module: str, reason: str | None) -> None:
    wrong = WHOLE.clone()
    wrong[1:3] += PARTIAL[1:3]
    entry = entry_of(WHOLE, [wrong] * 2, "tp=2")
    entry = replace(entry, record=replace(entry.record, module=module))
    match = explain(entry, comparison_of("tp=2", entry))
    assert (match.reason if match is not None else None) == reason


def test_gradients_that_each_rank_clips_before_the_mean_are_a_local_norm() -> None:
    clipped = [part / part.norm() for part in (WHOLE, PARTIAL)]
    mean, whole = (clipped[0] + clipped[1]) / 2, (WHOLE + PARTIAL) / (WHOLE + PARTIAL).norm()
    backward = entry_of(WHOLE, [WHOLE] * 2, "dp=2", "backward")
    for value, reason in ((mean, "local norm"), (3 * mean, None)):
        entry = entry_of(whole, [value] * 2, "dp=2", "gradient")
        match = explain(entry, comparison_of("dp=2", backward, entry))
        assert (match.reason if match is not None else None) == reason


def test_gradients_at_rows_without_one_are_padding() -> None:
    whole = WHOLE.clone()
    whole[:, 6:] = 0
    match = explained(whole, [WHOLE[:2] * 2, WHOLE[2:] * 2], "dp=2", "backward")
    assert match is not None
    assert match.reason == "padding"
    assert match.looks_like.startswith("8 rows")


def test_factors_of_clipped_gradients_are_a_local_norm() -> None:
    clipped = WHOLE / WHOLE.norm()
    parts = [part / part.norm() for part in clipped.chunk(2)]
    match = explained(clipped, parts, "dp=2", "gradient")
    assert match is not None
    assert match.reason == "local norm"


@pytest.mark.parametrize("phase", ["forward", "backward", "gradient", "optimizer"])
def test_noise_has_no_reason(phase: Phase) -> None:
    assert explained(WHOLE, [PARTIAL] * 2, "dp=2", phase) is None
    assert explained(WHOLE, [WHOLE, PARTIAL], "dp=2", phase) is None
