"""The modules that torch.compile was asked to compile, themselves or around them."""

from __future__ import annotations

from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.torch_internals.modules import is_compiled


class CompiledModules:
    """Finds the outermost compiled module around a module; asked once for each."""

    def __init__(self) -> None:
        self._around: dict[int, int | None] = {}
        self._roots: dict[int, dict[int, int]] = {}

    def around(self, entry: ModuleEntry | None) -> int | None:
        """Return the id of the outermost compiled module that contains or is this module; None if there is none."""
        if entry is None:
            return None
        key = id(entry)
        if key not in self._around:
            module = entry.reference()
            self._around[key] = self._inside(entry.root or entry).get(id(module)) if module is not None else None
        return self._around[key]

    def _inside(self, root: ModuleEntry) -> dict[int, int]:
        """Return {id of a module inside a compiled one: id of the outermost compiled one} for one model."""
        regions = self._roots.get(id(root))
        if regions is None:
            regions = self._roots[id(root)] = {}
            model = root.reference()
            for part in model.modules() if model is not None else ():  # outer modules come first
                if is_compiled(part):
                    for inner in part.modules():
                        regions.setdefault(id(inner), id(part))
        return regions
