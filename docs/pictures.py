"""Pictures of every view on eight programs, light and dark, 1440, 900, 720 and 320 wide, for a person to look through.

The programs: a Llama with tensor parallelism and FSDP2 on 8 and on 64 ranks, a pipeline of four stages, a Mixtral with
expert parallelism, DDP on four real ranks of which one is late, 2,000 modules, long names, and one that sends nothing.
Each page is examined by axe-core, for what it cuts off without a cue, for nearly empty drawings, for labels on one
another, and for marks that hardly stand out; the faults
are printed, and the exit status is 1 where there is one. A widget stands in a bare page, filled by its own Python.

Usage: python docs/pictures.py FOLDER [part of a name …]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from playwright.sync_api import sync_playwright
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import dsexplore
from dsexplore import Trace
from dsexplore.aio import SweepResult
from dsexplore.comm.logger import CommsLogger
from dsexplore.comm.logger_config import CommsLoggerConfig
from dsexplore.comm.sweep_result import CommSweep
from dsexplore.cost.compare_meshes import compare_meshes
from dsexplore.cost.mesh_comparison import MeshComparison
from dsexplore.cost.prediction import Prediction
from dsexplore.worlds import demo

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser.conftest import ARGUMENTS, chromium
from tests.browser.picture_rules import EMPTY, FAINT, OVERLAP
from tests.browser.test_accessibility import AXE, CUT, RULES, axe, draw
from tests.cost.sharded_llama import sharded_llama
from tests.views import traces

ROOT = Path(__file__).parents[1]
WIDTHS = (1440, 900, 720, 320)
LEAST_CONTRAST = 3.0
"""Of a mark with the page, as WCAG 2.1 asks."""
SMALL: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 2048, "use_cache": False}


def train(model: nn.Module, mesh: DeviceMesh) -> Trace:
    """One step of a language model whose layers are sharded on a mesh by FSDP2, as the rest of the model is then."""
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with dsexplore.commtrace(costs=True) as trace:
        tokens = torch.randint(0, 2048, (2, 512))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return trace


def llama(layers: int = 8, axes: str = "dp=2,tp=4", **shape: int) -> Trace:
    """A Llama on a mesh, eight ranks at first: tensor parallelism and FSDP2."""
    column, row = ColwiseParallel, RowwiseParallel
    plan: dict[str, Any] = {f"self_attn.{k}_proj": column() for k in "qkv"} | {"self_attn.o_proj": row()}
    plan |= {"mlp.gate_proj": column(), "mlp.up_proj": column(), "mlp.down_proj": row()}
    sizes = {"hidden_size": 512, "intermediate_size": 1376, **shape}
    with dsexplore.simulate(mesh=axes, fake=True) as mesh:
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes, **SMALL))
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        return train(model, mesh["dp"])


class Experts(nn.Module):
    """A Mixtral block whose experts are divided among the ranks of an axis: tokens travel to their expert and back."""

    def __init__(self, block: Any, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.gate, self.group = block.gate, group
        width, inner = block.experts.down_proj.shape[1:]
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x.flatten(0, 1))[0].softmax(-1).amax(-1, keepdim=True)
        rows = x.flatten(0, 1).repeat_interleave(2, 0)
        sent = functional.all_to_all_single_autograd(rows, None, None, self.group)
        back = functional.all_to_all_single_autograd(self.down(self.up(sent).relu()), None, None, self.group)
        return (back.view(*weights.shape[:-1], 2, -1).sum(-2) * weights).view_as(x)


def mixtral() -> Trace:
    """A Mixtral on sixteen ranks: expert parallelism and FSDP2."""
    with dsexplore.simulate(mesh="dp=2,ep=8", fake=True) as mesh:
        config = MixtralConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_local_experts=8, **SMALL
        )
        model = MixtralForCausalLM(config)
        for layer in model.model.layers:
            layer.mlp = Experts(layer.mlp, mesh["ep"].get_group())
            fully_shard(layer, mesh=mesh["dp"])
        return train(model, mesh["dp"])


def pipeline() -> Trace:
    """Four stages of a pipeline and eight microbatches, all ranks."""
    traces = []
    for rank in range(4):
        with dsexplore.simulate(mesh="pp=4", rank=rank) as mesh, dsexplore.commtrace(costs=True) as trace:
            block = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
            example = (torch.ones(2, 256, requires_grad=True),)
            stage = PipelineStage(block, rank, 4, torch.device("cpu"), example, example, group=mesh.get_group())
            schedule = Schedule1F1B(stage, 8, loss_fn=nn.MSELoss())
            given = (torch.ones(16, 256),) if rank == 0 else ()
            schedule.step(*given, **({"target": torch.ones(16, 256)} if rank == 3 else {}))
        traces.append(trace)
    return Trace.merge(traces)


def replicated() -> DistributedDataParallel:
    """A small model under DDP, after the step by which DDP settles its buckets."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    model(torch.ones(8, 512)).sum().backward()
    return model


