"""`MagicParser`: parses the options in the line of a magic."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import NoReturn

from IPython.core.error import UsageError as ShellUsageError

from dsexplore._internal.errors import UsageError, full_message
from dsexplore._internal.near_names import options_meant


class MagicParser(argparse.ArgumentParser):
    """A parser that raises an error where argparse would end the kernel.

    Args:
        name: name of the magic, without ``%%``.
        text: description of the magic.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(prog=f"%%{name}", description=text, formatter_class=_help_format, add_help=False)
        self._name = name
        self.add_argument("-h", "--help", action="store_true", help="print this text")

    def error(self, message: str) -> NoReturn:
        """Raise the error of a wrong line, which IPython shows without a traceback."""
        near = options_meant(message, self._option_string_actions)
        raise ShellUsageError(f"{self._name}: {message}{near}; %{self._name} -h lists the options")

    def run(self, line: str, run: Callable[[argparse.Namespace], object]) -> None:
        """Run a magic with the options of its line, or print its help.

        A `UsageError` of the magic is shown without a traceback; one that the user's cell raised keeps its traceback.

        Args:
            line: line of the magic, after its name.
            run: function that runs the magic, given the options.
        """
        options = self.parse_line(line)
        if options.help:
            print(self.format_help())
            return
        try:
            run(options)
        except UsageError as error:
            if type(error) is not UsageError or "_render_traceback_" in vars(error):
                raise  # the cell raised it
            raise ShellUsageError(f"{self._name}: {full_message(error)}") from None

    def parse_line(self, line: str) -> argparse.Namespace:
        """Return the options of a magic's line."""
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as error:
            self.error(f"{line!r} cannot be split into words ({error})")


def _help_format(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=20, width=118)
