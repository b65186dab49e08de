"""``dsexplore run | lab | demo | show | hang | aio | loading | checkpoint | offload | feeding | comm``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

import dsexplore
from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import TraceFileError, UsageError, full_message
from dsexplore._internal.hardware import DEFAULT
from dsexplore._internal.near_names import options_meant
from dsexplore._internal.output import check_output, print_result
from dsexplore._internal.paused_collector import no_collection

if TYPE_CHECKING:
    from dsexplore._internal.trace.trace import Trace
    from dsexplore._internal.worlds.scripts.run_as_rank import Setting

TOUR = "01_first_trace.ipynb"

Start = Callable[[list[str]], None]
"""Replaces the process by a command line."""


@dataclass(frozen=True)
class Command:
    """One subcommand."""

    help: str
    """Its line in ``dsexplore --help``."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds its options to its parser."""
    run: Callable[[argparse.Namespace], int | None]
    """Runs it, and returns its exit status; None is 0."""


def _command_of(text: str, module: str, add_arguments: str = "add_arguments", run: str = "run") -> Command:
    """Return the subcommand of two functions of a module, which is imported when the subcommand is used.

    So the help of ``dsexplore`` appears at once: many of these modules import torch.

    Args:
        text: help line.
        module: full name of the module.
        add_arguments: name of the function that adds the options to a parser.
        run: name of the function that runs the subcommand.
    """
    return Command(
        text,
        lambda parser: getattr(import_module(module), add_arguments)(parser),
        lambda options: getattr(import_module(module), run)(options),
    )


_DISK_COMMANDS = "dsexplore._internal.aio.disk_commands"


class _CommandParser(argparse.ArgumentParser):
    """A parser whose errors end with a hint; subcommands use it too."""

    def error(self, message: str) -> NoReturn:
        super().error(message + options_meant(message, self._option_string_actions))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status: 0, or 2 for bad input.

    Args:
        argv: command line without the program's name; None for that of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _CommandParser(prog="dsexplore", description="See what a distributed PyTorch program does.")
    parser.add_argument("--version", action="version", version=f"dsexplore {dsexplore.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = parser
    for name, command in COMMANDS.items():
        # With abbreviations, argparse would take some of a script's own arguments for options of ours.
        subparser = commands.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        if arguments[:1] == [name]:  # the modules of other commands are not imported
            chosen = subparser
            command.add_arguments(chosen)
    options, unknown = parser.parse_known_args(arguments)
    if unknown and options.command != "lab":
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.unknown = unknown
    try:
        check_output("--html", getattr(options, "html", None))
        return COMMANDS[options.command].run(options) or 0
    except (UsageError, TraceFileError, FileNotFoundError) as error:  # the last for a path on the command line
        print(f"dsexplore {options.command}: {full_message(error)}", file=sys.stderr)
        return 2


def _lab_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Other arguments go to JupyterLab: dsexplore lab --no-browser"


def _lab(options: argparse.Namespace) -> None:
    open_lab(options.unknown)


def open_lab(arguments: list[str], start: Start | None = None) -> None:
    """Replace this process by JupyterLab, with the user's copy of the tour notebook open.

    Args:
        arguments: arguments of JupyterLab.
        start: function that replaces the process; None for `os.execv`.

    Raises:
        UsageError: JupyterLab is not installed, or the copies cannot be written.
    """
    if find_spec("jupyterlab") is None:
        raise UsageError("JupyterLab is not installed: pip install 'dsexplore[lab]'")
    notebook = tour(Path.cwd())
    print(f"the tutorials are in {notebook.parent}; you may change them, and delete one to get a new copy")
    shown = [f"--ServerApp.root_dir={notebook.parent}", f"--LabApp.default_url=/lab/tree/{notebook.name}"]
    command = [sys.executable, "-m", "jupyterlab", *shown, *arguments]
    if os.geteuid() == 0 and "--allow-root" not in arguments:
        command.append("--allow-root")  # containers have only this user; Jupyter still asks for its token
    (start or _replace_process)(command)


def _replace_process(command: list[str]) -> None:
    sys.stdout.flush()
    os.execv(command[0], command)


def tour(folder: Path) -> Path:
    """Copy the tutorials for the user, keeping existing copies, and return the path of the tour notebook.

    Args:
        folder: folder in which to create ``dsexplore-notebooks``; the home directory if it is inside our source tree.

    Raises:
        UsageError: the copies cannot be written.
    """
    package = Path(dsexplore.__file__).resolve().parent
    sources, originals = package.parent, package / "notebooks"
    if (sources / "pyproject.toml").exists() and (sources / "notebooks" / TOUR).exists():
        originals = sources / "notebooks"
        if folder.resolve().is_relative_to(sources):
            folder = Path.home()
    copies = folder / "dsexplore-notebooks"
    try:
        for notebook in sorted([*originals.glob("*.ipynb"), *originals.glob("lessons/*.ipynb")]):
            copy = copies / notebook.relative_to(originals)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copyfile(notebook, copy)
    except OSError as error:
        raise UsageError(
            f"the tutorials cannot be copied to {copies} ({error}): start in a folder that you may write to"
        ) from error
    return copies / TOUR


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="dp=2,tp=4", help="axes dp and tp of the simulated world (%(default)s)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report there")


