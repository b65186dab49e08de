"""Ops of torch's database do on a GPU that is not there what they do on the CPU: values, memory, identity, device.

Modules: ``worlds/cuda/``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts") / "ops_beside_cpu.py"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["tensors", "fake", "DTensors"])
def test_every_op_is_the_same(kind: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, kind], stdout=subprocess.PIPE, text=True, check=True)
    *differences, summary = done.stdout.splitlines()
    print(summary)
    assert not any(differences), "\n".join(differences)
    found = json.loads(summary)
    assert found["ops"] >= 600
    assert found["equal calls"] >= 900
