"""Run the notebooks and store their outputs, without what differs from run to run. Usage: make notebooks

After a change to a view the stored outputs are old, and ``pytest --nbval`` says so: run this, and look at the diff.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
CELL_FILE = re.compile(r"/[\w/.-]*ipykernel_\d+/\d+\.py")
"""The file that a kernel compiles a cell under, as processes of ranks name it: another one in each run."""


def run(path: Path) -> None:
    """Execute a notebook in its folder and write it back.

    Raises:
        CellExecutionError: a cell failed; the file stays as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    text = nbformat.writes(notebook)
    path.write_text(CELL_FILE.sub("cell.py", text).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["DSEXPLORE_PROGRESS"] = "0"  # how long a cell takes must not show in its output
    chosen = [Path(name) for name in sys.argv[1:]] or sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("lessons/*.ipynb")])
    for notebook_path in chosen:
        print(notebook_path)
        run(notebook_path.resolve())
