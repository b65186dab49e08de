"""Printing to a pipe whose reader has closed it raises no error."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_program_goes_on_and_ends_well_without_its_reader() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from dsexplore._internal.output import print_result as p; "
    program += "p('one'); p('two'); sys.stderr.write('end')"
    done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"end")
