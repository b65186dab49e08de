"""dsexplore: see what a distributed PyTorch program communicates, where its tensors live, how fast the disk is.

This module defines nothing: it exports the public names, and imports their modules on first use. In IPython it
registers a stand-in for the magic that says how to load it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "simulate": "dsexplore._internal.worlds.simulate",
    "commtrace": "dsexplore._internal.worlds.commtrace",
    "run": "dsexplore._internal.worlds.scripts.run_script",
    "CommDebugMode": "dsexplore._internal.comm_debug_mode.mode",
    "Trace": "dsexplore._internal.trace.trace",
    "load": "dsexplore._internal.trace.trace",
    "explain_hang": "dsexplore._internal.analysis.hangs.explain",
    "expect_comms": "dsexplore._internal.capture.expect",
    "run_ranks": "dsexplore._internal.worlds.real.run_ranks",
    "register_extension": "dsexplore._internal.worlds.extensions.registry",
    "calibrate": "dsexplore._internal.cost.collectives.calibrate",
    "compare_meshes": "dsexplore._internal.cost.meshes.compare_meshes",
    "compare_numerics": "dsexplore._internal.numerics.compare_numerics",
    "expect_same_numbers": "dsexplore._internal.numerics.expect_same",
    "NumericsReport": "dsexplore._internal.numerics.numerics_report",
    "UsageError": "dsexplore._internal.errors",
    "TraceFileError": "dsexplore._internal.errors",
    "ClosedWorldError": "dsexplore._internal.errors",
    "ExpectationError": "dsexplore._internal.errors",
    "MismatchError": "dsexplore._internal.errors",
    "NotInitializedError": "dsexplore._internal.errors",
    "RanksFailedError": "dsexplore._internal.worlds.real.run_ranks",
    "sharding": "dsexplore.sharding",  # a package that can be called
    "comm": "dsexplore.comm",
    "aio": "dsexplore.aio",
    "cost": "dsexplore.cost",
    "lessons": "dsexplore.lessons",
    "load_ipython_extension": "dsexplore._internal.magics",
    "unload_ipython_extension": "dsexplore._internal.magics",
}

if TYPE_CHECKING:
    from dsexplore import aio as aio
    from dsexplore import comm as comm
    from dsexplore import cost as cost
    from dsexplore import lessons as lessons
    from dsexplore._internal.analysis.hangs.explain import explain_hang as explain_hang
    from dsexplore._internal.capture.expect import expect_comms as expect_comms
    from dsexplore._internal.comm_debug_mode.mode import CommDebugMode as CommDebugMode
    from dsexplore._internal.cost.collectives.calibrate import calibrate as calibrate
    from dsexplore._internal.cost.meshes.compare_meshes import compare_meshes as compare_meshes
    from dsexplore._internal.errors import ClosedWorldError as ClosedWorldError
    from dsexplore._internal.errors import ExpectationError as ExpectationError
    from dsexplore._internal.errors import MismatchError as MismatchError
    from dsexplore._internal.errors import NotInitializedError as NotInitializedError
    from dsexplore._internal.errors import TraceFileError as TraceFileError
    from dsexplore._internal.errors import UsageError as UsageError
    from dsexplore._internal.magics import load_ipython_extension as load_ipython_extension
    from dsexplore._internal.magics import unload_ipython_extension as unload_ipython_extension
    from dsexplore._internal.numerics.compare_numerics import compare_numerics as compare_numerics
    from dsexplore._internal.numerics.expect_same import expect_same_numbers as expect_same_numbers
    from dsexplore._internal.numerics.numerics_report import NumericsReport as NumericsReport
    from dsexplore._internal.sharding.plan import sharding as sharding
    from dsexplore._internal.trace.trace import Trace as Trace
    from dsexplore._internal.trace.trace import load as load
    from dsexplore._internal.worlds.commtrace import commtrace as commtrace
    from dsexplore._internal.worlds.extensions.registry import register_extension as register_extension
    from dsexplore._internal.worlds.real.run_ranks import RanksFailedError as RanksFailedError
    from dsexplore._internal.worlds.real.run_ranks import run_ranks as run_ranks
    from dsexplore._internal.worlds.scripts.run_script import run as run
    from dsexplore._internal.worlds.simulate import simulate as simulate

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dsexplore' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = import_module(home)
    value = module if home.rpartition(".")[2] == name and not hasattr(module, name) else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    import_module("dsexplore._internal.unloaded_magic").offer(_shell)
