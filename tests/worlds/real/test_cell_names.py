"""A cell is sent with the notebook's names that it reads, and again when their values have changed."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.real.cell_names import SentNames, UsedNames, pack_names, used_names


def names_of(source: str) -> UsedNames:
    return used_names([compile(source, "cell", "exec")])


def test_names_are_found_in_functions_and_classes_and_attributes_are_none() -> None:
    used = names_of(
        "import torch as t\ny = x.weight\ndel z\n"
        "class A(Base):\n    inside = factor\n    def f(self, own):\n        global made\n        made = own + outer\n"
    )
    assert used.read >= {"x", "z", "Base", "factor", "outer"}
    assert not used.read & {"weight", "own", "self", "y"}
    assert used.assigned == {"t", "y", "z", "A", "made"}


def test_what_names_share_they_share_on_the_ranks() -> None:
    shared = [1]
    read = pickle.loads(pack_names({"a": [shared], "b": [shared]}))
    assert read["a"][0] is read["b"][0]
    assert pack_names({}) == b""


def test_what_cannot_be_sent_is_named_with_the_reason() -> None:
    with pytest.raises(
        UsageError, match=r"held \(lock: cannot pickle '_thread.lock' object\).*Make them inside"
    ) as caught:
        pack_names({"fine": 1, "held": threading.Lock()})
    assert "fine" not in str(caught.value)


def test_a_name_that_the_cell_makes_need_not_be_sent() -> None:
    assert SentNames().choose(names_of("f = open(p)\nf.read()"), {"f": threading.Lock(), "p": 1}) == {"p": 1}
    assert SentNames().choose(names_of("x += 1"), {"x": 2, "other": 3}) == {"x": 2}


def test_the_ranks_own_names_stay_theirs_until_the_notebook_gives_them_another_value() -> None:
    names, notebook = SentNames(), {"lr": 0.1, "model": "simulated"}
    first = names_of("model = build(lr)")
    assert names.choose(first, notebook) == {"lr": 0.1}
    names.note_run(first, notebook)
    second = names_of("train(model, lr)")
    assert names.choose(second, notebook) == {"lr": 0.1}
    notebook["model"] = "another"
    assert names.choose(second, notebook) == {"lr": 0.1, "model": "another"}


def test_only_what_has_changed_is_sent_again() -> None:
    names = SentNames()
    config: dict[str, Any] = {"lr": 0.1}
    assert names.changed({"config": config, "n": 3}) == {"config": config, "n": 3}
    assert names.changed({"config": config, "n": 3}) == {}
    config["lr"] = 0.2
    assert names.changed({"config": config, "n": 3}) == {"config": config}
