"""The path for tests in this folder and below to import ``small_models``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