def replica(folder: str) -> None:
    """What each rank of `real_ddp` does: three steps, of which rank 2 begins late."""
    model = replicated()
    with dsexplore.commtrace(save=folder) as trace:
        for _ in range(3):
            time.sleep(0.4 if dist.get_rank() == 2 else 0)
            model(torch.ones(8, 512)).sum().backward()
            trace.step()


def real_ddp() -> Trace:
    """DDP on four processes with a gloo group, measured."""
    with tempfile.TemporaryDirectory() as folder:
        dsexplore.run_ranks(replica, 4, args=(folder,)).check()
        return dsexplore.load(folder)


def predicted_ddp() -> Prediction:
    """A step of `real_ddp`, predicted for processes of one machine."""
    with dsexplore.simulate(4, hardware="cpu"):
        model = replicated()
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.ones(8, 512)).sum().backward()
    return trace.predict("gloo-local")


def nothing() -> Trace:
    """A program that computes and sends nothing."""
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        nn.Linear(4, 4)(torch.ones(2, 4))
    return trace


def log() -> Any:
    """What the log of communication calls shows."""
    kept = CommsLogger(CommsLoggerConfig(enabled=True), epoch=0)
    for number in range(40):
        kept.append("all_reduce", "all_reduce", 4.0 + number % 7, 8_000_000 << (number % 3), group_size=8)
        kept.append("all_gather", "all_gather_into_tensor", 2.0 + number % 3, 1_000_000, group_size=8)
    kept.append("barrier", "barrier", latency=0.5, msg_size=0, group_size=8)
    return kept.summary()


def sweep(folder: str) -> SweepResult:
    """A small sweep of the disk under ``folder``."""
    from dsexplore import aio

    return aio.sweep(
        folder, "32MiB", 12, queue_depth=[2, 8], block_size=[1 << 18, 1 << 20], thread_count=[1, 2],
        single_submit=[False], overlap_events=[True], progress=False,
    )  # fmt: skip


def plan(mesh: str = "dp=2,tp=4") -> Any:
    """Where the parameters of some Llama layers lie."""
    held: dict[str, Any] = {"tok_embeddings.weight": ((128256, 4096), "_S(0, 4), S(0)")}
    for layer in range(4):
        held |= {
            f"layers.{layer}.attention.wq.weight": ((4096, 4096), "_S(0, 4), S(0)"),
            f"layers.{layer}.attention.wo.weight": ((4096, 4096), "S(0), S(1)"),
            f"layers.{layer}.attention_norm.weight": ((4096,), "S(0), R"),
        }
    return dsexplore.sharding(held, mesh=mesh, dtype="bfloat16")


def one_step(mesh: DeviceMesh) -> Callable[[], None]:
    """A Llama of four layers on a mesh with the axes dp and tp."""
    shape = demo.Shape(layers=4, dim=2048, heads=16, kv_heads=4, hidden=5632, vocabulary=32000)
    model = sharded_llama(mesh, shape)
    tokens = torch.randint(32000, (4, 2049))
    return lambda: demo.train_step(model, tokens)


def meshes() -> MeshComparison:
    """The meshes of 8 ranks, of which one leaves heads over."""
    return compare_meshes(one_step, 8, axes=("dp", "tp"))


def views(folder: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, what makes it) of everything that is drawn; what several need is made once, when it is first needed."""
    made: dict[str, Any] = {}

    def of(name: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "llama": llama, "mixtral": mixtral, "pipeline": pipeline, "ddp": real_ddp,
            "meshes": meshes, "wide llama": lambda: llama(4, hidden_size=1024), "sweep": lambda: sweep(folder),
            "64 ranks": lambda: llama(2, "dp=8,tp=8"), "2,000 modules": lambda: traces.layered(650), "nothing": nothing,
            "long names": lambda: traces.of_names([f"{'a_long_name_' * 8}{i}" for i in range(4)]),
        }  # fmt: skip
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
    yield "predicted beside measured", lambda: (predicted_ddp(), {"measured": of("ddp")})
    yield "mesh choice", lambda: of("meshes")
    yield "communication sweep", lambda: CommSweep.load(ROOT / "benchmarks" / "data" / "gloo-2.json")
    yield "sharding", lambda: dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")
    yield "sharding of a model", plan
    yield "sharding on 16,384 ranks", lambda: dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8")
    yield "redistribution", lambda: dsexplore.sharding((16, 8), "S(0), R", "dp=2,tp=4").redistribute("R, S(1)")
    yield "log", log
    yield "sweep", lambda: of("sweep")


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
