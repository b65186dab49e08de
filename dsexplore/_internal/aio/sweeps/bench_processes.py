"""Measure settings in several processes at once, as the ranks of a job use a disk.

Process 0 is the caller's. Each other process runs `serve`: it creates its own file, or opens the existing one, and then
reads one task per line from its standard input. Tasks and answers are JSON. All processes start a slice at the same
time of the system's monotonic clock. A process exits when its input is closed, so that none outlives the sweep.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measure import Bench, Slice, Task, sample_of
from dsexplore._internal.aio.sweeps.measurements import Operation, Sample
from dsexplore._internal.aio.sweeps.sweep_setup import Plan, Setup
from dsexplore._internal.errors import UsageError

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from dsexplore._internal.aio.sweeps.bench_processes import serve; serve()"
)
_START_DELAY = 0.005
"""Seconds from when all processes are ready until they start together."""
_EXIT_SECONDS = 10.0
"""Seconds that a process has to exit by itself."""


class Worker:
    """A process that measures at the same time as this one.

    Args:
        number: number of the process, from 1, for errors.
        arguments: what `serve` needs to create its `Bench`.
    """

    def __init__(self, number: int, arguments: dict[str, Any]) -> None:
        program = _PROGRAM.format(path=sys.path)
        self.number, self.bytes_written = number, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.send(arguments)

    def send(self, message: Any) -> None:
        """Write one message to the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(message)}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> Any:
        """Wait for the next answer of the process, and return its value.

        Raises:
            OSError: the process raised one, or has ended.
            UsageError: the process raised one.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "usage" in answer:
            raise UsageError(answer["usage"])
        if "errno" in answer:
            raise OSError(answer["errno"], f"process {self.number}: {answer['text']}", answer["path"])
        self.bytes_written = answer["bytes_written"]
        return answer["value"]

    def _ended(self) -> OSError:
        """Return the error of a process that has ended, with the end of its error output."""
        assert self._process.stderr is not None
        last = self._process.stderr.read().strip()[-500:]
        return OSError(5, f"process {self.number} of the sweep ended with {self._process.wait()}: {last}")

    def close(self) -> None:
        """End the process; it is killed if it does not exit by itself."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


class BenchTogether:
    """A `Bench` in this process and one in each worker, measured together."""

    def __init__(self, bench: Bench, workers: Sequence[Worker]) -> None:
        self.buffer, self.size, self.fits = bench.buffer, bench.size, bench.fits
        self._bench, self._workers = bench, workers

    @property
    def bytes_written(self) -> int:
        """Bytes that all processes have written, including the files of the workers."""
        return self._bench.bytes_written + sum(worker.bytes_written for worker in self._workers)

    def measure(
        self, config: AioConfig, operation: Operation, seconds: float, *, transfer: int, whole: bool, most: float
    ) -> Sample:
        """Measure as `Bench.measure` does, in all processes at once; bytes and processor time are sums."""
        share = most / (1 + len(self._workers))
        task = Task(config, operation, seconds, transfer=self._bench.whole_pages(transfer), whole=whole, most=share)
        for worker in self._workers:
            worker.send(asdict(task))

        def start_together() -> None:
            for worker in self._workers:
                worker.receive()
            begin = time.perf_counter() + _START_DELAY
            for worker in self._workers:
                worker.send(begin)
            _sleep_until(begin)

        slices = [self._bench.run(task, start_together)]
        slices += [Slice(**worker.receive()) for worker in self._workers]
        return sample_of(slices, task)


def start_workers(stack: ExitStack, paths: Sequence[str], plan: Plan, engine: str, direct: bool) -> list[Worker]:
    """Start a process for each path; return when each has created its file.

    Args:
        stack: closes the processes.
        paths: directory or file of each process.
        plan: arguments of the sweep.
        engine: name of the engine.
        direct: use direct I/O.

    Raises:
        OSError: a process could not create its file, or has ended.
    """
    arguments = {
        "size": plan.size,
        "seconds": plan.seconds,
        "read_share": plan.read_share,
        "mode": plan.mode,
        "write_mode": plan.write_mode,
        "tensor": list(plan.transfers),
        "memory": plan.memory,
        "engine": engine,
        "direct": direct,
    }
    workers = []
    for number, path in enumerate(paths, 1):
        workers.append(Worker(number, {**arguments, "path": str(Path(path).absolute()), "seed": number}))
        stack.callback(workers[-1].close)
    for worker in workers:
        worker.receive()
    return workers


def serve() -> None:
    """Run a worker process: create the `Bench` that the first line of input describes, then measure each task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # process 0 handles Ctrl-C, and ends the others
    arguments = json.loads(sys.stdin.readline())
    path, engine, direct, seed = (arguments.pop(key) for key in ("path", "engine", "direct", "seed"))
    with ExitStack() as stack:
        try:
            plan = Plan(**arguments, max_written=None, axes={})
            plan.is_fitted = True
            setup = Setup(
                stack, path, plan=plan, engine=engine, direct=direct, seed=seed, report=lambda _progress: None
            )
            bench = setup.bench
            assert isinstance(bench, Bench)

            def answer(value: Any) -> None:
                message = {"value": value, "bytes_written": setup.bytes_written + bench.bytes_written}
                print(json.dumps(message), flush=True)

            def wait_for_start() -> None:
                answer("ready")
                _sleep_until(float(json.loads(sys.stdin.readline() or "0")))

            answer("ready")
            for line in sys.stdin:
                task = json.loads(line)
                config = AioConfig(**task.pop("config"))
                answer(asdict(bench.run(Task(config=config, **task), wait_for_start)))
        except UsageError as error:
            print(json.dumps({"usage": str(error)}), flush=True)
        except OSError as error:
            failure = {"errno": error.errno, "text": error.strerror, "path": error.filename}
            print(json.dumps(failure), flush=True)


def _sleep_until(moment: float) -> None:
    while (remaining := moment - time.perf_counter()) > 0:
        time.sleep(remaining)
