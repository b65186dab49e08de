"""The site: ``make docs`` builds it from these pages, the notebooks as they ran, and the docstrings."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from accessible_pages import mend_pages  # noqa: E402
from column_pages import write_columns  # noqa: E402
from command_pages import write_commands  # noqa: E402
from reference_pages import write_reference  # noqa: E402

import dsexplore  # noqa: E402

project = "dsexplore"
author = "The dsexplore developers"
release = version = dsexplore.__version__
html_title = f"dsexplore {release}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "pictures.py", "features.py"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks as they ran: nbval has compared their outputs
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "myst.header"]

default_role = "code"  # docstrings write `name` for code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # types of torch, polars and plotly have no pages here

html_theme = "furo"
html_static_path = ["look"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "look" / "search_scorer.js")  # Sphinx reads it relative to where it is called
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


# Where the notebooks of a folder stand on the site, beside the folders that keep their place.
_NOTEBOOKS = {HERE.parent / "notebooks": HERE / "tutorials", HERE.parent / "notebooks" / "lessons": HERE / "lessons"}


def _copy_notebooks(source: Path, folder: Path) -> None:
    """Copy the notebooks of a folder to the site; their relative links lead to the same files from there."""

    def site_link(link: re.Match[str]) -> str:
        target = (source / link[1]).resolve()
        if not target.is_file():
            return link[0]
        on_site = _NOTEBOOKS.get(target.parent, target.parent) / target.name
        return f"]({os.path.relpath(on_site, folder)}{link[2]}"

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for notebook in sorted(source.glob("*.ipynb")):
        text = re.sub(r"\]\(([\w./-]+\.(?:ipynb|md))(\)|#)", site_link, notebook.read_text(encoding="utf-8"))
        (folder / notebook.name).write_text(text, encoding="utf-8")


for _source, _folder in _NOTEBOOKS.items():
    _copy_notebooks(_source, _folder)
write_reference(HERE / "reference" / "api")
write_columns(HERE / "reference" / "columns.md")
write_commands(HERE / "reference" / "commands.md")


_sentences: dict[str, list[str]] = {}


def _keep_sentence(_app, what: str, name: str, _value, _options, lines: list[str]) -> None:
    """Keep a short docstring of an attribute, which napoleon would cut at its first colon into a type and a meaning."""
    if what in ("attribute", "property", "data") and "" not in lines[:-1]:
        _sentences[name] = list(lines)


def _restore_sentence(_app, _what: str, name: str, _value, _options, lines: list[str]) -> None:
    lines[:] = _sentences.pop(name, lines)


def _mend_pages(app, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        mend_pages(Path(app.outdir))


def setup(app) -> None:
    """Register what stands before and after napoleon, whose own priority is 500."""
    app.connect("autodoc-process-docstring", _keep_sentence, priority=400)
    app.connect("autodoc-process-docstring", _restore_sentence, priority=600)
    app.connect("build-finished", _mend_pages)
