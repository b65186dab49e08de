"""dsexplore: see what a distributed PyTorch program communicates, where its tensors live, how fast the disk is.

This module defines nothing: it exports the public names, and imports their modules on first use. In IPython it
registers a stand-in for the magic that says how to load it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "simulate": "dsexplore.worlds.simulate",
    "commtrace": "dsexplore.worlds.commtrace",
    "run": "dsexplore.worlds.scripts.run_script",
    "CommDebugMode": "dsexplore.comm_debug_mode.mode",
    "Trace": "dsexplore.trace.trace",
    "load": "dsexplore.trace.trace",
    "explain_hang": "dsexplore.analysis.hangs.explain",
    "expect_comms": "dsexplore.capture.expect",
    "run_ranks": "dsexplore.worlds.real.run_ranks",
    "register_extension": "dsexplore.worlds.extensions.registry",
    "calibrate": "dsexplore.cost.calibrate",
    "compare_meshes": "dsexplore.cost.compare_meshes",
    "compare_numerics": "dsexplore.numerics.compare_numerics",
    "expect_same_numbers": "dsexplore.numerics.expect_same",
    "NumericsReport": "dsexplore.numerics.numerics_report",
    "UsageError": "dsexplore.errors",
    "TraceFileError": "dsexplore.errors",
    "ClosedWorldError": "dsexplore.errors",
    "ExpectationError": "dsexplore.errors",
    "MismatchError": "dsexplore.errors",
    "NotInitializedError": "dsexplore.errors",
    "RanksFailedError": "dsexplore.worlds.real.run_ranks",
    "sharding": "dsexplore.sharding",  # a package that can be called
    "comm": "dsexplore.comm",
    "aio": "dsexplore.aio",
    "cost": "dsexplore.cost",
    "lessons": "dsexplore.lessons",
    "load_ipython_extension": "dsexplore.magics",
    "unload_ipython_extension": "dsexplore.magics",
}

if TYPE_CHECKING:
    from dsexplore import aio as aio
    from dsexplore import comm as comm
    from dsexplore import cost as cost
    from dsexplore import lessons as lessons
    from dsexplore.analysis.hangs.explain import explain_hang as explain_hang
    from dsexplore.capture.expect import expect_comms as expect_comms
    from dsexplore.comm_debug_mode.mode import CommDebugMode as CommDebugMode
    from dsexplore.cost.calibrate import calibrate as calibrate
    from dsexplore.cost.compare_meshes import compare_meshes as compare_meshes
    from dsexplore.errors import ClosedWorldError as ClosedWorldError
    from dsexplore.errors import ExpectationError as ExpectationError
    from dsexplore.errors import MismatchError as MismatchError
    from dsexplore.errors import NotInitializedError as NotInitializedError
    from dsexplore.errors import TraceFileError as TraceFileError
    from dsexplore.errors import UsageError as UsageError
    from dsexplore.magics import load_ipython_extension as load_ipython_extension
    from dsexplore.magics import unload_ipython_extension as unload_ipython_extension
    from dsexplore.numerics.compare_numerics import compare_numerics as compare_numerics
    from dsexplore.numerics.expect_same import expect_same_numbers as expect_same_numbers
    from dsexplore.numerics.numerics_report import NumericsReport as NumericsReport
    from dsexplore.sharding.plan import sharding as sharding
    from dsexplore.trace.trace import Trace as Trace
    from dsexplore.trace.trace import load as load
    from dsexplore.worlds.commtrace import commtrace as commtrace
    from dsexplore.worlds.extensions.registry import register_extension as register_extension
    from dsexplore.worlds.real.run_ranks import RanksFailedError as RanksFailedError
    from dsexplore.worlds.real.run_ranks import run_ranks as run_ranks
    from dsexplore.worlds.scripts.run_script import run as run
    from dsexplore.worlds.simulate import simulate as simulate

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
    import_module("dsexplore.unloaded_magic").offer(_shell)
