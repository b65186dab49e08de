"""Check which private names the installed torch lacks, and which private functions have changed their arguments.

Run it first when a new torch comes out: ``make canary`` takes seconds. The arguments on tested versions are in
``signatures.json``; ``--record`` adds those of the installed version.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal

import torch

from dsexplore._internal import torch_internals
from dsexplore._internal.torch_internals.names import OLDEST, TorchName, is_there, minor_version, registered_names

SIGNATURES = Path(__file__).with_name("signatures.json")
NOT_SUBJECTS = {"canary", "names", "__main__"}
"""Modules of this room that do not use names of torch."""

Signatures = dict[str, dict[str, str]]
"""{minor version of torch: {name of a Python function: its arguments}}."""


@dataclass(frozen=True)
class Difference:
    """A name in which the installed torch differs from what this package expects.

    Attributes:
        path: Module and attribute, ``"torch.nn:Module._apply"``.
        kind: ``"missing"`` in a version that should have the name; ``"unexpected"`` in a version that should not have
            it; ``"signature"`` for a Python function that takes other arguments than in a tested version.
        expected: Versions that have the name, or the arguments that the function took.
        installed: Arguments that the function takes; empty for the other kinds.
    """

    path: str
    kind: Literal["missing", "unexpected", "signature"]
    expected: str
    installed: str = ""

    def __str__(self) -> str:
        if self.kind == "signature":
            return f"signature   {self.path}{self.installed}, was {self.expected}"
        return f"{self.kind:11} {self.path}, expected in torch {self.expected}"


def load_all_names() -> list[TorchName]:
    """Return all names of torch that `torch_internals` uses, including those that it looks up on demand."""
    for module in iter_modules(torch_internals.__path__):
        if module.name not in NOT_SUBJECTS:
            loaded = import_module(f"{torch_internals.__name__}.{module.name}")
            for path, since, until in names_in_source(inspect.getsource(loaded)):
                if path not in registered_names:
                    TorchName(path, since=since, until=until)
    return [name for name in registered_names.values() if name.is_of_torch]


def names_in_source(source: str) -> list[tuple[str, str, str | None]]:
    """Return (path, first version, last version) of each literal that a module passes to `internal` or `TorchName`."""
    result = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        functions = {ast.unparse(call.func), *(arg.id for arg in call.args if isinstance(arg, ast.Name))}
        literals = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        if functions & {"internal", "TorchName"} and literals and isinstance(literals[0], str):
            options = {
                keyword.arg: str(keyword.value.value)
                for keyword in call.keywords
                if isinstance(keyword.value, ast.Constant) and keyword.value.value is not None
            }
            result.append((literals[0], options.get("since", OLDEST), options.get("until")))
    return result


def private_names(names: list[TorchName]) -> list[str]:
    """Return the private parts of names, sorted and without duplicates; ops and modules are not included."""
    private = {name.private_part for name in names if name.attribute and not name.path.startswith("torch:ops.")}
    return sorted(private - {""})


def differences(names: list[TorchName], recorded: Signatures) -> list[Difference]:
    """Return the differences between the installed torch and what this package expects.

    Args:
        names: names that this package uses; the differences are in their order.
        recorded: arguments of functions on tested versions.
    """
    tested = nearest(recorded)
    result = []
    for name in names:
        value = name.get()
        versions = f"{name.since} to {name.until or 'the newest'}"
        if is_there(value) != name.is_expected:
            result.append(Difference(name.path, "unexpected" if is_there(value) else "missing", versions))
        elif is_there(value) and (expected := recorded.get(tested, {}).get(name.path)):
            installed = arguments(value)
            if installed and installed != expected:
                result.append(Difference(name.path, "signature", f"{expected} in torch {tested}", installed))
    return result


def arguments(function: Any) -> str:
    """Return the names of a Python function's arguments, ``"(self, module, *, recurse=)"``; empty for anything else."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return ""
    bare = [
        parameter.replace(annotation=parameter.empty, default=parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(bare))


def nearest(recorded: Signatures) -> str:
    """Return the newest recorded minor version up to the installed torch, else the oldest; empty without any."""
    installed = minor_version(torch.__version__)
    versions = sorted(recorded, key=minor_version)
    older = [version for version in versions if minor_version(version) <= installed]
    if older:
        return older[-1]
    return versions[0] if versions else ""


def read_signatures() -> Signatures:
    """Return the arguments of functions on tested versions, from ``signatures.json``."""
    if not SIGNATURES.exists():
        return {}
    loaded: Signatures = json.loads(SIGNATURES.read_text(encoding="utf-8"))
    return loaded


def record(names: list[TorchName], recorded: Signatures) -> Signatures:
    """Return the recorded signatures, with those of the installed torch added under its minor version."""
    installed = ".".join(map(str, minor_version(torch.__version__)))
    signatures = {name.path: arguments(value) for name in names if is_there(value := name.get())}
    signatures = {path: text for path, text in sorted(signatures.items()) if text}
    return dict(sorted({**recorded, installed: signatures}.items(), key=lambda pair: minor_version(pair[0])))


def main(argv: list[str] | None = None) -> int:
    """Print how the installed torch differs, and return the exit status: 1 if it differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m dsexplore._internal.torch_internals", description=__doc__)
    parser.add_argument("--record", action="store_true", help="store the arguments of functions on the installed torch")
    parser.add_argument("--names", action="store_true", help="list all names, with the versions that have them")
    options = parser.parse_args(argv)
    names = load_all_names()
    if options.names:
        for name in sorted(names, key=lambda name: name.path):
            print(f"{name.path}  {name.since} to {name.until or 'the newest'}")
    recorded = read_signatures()
    if options.record:
        recorded = record(names, recorded)
        SIGNATURES.write_text(json.dumps(recorded, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    different = differences(names, recorded)
    for difference in different:
        print(difference)
    kinds = Counter(difference.kind for difference in different)
    print(
        f"torch {torch.__version__}: {len(names)} names, {len(private_names(names))} of them private, "
        f"{kinds['missing']} missing, {kinds['unexpected']} unexpected, "
        f"{kinds['signature']} with other arguments than in torch {nearest(recorded)}"
    )
    return 1 if different else 0
