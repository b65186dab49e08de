"""Finds out which modules torch.compile compiles, alone or as part of a larger module."""

from __future__ import annotations

from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.torch_internals.modules import is_compiled


class CompiledModules:
    """Finds the outermost compiled module around a module, and remembers it."""

    def __init__(self) -> None:
        self._around: dict[int, int | None] = {}
        """{id of a module's entry: what `around` returned for it}."""
        self._regions: dict[int, dict[int, int]] = {}
        """{id of a root's entry: what `_inside` returned for it}."""

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
        regions = self._regions.get(id(root))
        if regions is None:
            regions = self._regions[id(root)] = {}
            model = root.reference()
            for module in model.modules() if model is not None else ():  # outer modules come first
                if is_compiled(module):
                    for inner in module.modules():
                        regions.setdefault(id(inner), id(module))
        return regions
