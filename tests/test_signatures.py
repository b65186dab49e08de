"""``?`` shows and Tab completes the options of public functions, not ``**options``."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import dsexplore
from dsexplore import aio, comm
from dsexplore._internal.comm import calls, coalesced_calls, objects, p2p, ranks
from dsexplore._internal.display import Displayable, OptionsOfView
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views import VIEWS
from dsexplore._internal.views.explorer.explorer import Explorer


def shown_classes() -> list[type]:
    """Return the classes that have a view."""
    homes = [f"dsexplore._internal.{home}".partition(":") for home in VIEWS]
    return [getattr(import_module(module), name) for module, _, name in homes]


def options_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "path")]


@pytest.mark.parametrize("method", ["to_html", "figure", "explore"])
@pytest.mark.parametrize("shown", shown_classes(), ids=lambda shown: shown.__name__)
def test_what_shows_itself_names_its_options(shown: type, method: str) -> None:
    function = getattr(shown, method)
    kinds = {each.kind for each in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    for name in options_of(function):
        assert f"{name}: " in inspect.getdoc(function), name


def test_the_options_are_those_of_the_view() -> None:
    assert options_of(Trace.explore) == ["figure", "height", "sizes", "tab", "hardware"]
    assert options_of(Trace().figure) == ["kind", "window", "sizes"]
    assert options_of(Trace.to_html)[0] == "sizes"
    assert "self" not in inspect.signature(Trace().figure).parameters
    assert list(inspect.signature(Displayable.figure).parameters) == ["self", "options"]  # which has no view
    assert Trace().figure("ops").layout == Trace().figure(kind="ops").layout


def test_an_unknown_option_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError, match=r"Trace\.explore\(\) has no argument 'heigth' \(did you mean 'height'"):
        Trace().explore(heigth=3)
    with pytest.raises(
        UsageError, match=r"Trace\.to_html\(\) has no argument 'size' \(did you mean 'sizes'\?\); it takes path, sizes"
    ):
        Trace().to_html("never written", size="wire")
    with pytest.raises(TypeError, match="3 arguments at most, not 4"):
        Trace().figure("ops", None, "wire", 3)


def test_functions_that_hand_options_on_name_them() -> None:
    assert options_of(Trace.where) == ["module", "row", *schema.EVENTS]
    assert str(inspect.signature(Trace.where)).startswith("(self, *, module=…, row=…, rank=…, ")
    assert options_of(Explorer.filter) == ["module", "implicit", "phase", "op", "axis", "group", "step", "rank"]
    assert options_of(dsexplore.calibrate) == ["group", "base", *options_of(comm.sweep)[1:]]
    assert set(options_of(aio.AioConfig.with_)) == set(aio.AioConfig.__dataclass_fields__)
    assert "backend" in options_of(comm.new_group)
    assert options_of(dsexplore.expect_comms)[2:] == list(OPS)
    assert {"queue_depth", "thread_count"} < set(options_of(aio.sweep))


_MODULES = (calls, coalesced_calls, p2p, objects, ranks)
WITHOUT_ANOTHER_FRAME = {*itertools.chain.from_iterable(map(vars, _MODULES)), "allgather_fn", "reduce_scatter_fn"}
"""Calls of `comm` without a decorator: a frame more is a hundredth of a call of 8 B, and the log names the caller."""
_PACKAGES = (dsexplore.cost, dsexplore.lessons, aio, comm)
ANSWER_BY_THEMSELVES = {"Trace.where", "AioConfig.with_", "CommsLogger.figure", "aio_handle.pread", "aio_handle.pwrite"}
"""Methods that read the object before they refuse, asked below, and two whose ``async`` is no name in Python."""
HOOKS = {f"CommsLogger.{name}" for name in ("append", "begin", "begin_custom", "end", "fail", "label_of", "wants")}
"""What the log is told by each call, where a frame more would count."""
MADE_BY_US = {"SweepResult", "SustainedWrites", "CheckpointRates", "FeedingResult", "Range", "NumericsReport"}
MADE_BY_US |= {"CheckpointCost", "LoadingResult", "OffloadCost"}
"""Classes of results, which users do not make."""


def arguments() -> Iterator[tuple[str, Callable[..., object], str]]:
    """Yield each argument of all public functions and classes: place, function, and argument."""
    for module in (dsexplore, dsexplore.cost, aio, comm):
        for name in module.__all__:
            shown = getattr(module, name)
            if (module is comm and name in WITHOUT_ANOTHER_FRAME) or name in MADE_BY_US or not callable(shown):
                continue
            if inspect.isclass(shown) and issubclass(shown, BaseException):
                continue
            for each in inspect.signature(shown).parameters.values():
                if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                    yield f"{module.__name__}.{name}", shown, each.name


def test_a_misspelt_argument_is_answered_with_the_one_that_was_meant() -> None:
    silent, count = [], 0
    for where, function, name in arguments():
        count += 1
        try:
            with function(**{f"{name[:-1]}_{name[-1]}": None}):  # type: ignore[attr-defined]  # expect_comms' with
                pass
        except Exception as error:
            if f"did you mean {name!r}" not in str(error):
                silent.append(f"{where}({name}): {error}")
    assert silent == []
    assert count > 200


def methods() -> Iterator[tuple[str, Callable[..., object], str]]:
    """Yield each argument of methods of public classes and of classes with a view: name, method, argument."""
    exported = [getattr(module, name) for module in (dsexplore, *_PACKAGES) for name in module.__all__]
    classes = {each for each in (*exported, *shown_classes()) if inspect.isclass(each)}
    for shown in sorted(classes, key=lambda shown: shown.__qualname__):
        for name in dir(shown) if shown.__name__ not in {*MADE_BY_US, "TorchBackend", "Noop"} else ():
            method, where = getattr(shown, name), f"{shown.__name__}.{name}"
            home = getattr(inspect.unwrap(method), "__module__", None) or "" if inspect.isroutine(method) else ""
            if name.startswith("_") or where in ANSWER_BY_THEMSELVES | HOOKS or not home.startswith("dsexplore."):
                continue
            is_plain = isinstance(inspect.getattr_static(shown, name), (FunctionType, OptionsOfView))
            called = partial(method, shown.__new__(shown)) if is_plain else method
            for each in inspect.signature(method).parameters.values():
                if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name != "self":
                    yield where, called, each.name


def test_a_misspelt_argument_of_a_method_is_answered_with_the_one_that_was_meant() -> None:
    silent, count = [], 0
    for where, method, argument in methods():
        count += 1
        try:
            method(**{f"{argument[:-1]}_{argument[-1]}": None})
        except Exception as error:
            if f"did you mean {argument!r}" not in str(error):
                silent.append(f"{where}({argument}): {error}")
    assert silent == []
    assert count > 150
    for ask, near in {
        lambda: Trace().where(axiss="tp"): "axis",
        lambda: aio.AioConfig().with_(block_sise=512): "block_size",
        lambda: comm.CommsLogger().figure(knid="time"): "kind",
    }.items():
        with pytest.raises(UsageError, match=f"did you mean '{near}'"):
            ask()


def test_no_public_function_ends_in_options_that_it_does_not_name() -> None:
    """The signatures of DeepSpeed's calls end in ``**kwargs``; here they have torch's arguments."""
    open_ended = []
    for module in (dsexplore, dsexplore.cost, dsexplore.aio):
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if inspect.isfunction(found) and any(
                each.kind is inspect.Parameter.VAR_KEYWORD for each in inspect.signature(found).parameters.values()
            ):
                open_ended.append(name)
    assert open_ended == []


def test_sharding_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    help(dsexplore.sharding)
    text = capsys.readouterr().out
    for part in (
        "dsexplore.sharding(shown: ",
        "Compute which rank holds which slice",
        "placements: placements of a shape",
    ):
        assert part in text
    assert options_of(dsexplore.sharding) == ["shown", "placements", "mesh", "dtype"]


def test_tab_completes_options_and_the_question_mark_lists_them(plain_shell: InteractiveShell) -> None:
    plain_shell.user_ns["trace"] = Trace()
    for jedi in (False, True):
        plain_shell.Completer.use_jedi = jedi
        for text, option in {
            "trace.explore(": "height=",
            "trace.where(": "axis=",
            "trace.figure(": "kind=",
        }.items():
            with provisionalcompleter():
                found = [each.text for each in plain_shell.Completer.completions(text, len(text))]
            assert option in found, (text, jedi)
    asked = plain_shell.object_inspect_text("trace.explore", detail_level=0)
    assert re.search("height: '?int'? = 420", asked)
    assert "height of the tree in pixels" in asked


@pytest.mark.parametrize("method", ["predict", "world_map", "timeline"])
def test_a_misspelt_argument_names_the_class_that_the_user_has(method: str) -> None:
    with pytest.raises(UsageError, match=rf"^Trace\.{method}\("):
        getattr(Trace(), method)(hardwear="h100")
