"""Trace a script on a real rank: ``torchrun on_each_rank.py FOLDER script.py args…``."""

import runpy
import sys
from pathlib import Path

import dsexplore

folder, *sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
with dsexplore.commtrace(save=folder):
    runpy.run_path(sys.argv[0], run_name="__main__")
