"""Fixtures of all tests; one checks that nothing that a test opened is open afterwards."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
import torch.distributed.distributed_c10d as c10d
import torch.distributed.tensor
import torch.distributed.tensor.debug
from hypothesis import HealthCheck, settings
from torch._library.simple_registry import singleton as registered_fakes
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dsexplore._internal.capture.collectives import groups
from dsexplore._internal.capture.content import io_recording
from dsexplore._internal.capture.kernels import kernel_recording
from dsexplore._internal.capture.stack import future_callbacks
from dsexplore._internal.capture.timing import device_timing
from dsexplore._internal.numerics import compared_mode
from dsexplore._internal.torch_internals.function_modes import default_device
from dsexplore._internal.torch_internals.names import TorchName, is_there, torch_at_least
from dsexplore._internal.torch_internals.patches import Patch
from dsexplore._internal.worlds.cuda import first_use
from dsexplore._internal.worlds.cuda.stand_in import TABLE as TABLE_OF_GPUS
from dsexplore._internal.worlds.extensions import registry
from dsexplore._internal.worlds.patch_table import TABLE
from dsexplore._internal.worlds.repeats import skipped_layers, skipped_microbatches

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tests.notebook_cells import Notebook

# The same examples on any machine, however slow.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")

COMMUNICATION = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
HOOK_OWNERS = ("torch.nn.modules.module", "torch.optim.optimizer")
OF_THE_RUN = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "dsexplore._internal.worlds.real.rank_server",
)
"""Processes that live as long as this one, once a test has needed them."""
SLOW = {"children", "temporary files"}
"""Resources that a process may hold until it has ended, and that others may end or remove at any time."""
OF_OTHERS = ("pytest-of-", "torchinductor_", "playwright", "org.chromium.", ".org.chromium.")
"""Temporary files of pytest, of the compiler's cache, and of the browser, which lives as long as the test run."""
if not torch_at_least("2.10"):
    OF_OTHERS += ("tmp",)  # each process that imports torch.distributed.nn has a folder, the server of ranks too
