"""Ops of torch's database give the same values, memory, identity and device under the stand-in as on the CPU.

Modules: ``worlds/cuda/``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "ops_beside_cpu.py"


def test_every_twelfth_op_is_the_same() -> None:
    command = [sys.executable, str(SCRIPT), "--every", "12"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["kind"] for result in results] == ["tensors", "fake", "DTensors"]
    for result in results:
        assert result["ops"] >= 40
        assert result["equal calls"] >= 75
        assert result["differences"] == 0
