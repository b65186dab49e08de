"""Two processes that take turns on one core, so that what each of them runs meets the same neighbors.

The speed of a busy machine changes by a tenth from one second to the next, and a program's by a few percent from one
process to another, as its memory lies elsewhere. So a difference of a few percent is seen where two processes run the
same steps in two ways, hand the core to each other every few milliseconds, and exchange their ways with every step.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

import torch
from torch import nn


class Lockstep:
    """One of the two processes, as it sees the other; inside a block, only one of them runs at a time.

    Args:
        option: what `run_both` has appended to the command.

    Attributes:
        number: 0 for the process that runs first, 1 for the other.
    """

    def __init__(self, option: str) -> None:
        self.number, self._reading, self._writing = map(int, option.split(","))
        self._began = self._seconds = 0.0

    def __enter__(self) -> Self:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        if self.number == 1:
            self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # the other has ended
            os.write(self._writing, b".")

    def hand_over(self, *_: Any) -> None:
        """Let the other process run until it hands the core back; of any arguments, to be a hook."""
        self._seconds += time.process_time() - self._began
        os.write(self._writing, b".")
        self._wait()
        self._began = time.process_time()

    def hand_over_at(self, blocks: Iterable[nn.Module]) -> None:
        """Hand the core over where the forward of each block ends, and where its backward begins, from now on."""

        def twice(_block: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self.hand_over()
            output.register_hook(self.hand_over)

        for block in blocks:
            block.register_forward_hook(twice)

    def _wait(self) -> None:
        if not os.read(self._reading, 1):
            raise RuntimeError("the other process of this benchmark has ended; its error is printed beside this one")

    def timed(self, step: Callable[[], None]) -> float:
        """CPU seconds of a step, in which this process may hand the core over, and does so at its end."""
        self._seconds, self._began = 0.0, time.process_time()
        step()
        self.hand_over()
        return self._seconds


def run_both(command: Sequence[str], timeout: float) -> tuple[str, str]:
    """What two processes of one command print, which gets one more argument, for `Lockstep`.

    Args:
        command: without that argument.
        timeout: seconds.

    Raises:
        subprocess.CalledProcessError: one has failed.
        subprocess.TimeoutExpired: they have not ended in time, and were killed.
    """
    with ExitStack() as exits:
        pipes = [os.pipe(), os.pipe()]
        ends = [(pipes[number][0], pipes[1 - number][1]) for number in range(2)]
        processes = []
        try:
            for number, (reading, writing) in enumerate(ends):
                process = subprocess.Popen(
                    [*command, f"{number},{reading},{writing}"],
                    pass_fds=(reading, writing),
                    stdout=subprocess.PIPE,
                    text=True,
                )
                exits.enter_context(process)
                exits.callback(process.kill)
                processes.append(process)
        finally:
            for descriptor in (*pipes[0], *pipes[1]):
                os.close(descriptor)
        deadline = time.monotonic() + timeout
        first, second = (each.communicate(timeout=deadline - time.monotonic())[0] for each in processes)
        for each in processes:
            if each.returncode:
                raise subprocess.CalledProcessError(each.returncode, each.args)
        return first, second


def ratios_of_turns(outputs: Sequence[str], runs: int = 1) -> list[float]:
    """What the second way takes, over the first, of each turn, in which both processes have gone both ways.

    Args:
        outputs: what each of the two has printed; the last line is the JSON of ``[went the second way, CPU seconds]``
            of each of its runs, where the other process went the other way.
        runs: how many follow each other the same way; their median counts.

    Returns:
        the geometric mean of the ratios before and after the processes exchanged their ways.
    """
    paired = zip(*(json.loads(output.splitlines()[-1]) for output in outputs), strict=True)
    ratios = [seconds[True] / seconds[False] for seconds in map(dict, paired)]
    medians = [statistics.median(ratios[begin : begin + runs]) for begin in range(0, len(ratios), runs)]
    return [math.sqrt(before * after) for before, after in zip(medians[::2], medians[1::2], strict=True)]
