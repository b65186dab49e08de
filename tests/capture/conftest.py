"""Lets the tests in this folder and below import ``small_models``: pytest's import mode puts no folder on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
