"""The frameworks are installed in an environment of their own: ``make frameworks`` sets it up and runs these tests."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent

sys.path.append(str(HERE))  # pytest's import mode puts no folder there
if "DSEXPLORE_FRAMEWORKS" not in os.environ:
    collect_ignore = ["test_frameworks.py", "test_deepspeed_log.py"]
else:
    # Where `make frameworks` has built DeepSpeed's extension, which it loads with the ninja of this environment.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    os.environ["TORCH_EXTENSIONS_DIR"] = str(HERE.parents[1] / "build" / "extensions")
