"""Pictures of every view on eight programs, light and dark, 1440, 900, 720 and 320 wide, for a person to look through.

The programs: a Llama with tensor parallelism and FSDP2 on 8 and on 64 ranks, a pipeline of four stages, a Mixtral with
expert parallelism, DDP on four real ranks of which one is late, 2,000 modules, long names, and one that sends nothing;
also experts with uneven traffic, ranks that read a disk, a hang and a plan that computes something else.
Each page is examined by axe-core, for what it cuts off without a cue, for nearly empty drawings, for labels on one
another, for two lines under a title, and for marks that hardly stand out; the faults are printed, and the exit status
is 1 where there is one. A widget stands in a bare page, filled by its own Python.

Usage: python docs/pictures.py FOLDER [part of a name …]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import dsexplore
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from docs import pictured_programs as programs
from tests.aio.checkpoints.test_loading_result import USUAL, loader, loading
from tests.aio.checkpoints.test_predict_checkpoint import cost as checkpoint_cost
from tests.aio.data_loaders.test_feeding_result import feeding
from tests.aio.test_offload import cost as offload_cost
from tests.browser.bare_page import AXE, RULES, axe, draw
from tests.browser.conftest import ARGUMENTS, chromium
from tests.browser.picture_rules import EMPTY, FAINT, OVERLAP, TWO_LINES
from tests.browser.test_accessibility import CUT
from tests.views import traces

ROOT = Path(__file__).parents[1]
WIDTHS = (1440, 900, 720, 320)
LEAST_CONTRAST = 3.0
"""Of a mark with the page, as WCAG 2.1 asks."""


def views(folder: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, what makes it) of everything that is drawn; what several need is made once, when it is first needed."""
    made: dict[str, Any] = {}

    def of(name: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "llama": programs.llama,
            "wide llama": lambda: programs.llama(4, hidden_size=1024),
            "64 ranks": lambda: programs.llama(2, "dp=8,tp=8"),
            "mixtral": programs.mixtral,
            "pipeline": programs.pipeline,
            "ddp": programs.real_ddp,
            "2,000 modules": lambda: traces.layered(650),
            "long names": lambda: traces.of_names([f"{'a_long_name_' * 8}{i}" for i in range(4)]),
            "nothing": programs.nothing,
            "uneven experts": programs.routed,
            "disk": programs.from_disk,
            "meshes": programs.meshes,
            "sweep": lambda: programs.sweep(folder),
        }
        if name not in made:
            made[name] = makers[name]()
        return made[name]

    def explorer(name: str, parameter: str = "") -> Any:
        shown = of(name).explore()
        if parameter:
            shown.parameter(parameter)
        return shown

    def in_seconds() -> Any:
        shown = of("llama").explore(tab="map", hardware="dgx-h100")
        shown.widget.shade = "predicted"
        return shown

    weight = "model.layers.0.self_attn.q_proj.weight"
    for name in ("llama", "mixtral", "pipeline", "ddp", "64 ranks", "2,000 modules", "long names", "nothing"):
        yield f"trace {name}", lambda name=name: of(name)
        yield f"explorer {name}", lambda name=name: explorer(name)
        yield f"timeline {name}", lambda name=name: of(name).timeline()
        yield f"world map {name}", lambda name=name: of(name).world_map(ranks_per_node=4)
        yield f"interactive {name}", lambda name=name: (of(name), {"interactive": True})
    yield "world map measured", lambda: of("ddp").world_map(ranks_per_node=2, shade="seconds")
    yield "world map predicted", lambda: of("llama").world_map(ranks_per_node=4, hardware="dgx-h100")
    yield "explorer shaded by seconds", in_seconds
    yield "explorer with a parameter", lambda: explorer("llama", weight)
    yield "skew", lambda: of("ddp").skew()
    yield "stages", lambda: of("pipeline").timeline(lanes="stage")
    yield "stages explorer", lambda: of("pipeline").timeline(lanes="stage").explore()
    yield "timeline explorer", lambda: of("ddp").timeline().explore()
    yield "predicted timeline", lambda: of("llama").timeline(hardware="dgx-h100")
    yield "parameter", lambda: of("llama").parameter_history(weight)
    yield "findings", lambda: of("llama").findings()
    yield "headline", lambda: of("mixtral").headline()
    yield "diff", lambda: of("llama").diff(of("wide llama"))
    yield "diff explorer", lambda: of("llama").diff(of("wide llama")).explore()
    yield "prediction", lambda: of("llama").predict("dgx-h100")
    yield "prediction of stages", lambda: of("pipeline").predict("dgx-h100")
    yield "predicted stages", lambda: of("pipeline").timeline(lanes="stage", hardware="dgx-h100")
    yield "predicted beside measured", lambda: (programs.predicted_ddp(), {"measured": of("ddp")})
    yield "mesh choice", lambda: of("meshes")
    yield "communication sweep", lambda: CommSweep.load(ROOT / "benchmarks" / "data" / "gloo-2.json")
    yield "sharding", lambda: dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")
    yield "sharding of a model", programs.plan
    yield "sharding on 16,384 ranks", lambda: dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8")
    yield "redistribution", lambda: dsexplore.sharding((16, 8), "S(0), R", "dp=2,tp=4").redistribute("R, S(1)")
    yield "log", programs.log
    yield "sweep", lambda: of("sweep")
    yield "trace uneven experts", lambda: of("uneven experts")
    yield "timeline disk", lambda: of("disk").timeline()
    yield "hang", programs.hang
    yield "numerics", programs.numerics
    yield "loading", lambda: loading(USUAL, loader("other", [2.0], 0.5))
    yield "checkpoint", checkpoint_cost
    yield "offload", lambda: offload_cost(parameters=True, step_seconds=5.0)
    yield "feeding", lambda: feeding(2, 1.0, 19.0, step=0.08)


