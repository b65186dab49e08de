"""Look up names of torch that are not public and that an installed version may lack: `internal` and `TorchName`."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn, TypeVar

import torch

from dsexplore._internal.errors import UsageError

T = TypeVar("T")
OLDEST, NEWEST = "2.9", "2.15"
"""The range of torch's minor versions that this release is tested with."""

registered_names: dict[str, TorchName] = {}
"""{path: name} of all names that modules of this room have looked up; `canary` checks them."""


class TorchName:
    """A name of torch, or of a package on torch, that may be absent from the installed version.

    Args:
        path: module and attribute, ``"torch.nn:Module._apply"``.
        since: first minor version of torch that has the name.
        until: last minor version of torch that has the name; None if the newest has it.

    Example:
        >>> TorchName("torch.nn:Module._apply").is_there
        True
        >>> TorchName("torch.nn:Module._not_there").is_there
        False
    """

    def __init__(self, path: str, *, since: str = OLDEST, until: str | None = None) -> None:
        self.path, self.since, self.until = path, since, until
        self.module, _, attributes = path.partition(":")
        *self._owners, self.attribute = attributes.split(".") if attributes else [""]
        registered_names[path] = self

    def __repr__(self) -> str:
        return f"TorchName({self.path!r})"

    @property
    def is_of_torch(self) -> bool:
        """True for a name of torch itself, False for a name of a package on torch."""
        return self.module.partition(".")[0] == "torch"

    @property
    def private_part(self) -> str:
        """Path up to its last private name, at least with one attribute; empty for a public name.

        Public attributes of a private class are not counted apart from the class.

        Example:
            >>> TorchName("torch._subclasses.fake_tensor:FakeTensor.numpy").private_part
            'torch._subclasses.fake_tensor:FakeTensor'
            >>> TorchName("torch.nn:Module.__init__").private_part
            ''
        """
        attributes = self.path.partition(":")[2].split(".")
        last = max((place for place, name in enumerate(attributes, 1) if _is_private(name)), default=0)
        if not last and not any(map(_is_private, self.module.split("."))):
            return ""
        return f"{self.module}:{'.'.join(attributes[: max(last, 1)])}"

    @property
    def is_loaded(self) -> bool:
        """True if the module that holds the name has been imported."""
        return self.module in sys.modules

    @property
    def is_expected(self) -> bool:
        """True if the installed torch is in the range of versions that have the name."""
        installed = minor_version(torch.__version__)
        return minor_version(self.since) <= installed and (self.until is None or installed <= minor_version(self.until))

    @property
    def is_there(self) -> bool:
        """True if the installed torch has the name; imports its module."""
        return not isinstance(self.get(), Missing)

    def owner(self) -> Any:
        """Return the module or class that holds the name, or a `Missing` class."""
        try:
            owner: Any = import_module(self.module)
            for name in self._owners:
                owner = getattr(owner, name)
        except (ImportError, AttributeError):
            return missing(self.path)
        return owner

    def get(self) -> Any:
        """Return the named object, or a `Missing` class if the installed torch has none."""
        owner = self.owner()
        if isinstance(owner, Missing) or not self.attribute:
            return owner
        try:
            return getattr(owner, self.attribute)
        except AttributeError:
            return missing(self.path)


def internal(path: str, *, since: str = OLDEST, until: str | None = None, otherwise: Any = None) -> Any:
    """Return a name of torch that is not public.

    Args:
        path: module and attribute, ``"torch.nn:Module._apply"``, or a module alone.
        since: first minor version of torch that has the name.
        until: last minor version of torch that has the name; None if the newest has it.
        otherwise: object to return if the installed torch does not have the name.

    Returns:
        The object, or ``otherwise``. Without both, a class that has no instances, and that raises `UsageError` when it
        is called or one of its attributes is read.

    Example:
        >>> internal("torch._C:_current_graph_task_id")()
        -1
        >>> isinstance(3, internal("torch._C:_NotThere"))
        False
    """
    value = TorchName(path, since=since, until=until).get()
    return value if otherwise is None or is_there(value) else otherwise


def is_there(value: Any) -> bool:
    """Return False for the class that `internal` returns for a name that the installed torch does not have."""
    return not isinstance(value, Missing)


def needed(value: T, needed_for: str) -> T:
    """Return the object from `internal`; raise if it is missing.

    Args:
        value: object that `internal` returned.
        needed_for: ability that needs the object, as the user asks for it: ``"fake=True"``.

    Raises:
        UsageError: the installed torch does not have the name.
    """
    if isinstance(value, Missing):
        raise lacking(value.path, needed_for)
    return value


def minor_version(version: str) -> tuple[int, int]:
    """Return major and minor version: ``(2, 13)`` for ``"2.13.0+cpu"``."""
    major, minor, *_ = version.split(".")
    return int(major), int("".join(takewhile(str.isdigit, minor)))


def torch_at_least(version: str) -> bool:
    """Return True if the installed torch is of that minor version or newer, for changes that no name tells."""
    return minor_version(torch.__version__) >= minor_version(version)


class Missing(type):
    """Metaclass of the classes that stand for names that the installed torch does not have."""

    path: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise lacking(cls.path)

    def __getattr__(cls, name: str) -> NoReturn:
        # Python itself looks up names with two underscores, and expects an AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        raise lacking(cls.path)


def missing(path: str) -> Missing:
    """Return the class that stands for a name that the installed torch does not have."""
    return Missing(path.rpartition(".")[2].rpartition(":")[2] or "missing", (), {"path": path})


def lacking(path: str, needed_for: str = "this") -> UsageError:
    """Return the error for an ability that needs a name which the installed torch does not have."""
    name = registered_names.get(path)
    first = OLDEST if name is None else name.since
    last = NEWEST if name is None or name.until is None else name.until
    return UsageError(
        f"{needed_for} needs {path.replace(':', '.')}, which torch {torch.__version__} does not have: "
        f"install torch {first} to {last} (pip install 'torch>={first},<{_next_minor(last)}'), or do without it"
    )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _next_minor(version: str) -> str:
    major, minor = minor_version(version)
    return f"{major}.{minor + 1}"
