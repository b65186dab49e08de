"""Write the page of the commands and of the magic, from their own help."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from dsexplore._internal.cli import COMMANDS, main


def write_commands(file: Path) -> None:
    """Write the page."""
    os.environ["COLUMNS"] = "100"
    parts = [
        f"## dsexplore {name}\n\n{command.help[0].upper()}{command.help[1:]}.\n\n{_help(name)}"
        for name, command in COMMANDS.items()
    ]
    parts.append(f"## %%commtrace\n\n```text\n{_magic_help()}\n```")
    file.write_text("# Commands and the magic\n\n" + "\n\n".join(parts) + "\n", encoding="utf-8")


def _help(name: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([name, "--help"])
    return f"```text\n{printed.getvalue().strip()}\n```"


def _magic_help() -> str:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        shell.run_cell("%load_ext dsexplore\n%commtrace -h")
    return printed.getvalue().strip()