def show(page: Any, one: Any, file: Path) -> None:
    """Draw a view in a page: the file that it writes, or its widget."""
    if hasattr(one, "widget"):
        draw(page, one.widget, "h1{position:absolute;clip-path:inset(50%)}")
        page.wait_for_selector(".dsx-plot[data-drawn],canvas[data-drawn]")
        return
    view, options = one if isinstance(one, tuple) else (one, {})
    page.goto(view.to_html(file, **options).as_uri())
    if options.get("interactive"):
        page.wait_for_selector("canvas[data-drawn]")


def picture(page: Any, one: Any, path: Path, file: Path) -> None:
    """Take a picture of a view as it is in the page's theme and width."""
    show(page, one, file)
    page.wait_for_timeout(150)
    width = page.viewport_size["width"]
    page.set_viewport_size({"width": width, "height": page.evaluate("document.body.offsetHeight") + 40})
    page.wait_for_timeout(150)
    page.screenshot(path=path)
    page.set_viewport_size({"width": width, "height": 900})


def faults_of(page: Any) -> list[str]:
    """Return what is wrong with the view in the page, all its sections opened."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    page.evaluate(axe())
    return [
        *page.evaluate(AXE, RULES),
        *page.evaluate(CUT),
        *page.evaluate(EMPTY),
        *page.evaluate(OVERLAP),
        *page.evaluate(TWO_LINES),
        *page.evaluate(FAINT, LEAST_CONTRAST),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="only views whose name contains one of these")
    every = [f"{width}_{theme}" for theme in ("light", "dark") for width in WIDTHS]
    parser.add_argument("--looks", default=",".join(every), help="widths and themes, as 1440_light,320_dark")
    parser.add_argument("--no-rules", action="store_true", help="take the pictures only, which is quicker")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    faults, taken = 0, 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=ARGUMENTS, ignore_default_args=["--hide-scrollbars"]
        )
        page = browser.new_context(bypass_csp=True, viewport={"width": 1440, "height": 900}).new_page()
        page.on("pageerror", lambda error: print(f"  script error: {error}"))
        for name, make in views(folder):
            if options.names and not any(part in name for part in options.names):
                continue
            one = make()
            for look in options.looks.split(","):
                width, theme = look.split("_")
                page.emulate_media(color_scheme=theme)
                page.set_viewport_size({"width": int(width), "height": 900})
                path = options.folder / f"{name.replace(' ', '_')}_{look}.png"
                picture(page, one, path, Path(folder) / "shown.html")
                wrong = [] if options.no_rules else faults_of(page)
                faults, taken = faults + len(wrong), taken + 1
                print(path.name, *(f"\n  {fault}" for fault in wrong), flush=True)
        browser.close()
    print(f"{taken} pictures in {options.folder}, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