OF_LIBRARIES = ("PYTEST_CURRENT_TEST", "KMP_", "TORCHINDUCTOR_", "TRITON_", "_RJEM_")
"""Environment variables that pytest, polars, torch's libraries and its compiler set for themselves."""
PATIENCE = 30
"""Seconds that a process may take to end, on a machine that is busy with other work."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a folder for temporary files of their own, so that what they leave there can be seen, and let
    Ctrl-C interrupt: a shell starts what runs in its background with that ignored.

    Until all tests are collected, the garbage collector rests: it would find nothing.
    """
    gc.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tempfile.mkdtemp(prefix="dsexplore-tests-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run notebooks and the long files of `worlds` first, so that processes that share the work end together."""
    items.sort(key=lambda item: ("notebooks" not in item.path.parts, "worlds" not in item.path.parts))


def pytest_collection_finish() -> None:
    """Keep what has been imported and collected from the garbage collector, which would visit it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Compare what torch and this process hold before and after a test."""
    before = held()
    yield
    left = differences(before, held())
    deadline = time.monotonic() + PATIENCE
    while left and left.keys() <= SLOW and time.monotonic() < deadline:
        time.sleep(0.02)
        left = differences(before, held())
    assert not left, f"left behind by this test (before, after): {left}"


@pytest.fixture(scope="session")
def rank_server() -> None:
    """Start the process that real ranks are forked from before the first test that asks for it.

    The process lives until the test run ends; where a test has ended it, the next one that needs it starts another.
    """
    from dsexplore import run_ranks

    run_ranks("", 1, backend=None).check()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the extensions that a test registers."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Yield a gloo world of one rank in this process."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Yield a notebook's shell: its cells' files are named by their content, so that a cell keeps its file."""
    from ipykernel.compiler import XCachingCompiler

    yield from shell_with(monkeypatch, compiler_class=XCachingCompiler)


@pytest.fixture
def plain_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Yield IPython's own shell, without history and colors."""
    from traitlets.config import Config

    settings = Config(HistoryManager={"enabled": False}, InteractiveShell={"colors": "nocolor"})
    yield from shell_with(monkeypatch, config=settings)


@pytest.fixture
def notebook(plain_shell: InteractiveShell) -> Iterator[Notebook]:
    """Yield a shell in which the extension is loaded."""
    from tests.notebook_cells import Notebook

    opened = Notebook(plain_shell)
    opened.ok("%load_ext dsexplore")
    yield opened
    opened.ok("%unload_ext dsexplore")


def shell_with(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[InteractiveShell]:
    """Yield the one shell of this process, until a test has ended."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which a shell replaces
    yield InteractiveShell.instance(**options)
    InteractiveShell.clear_instance()


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the resources that are held only afterwards and, except for `SLOW`, those that were held only before."""
    changed = {what: (before[what], after[what]) for what in after if before[what] != after[what]}
    was, now = changed.pop("replaced names", ({}, {}))
    for name in was.keys() & now.keys():  # a test may be the first to import a module
        if was[name] != now[name]:
            changed[name] = (was[name], now[name])
    if "environment" in changed:
        changed["environment"] = (
            before["environment"] - after["environment"],
            after["environment"] - before["environment"],
        )
    return {what: found for what, found in changed.items() if what not in SLOW or found[1] - found[0]}


def held() -> dict[str, Any]:
    """Return {description: state} of everything that a part of dsexplore may open or change."""
    return {
        "dispatch modes": [*map(repr, _get_current_dispatch_mode_stack())],
        "function modes": [*map(repr, _get_current_function_mode_stack())],
        "global hooks": global_hooks(),
        "kernels": {name: torch._C._dispatch_dump(name) for name in communication_ops()},
        "process groups": [group.group_name for group in c10d._world.pg_map],
        "names of torch": names_of_gpus(),
        "a GPU": (torch.cuda.is_available(), torch.version.cuda, torch.version.hip, torch.Stream, torch.cuda.Stream),
        "default device": default_device(),
        "autocast": [*map(autocast_of, ("cpu", "cuda"))],
        "default dtype and precision": (torch.get_default_dtype(), torch.backends.cuda.matmul.fp32_precision),
        "replaced names": replaced_names(),
        "Work.wait": repr(dist.Work.wait),
        "fake kernels": len(registered_fakes.find("_dtensor::shard_dim_alltoall").fake_impl.kernels),
        "excepthook": sys.excepthook,
        "registered extensions": {name: len(factories) for name, factories in registry._factories.items()},
        "import hooks": [type(one) for one in sys.meta_path if type(one).__module__.startswith("dsexplore")],
        "environment": {
            f"{name}, {hash(value)}" for name, value in os.environ.items() if not name.startswith(OF_LIBRARIES)
        },
        "program": (sys.argv, [*sys.argv], sys.modules["__main__"], [*sys.path], Path.cwd()),
        "children": child_processes(),
        "temporary files": temporary_files(),
    }


def names_of_gpus() -> set[str]:
    """Return the names for GPUs in ``torch._C`` and `torch.Tensor`; others are added by imports."""
    names = {"torch._C": vars(torch._C), "torch.Tensor": vars(torch.Tensor)}
    of_gpus = ("_cuda_", "_accelerator_", "_get_accelerator", "__getattr__", "_dsexplore", "_make_", "record_stream")
    return {f"{owner}.{name}" for owner, held in names.items() for name in held if name.startswith(of_gpus)}


def autocast_of(device: str) -> tuple[bool, torch.dtype, bool]:
    """Return whether autocast is on, in which dtype, and whether softmax is cast on that device."""
    cast = torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", f"Autocast{device.upper()}")
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), cast


def global_hooks() -> dict[str, list[Any]]:
    """Return the hooks on every module and on every optimizer, by the registry that holds them."""
    registries = {
        f"{owner}.{name}": registry
        for owner in HOOK_OWNERS
        for name, registry in vars(import_module(owner)).items()
        if name.startswith("_global_") and isinstance(registry, dict)
    }
    return {name: list(registry.values()) for name, registry in registries.items()}


@cache
def communication_ops() -> list[str]:
    """Return all communication ops that the dispatcher knows."""
    return [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(COMMUNICATION)]


TORCH = str(Path(torch.__file__).parent)
WITH_TABLES = (
    compared_mode,
    device_timing,
    first_use,
    future_callbacks,
    groups,
    io_recording,
    kernel_recording,
    skipped_layers,
    skipped_microbatches,
)
"""Modules with a table of their own, which is not part of a world's."""


def replaced_names() -> dict[str, Any]:
    """Return {name that an entry of the tables replaces: its object}, for imported modules.

    A function is described by its code and that of functions that it wraps, without torch's own, which the compiler
    wraps at its first use. Any other object is described by identity and text.
    """
    held: dict[str, Any] = {}
    for target in targets():
        module = sys.modules.get(target.module)
        if module is not None and is_there(owner := owner_of(target, module)):
            value = vars(owner).get(target.attribute)
            codes = [*codes_of(value)]
            is_ours = [code for code in codes if code is not None and not code.co_filename.startswith(TORCH)]
            held[target.path] = is_ours if codes[0] is not None else (id(value), repr(value)[:200])
    return held


@cache
def targets() -> list[TorchName]:
    """Return the names that the entries of the tables replace."""
    entries = (*TABLE, *TABLE_OF_GPUS, *(entry for module in WITH_TABLES for entry in module.PATCHES))
    return [entry.target for entry in entries if isinstance(entry, Patch)]


@cache
def owner_of(target: TorchName, module: ModuleType) -> Any:
    """Return the module or class that holds a name, which is looked up once in each module of that name."""
    return target.owner()


def codes_of(function: Any) -> Iterator[CodeType | None]:
    """Yield the code of a function and of those that it wraps: one that is replaced by its code wraps what it was."""
    yield getattr(function, "__code__", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        yield getattr(function, "__code__", None)


def child_processes() -> set[str]:
    """Return the running children of this process, without those that live as long as it does."""
    pids = {pid for task in Path("/proc/self/task").glob("*/children") for pid in _read(task).split()}
    commands = {pid: _read(Path(f"/proc/{pid}/cmdline")) for pid in pids}
    return {f"{pid} {text}" for pid, text in commands.items() if text and not any(own in text for own in OF_THE_RUN)}


def temporary_files() -> set[str]:
    """Return the names in the folder for temporary files."""
    return {entry.name for entry in Path(tempfile.gettempdir()).iterdir() if not entry.name.startswith(OF_OTHERS)}


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # the process or the thread ended meanwhile
