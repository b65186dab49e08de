"""`Case`: a program of real gloo ranks that hangs, or does not, and what is right to say of it.

A case is the body of a recorded block, in which ``rank`` and ``world_size`` are defined. The line where a culprit
stands ends with ``# here``.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFACE = """\
import json, os, random, signal, sys, time
import torch
import torch.distributed as dist
import dsexplore
torch.set_num_threads(1)
def ones(count=8, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)
def step(count=8):
    dist.all_reduce(ones(count))
"""


@dataclass(frozen=True)
class Case:
    """A program that hangs, or does not, and what is right to say of it."""

    name: str
    body: str
    ranks: tuple[int, ...]
    """The culprits; of a symmetric case all ranks among which the cause is. Empty if nothing hangs."""
    reasons: tuple[str, ...]
    """The words that are right."""
    world_size: int = 3
    has_group: bool = True
    """False if the program makes its process group itself, before the block."""
    before: str = ""
    """Lines before the block."""


def case(name: str, ranks: tuple[int, ...], reasons: str, body: str, **options: object) -> Case:
    """Return a case; its reasons are joined by ``|``."""
    return Case(name, body.strip("\n"), ranks, tuple(reasons.split("|")), **options)  # type: ignore[arg-type]
