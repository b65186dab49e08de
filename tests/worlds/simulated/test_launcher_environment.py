"""A simulated rank has the environment variables of torchrun, which are restored afterwards."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
import torch.distributed.elastic.agent.server.local_elastic_agent as agent

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.simulated.launcher_environment import (
    check_ranks_per_node,
    environment,
    launcher_variables,
)


def names_that_torchrun_sets() -> set[str]:
    """Return the keys of ``worker_env`` in torch's source, and those that ``_set_local_rank_env`` adds."""
    tree = ast.parse(Path(agent.__file__).read_text())
    dictionaries = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "worker_env"
    )
    first = next(node for node in dictionaries if isinstance(node, ast.Dict))
    return {key.value for key in first.keys if isinstance(key, ast.Constant)} | {"LOCAL_RANK"}


def test_has_every_variable_of_torchrun_and_no_other() -> None:
    assert launcher_variables(0, 1, 1).keys() == names_that_torchrun_sets()


@pytest.mark.parametrize(
    ("rank", "size", "per_node", "expected"),
    [
        (0, 64, 8, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "8"}),
        (13, 64, 8, {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "8"}),
        (9, 12, 8, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}),
        (3, 8, 2, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "4"}),
    ],
)
def test_a_rank_has_its_place_on_its_node(rank: int, size: int, per_node: int, expected: dict[str, str]) -> None:
    variables = launcher_variables(rank, size, per_node)
    assert expected.items() <= variables.items()
    assert (variables["RANK"], variables["WORLD_SIZE"]) == (str(rank), str(size))


def test_nodes_have_eight_ranks_unless_said() -> None:
    assert [check_ranks_per_node(None, size) for size in (1, 4, 8, 12, 64)] == [1, 4, 8, 8, 8]
    assert check_ranks_per_node(4, 64) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [(5, "a world of 8 ranks does not divide into nodes of 5 ranks"), (0, "0 ranks per node is not a number of ranks")],
)
def test_nodes_that_do_not_fit(given: int, message: str) -> None:
    with pytest.raises(UsageError, match=message), simulate(8, ranks_per_node=given):
        pass


def test_every_simulated_world_has_it_while_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "mine")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with simulate(16, rank=11):
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == ("11", "3", "16")
        os.environ["LOCAL_RANK"] = "changed by the program"
    assert os.environ["RANK"] == "mine"
    assert "LOCAL_RANK" not in os.environ
    assert "WORLD_SIZE" not in os.environ


def test_is_taken_back_when_the_block_fails() -> None:
    before = dict(os.environ)
    with pytest.raises(KeyboardInterrupt), environment({"NEW": "1", "PATH": "elsewhere"}):
        raise KeyboardInterrupt
    assert dict(os.environ) == before