def _demo(options: argparse.Namespace) -> None:
    """Trace one step of the demo, and report it."""
    import torch

    from dsexplore._internal.mesh import parse_mesh
    from dsexplore._internal.worlds import demo
    from dsexplore._internal.worlds.commtrace import commtrace
    from dsexplore._internal.worlds.simulate import simulate

    if parse_mesh(options.mesh).axes != ("dp", "tp"):
        raise UsageError(f"--mesh {options.mesh}: the demo shards over the axes dp and tp: write it like dp=2,tp=4")
    shape, tp = demo.Shape(), parse_mesh(options.mesh).shape[1]
    if shape.kv_heads % tp:
        raise UsageError(
            f"--mesh {options.mesh}: the demo's {shape.heads} heads and {shape.kv_heads} key-value heads do not divide "
            f"among {tp} ranks: give tp=1, tp=2 or tp=4; dp may be any number"
        )
    with simulate(mesh=options.mesh) as mesh:
        torch.manual_seed(0)
        model = demo.Llama()
        demo.shard_tensors(model, mesh["tp"])
        demo.shard_parameters(model, mesh["dp"])
        with warnings.catch_warnings(), commtrace() as trace:
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # its logits are a view, and not written to
            demo.train_step(model, torch.randint(256, (2, 33)))
    _report(trace, options.html)


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", help="a trace file, a folder that commtrace(save=…) wrote, profiler traces or flight-recorder dumps"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report there")


def _show(options: argparse.Namespace) -> None:
    _report(dsexplore.load(options.path), options.html)


def _report(trace: Trace, html: Path | None) -> None:
    """Print a trace as text, and write its page to `html` if given."""
    print_result(plain_text(trace))
    if html is not None:
        print(f"wrote {trace.to_html(html)}")


def _hang_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        help="a folder or files: flight-recorder dumps, or what commtrace(save=…) wrote; or, of a job that hangs, the "
        "address of torch's debug server, http://HOST:25999",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report there")


def _hang(options: argparse.Namespace) -> None:
    report = dsexplore.explain_hang(options.paths)
    print_result(json.dumps(report.to_dict(), indent=2) if options.json else plain_text(report))
    if options.html is not None:
        print(f"wrote {report.to_html(options.html)}", file=sys.stderr)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``dsexplore run``, with those for ``--predict``, which belong to a higher floor."""
    from dsexplore._internal.cost.kernels.compute import Attention
    from dsexplore._internal.worlds.scripts.run_options import add_arguments

    add_arguments(parser)
    parser.add_argument(
        "--async-tp",
        action="store_true",
        help="with --predict: collectives of tensor parallelism run in pieces beside their products",
    )
    parser.add_argument(
        "--attention",
        choices=get_args(Attention),
        help="with --predict: whose attention kernels run (default: flash-2)",
    )


def _run(options: argparse.Namespace) -> int:
    """Run a script; for several ranks, start the server of their processes first."""
    if options.ranks is None:
        return _run_script(options)
    from dsexplore._internal.worlds.real import server_handle

    server_handle.start()  # ranks are forked from it; it imports torch while this process does
    try:
        return _run_script(options)
    except UsageError:
        server_handle.close()
        raise


def _run_script(options: argparse.Namespace) -> int:
    """Trace a script, and print the predicted step if asked for."""
    with no_collection():  # the import of torch creates 300,000 lasting objects; collections take a tenth of its time
        from dsexplore._internal.worlds.scripts.run_command import run

    if not options.predict:
        for name in ("async_tp", "attention"):
            if getattr(options, name):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is an option of a predicted step: give --predict too")
        return run(options)
    from dsexplore._internal.cost.cluster import Cluster

    cluster = Cluster.load(options.hardware or DEFAULT)  # an unknown name raises before the script runs

    def show_prediction(trace: Trace, setting: Setting) -> None:
        """Print the predicted step of a trace, if anything was computed."""
        if trace.tables.kernels.is_empty():
            print("nothing was computed, so no step is predicted", file=sys.stderr)
            return
        prediction = trace.predict(
            cluster,
            ranks_per_node=setting.ranks_per_node,
            async_tp=options.async_tp,
            attention=options.attention or "flash-2",
        )
        print_result(plain_text(prediction))

    return run(options, show_more=show_prediction)


COMMANDS = {
    "run": Command("trace an unmodified training script on simulated ranks", _run_arguments, _run),
    "lab": Command("open JupyterLab on the tour notebook", _lab_arguments, _lab),
    "demo": Command("trace one step of a small Llama on simulated ranks", _demo_arguments, _demo),
    "show": Command("show a saved trace", _show_arguments, _show),
    "hang": Command("say why a job hangs, and which ranks cause it", _hang_arguments, _hang),
    "aio": _command_of("measure how fast the disk can feed a program", "dsexplore._internal.aio.command"),
    "loading": _command_of(
        "measure how fast a checkpoint loads, and say what to change",
        _DISK_COMMANDS,
        add_arguments="add_loading_arguments",
        run="run_loading",
    ),
    "checkpoint": _command_of(
        "predict size and time of a model's checkpoints on a disk",
        _DISK_COMMANDS,
        add_arguments="add_checkpoint_arguments",
        run="run_checkpoint",
    ),
    "offload": _command_of(
        "predict how states on a disk slow down a step",
        _DISK_COMMANDS,
        add_arguments="add_offload_arguments",
        run="run_offload",
    ),
    "feeding": _command_of(
        "measure how fast a data loader is, and what limits it",
        _DISK_COMMANDS,
        add_arguments="add_feeding_arguments",
        run="run_feeding",
    ),
    "comm": _command_of("measure how fast the collectives of some ranks are", "dsexplore._internal.cost.comm_command"),
}
