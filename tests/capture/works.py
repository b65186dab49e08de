"""Works and events whose times a test decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dsexplore._internal.capture.timing.device_timing import CudaSpan


@dataclass
class Timed:
    start: int | None = None
    end: int | None = None
    failure: str = ""
    waited: int | None = None
    is_async: bool = True
    ends_at_return: bool = False


class FutureWork(dist.Work):
    """A work whose end a test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future


class SilentWork(dist.Work):
    """A work without a future, such as that of gloo's send and recv."""

    def get_future(self) -> Any:
        raise RuntimeError("it has none")


@dataclass
class Spanned(Timed):
    span: CudaSpan | None = None
