"""Files and modules of the user are told from those of packages, Python, torch and dsexplore."""

import builtins
import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from dsexplore._internal import tracebacks
from dsexplore._internal.user_code import RANK_CELL, is_user_file, is_user_module


@pytest.mark.parametrize(
    "file", ["/srv/me/train.py", "train.py", "/tmp/ipykernel_7/1.py", "<ipython-input-3-0123>", "<stdin>", RANK_CELL]
)
def test_files_of_the_user(file: str) -> None:
    assert is_user_file(file)


@pytest.mark.parametrize(
    "file",
    [
        *(str(module.__file__) for module in (json, np, torch, tracebacks)),
        "<frozen importlib._bootstrap>",
        "<string>",
        "<eval_with_key>.3",
        "/another/machine/lib/python3.9/site-packages/transformers/trainer.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "/opt/python/lib/python3.12/threading.py",
    ],
)
def test_files_of_others(file: str) -> None:
    assert not is_user_file(file)


def test_modules() -> None:
    assert is_user_module(sys.modules[__name__])
    assert is_user_module(ModuleType("made_by_the_program"))
    assert not any(map(is_user_module, (builtins, sys, json, np, torch, torch.nn, tracebacks)))


def test_to_ask_loads_no_torch() -> None:
    asked = "import sys, dsexplore._internal.user_code; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120)
