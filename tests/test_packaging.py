"""Declared versions, extras and files are those that are tested, and nothing names a machine.

Modules: ``dsexplore/``.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dsexplore
from dsexplore._internal.errors import SITE
from dsexplore._internal.torch_internals import names

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/lessons/*.ipynb")])
CONDA_NAMES = {"torch": "pytorch"}
MODULES = ("comm", "aio", "cost", "lessons", "sharding")
"""The modules that users import beside the package itself."""


def pins() -> dict[str, Version]:
    """``constraints.txt`` by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def tracked_files() -> list[Path]:
    """Return all text that is part of the project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.fail("not a git checkout: run the tests from one")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_a_bare_install_needs_few_packages() -> None:
    assert {r.name for r in DEPENDENCIES} <= {
        "torch", "numpy", "polars", "plotly", "ipywidgets", "anywidget", "msgspec", "jinja2",
    }  # fmt: skip
    assert {"lab", "ranks", "test", "dev"} <= EXTRAS.keys()


def test_constraints_fit_every_declared_range() -> None:
    pinned = pins()
    for requirement in [*DEPENDENCIES, *(r for extra in EXTRAS.values() for r in extra)]:
        if requirement.name != "dsexplore":
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


def test_the_declared_range_of_torch_is_the_tested_one() -> None:
    (declared,) = [r for r in DEPENDENCIES if r.name == "torch"]
    assert Version(Version(torch.__version__).base_version) == pins()["torch"]
    assert pins()["torch"] in declared.specifier
    assert str(declared.specifier) == f">={names.OLDEST}", "a floor that is tested, and no cap"
    (newest,) = (ROOT / "tests" / "requirements-newest-torch.txt").read_text().splitlines()[1:]
    assert newest.startswith(f"torch=={names.NEWEST}.")


def test_pip_takes_each_python_that_is_declared() -> None:
    declared = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert {"3.11", "3.12", "3.13"} <= declared
    assert PROJECT["requires-python"] == ">=3.11"


def test_everything_installed_for_the_tests_is_pinned() -> None:
    wanted, seen = {("dsexplore", ("dev", "ranks"))}, set()
    pinned = pins()
    while wanted:
        name, extras = wanted.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        lines = metadata.requires(name) if name != "dsexplore" else None
        requirements = [Requirement(line) for line in lines or []]
        if name == "dsexplore":
            requirements = [*DEPENDENCIES, *(r for extra in extras for r in EXTRAS[extra])]
        else:
            installed = Version(metadata.version(name))
            assert pinned.get(canonicalize_name(name)) == Version(installed.public), f"constraints.txt: {name}"
        for requirement in requirements:
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or ("",))):
                wanted.add((requirement.name, tuple(sorted(requirement.extras))))


def test_conda_has_the_same_versions() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    lines = [line for line in environment["dependencies"] if isinstance(line, str)]
    conda = {r.name: str(r.specifier) for r in map(Requirement, lines)}
    wanted = {CONDA_NAMES.get(r.name, r.name): str(r.specifier) for r in [*DEPENDENCIES, *EXTRAS["lab"]]}
    assert conda == {**wanted, "python": PROJECT["requires-python"], "pip": ""}
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}


def test_the_recipe_for_conda_agrees() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    run = {r.name: str(r.specifier) for r in map(Requirement, recipe["requirements"]["run"])}
    wanted = {CONDA_NAMES.get(r.name, r.name): str(r.specifier) for r in DEPENDENCIES}
    assert run == {**wanted, "python": PROJECT["requires-python"]}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    host = {r.name: str(r.specifier) for r in map(Requirement, recipe["requirements"]["host"])}
    builds = {r.name: str(r.specifier) for r in map(Requirement, build)}
    assert host == {"python": PROJECT["requires-python"], "pip": "", **builds}
    assert recipe["context"]["version"] == dsexplore.__version__
    (entry,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(entry)]
    about = {name: recipe["about"][name] for name in ("summary", "license", "documentation", "repository")}
    urls = PROJECT["urls"]
    assert [*about.values()] == [PROJECT["description"], PROJECT["license"], urls["Documentation"], urls["Source"]]
    assert set(recipe["tests"][0]["python"]["imports"]) == {"dsexplore", *(f"dsexplore.{m}" for m in MODULES)}


def test_links_of_the_metadata_are_those_of_the_errors() -> None:
    assert PROJECT["urls"].keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert PROJECT["urls"]["Documentation"] == SITE
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["url"], citation["repository-code"]) == (SITE, PROJECT["urls"]["Source"])
    assert citation["version"] == dsexplore.__version__


def test_a_release_is_checked_for_what_it_must_and_must_not_hold(tmp_path: Path) -> None:
    from tests import check_release

    assert next(check_release.faults(tmp_path)).endswith("not " + " and ".join(sorted(wanted_files())))
    wheel = tmp_path / f"dsexplore-{dsexplore.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("tests/conftest.py", "")
    found = list(check_release.faults(tmp_path))
    assert f"{wheel.name} has tests/conftest.py" in found
    assert f"{wheel.name} lacks dsexplore/py.typed" in found


def wanted_files() -> set[str]:
    """Return the names of a release's files."""
    return {f"dsexplore-{dsexplore.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")}


def test_the_package_is_typed_licensed_and_versioned() -> None:
    assert (ROOT / "dsexplore" / "py.typed").exists()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert f"## {dsexplore.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_compiled_at_first_use_is_packed(kind: str) -> None:
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    builder = {"wheel": WheelBuilder, "sdist": SdistBuilder}[kind](str(ROOT))
    packed = {Path(file.distribution_path) for file in builder.recurse_included_files()}
    sources = {path.relative_to(ROOT) for path in (ROOT / "dsexplore").rglob("*.c")}
    assert sources
    assert sources <= packed


@pytest.mark.parametrize("folder", ["dsexplore", "notebooks", "tests", "benchmarks"])
def test_the_layout(folder: str) -> None:
    assert any((ROOT / folder).iterdir())


def test_no_file_names_a_machine_or_a_registry_host() -> None:
    forbidden = re.compile(
        r"/(?:root|home|Users|work)/\w|py" r"pi\.org|pythonhosted|/opt/wh" r"eels|extra-index", re.ASCII
    )
    found = {}
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if match := forbidden.search(text):
            found[str(path.relative_to(ROOT))] = match.group()
    assert found == {} or found.keys() == {"tests/test_packaging.py"}, found


def test_notebooks_are_small_run_and_without_widget_state() -> None:
    import nbformat

    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert path.stat().st_size < 300_000, f"{path.name} is {path.stat().st_size} bytes"
        assert "widgets" not in notebook.metadata, path.name
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), f"{path.name}: run it in order"


def test_the_makefile_has_both_commands() -> None:
    for target, wanted in {"lab": "dsexplore lab", "test": "pytest --nbval"}.items():
        shown = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
        )
        assert wanted in shown.stdout
        assert "--constraint constraints.txt" in shown.stdout or (ROOT / ".venv" / f".{target}").exists()


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "docs/everything.md"])
def test_every_file_that_a_guide_names_is_there(guide: str) -> None:
    """Paths begin at the root, in `dsexplore/_internal`, or in the folder of the path before them."""
    quoted = re.findall(r"`([\w./-]+)`", (ROOT / guide).read_text(encoding="utf-8"))
    paths = [text for text in quoted if text.endswith(("/", ".py", ".md", ".txt", ".toml"))]
    folder, missing = ROOT, []
    for path in paths:
        place = next(
            (start / path for start in (ROOT, ROOT / "dsexplore" / "_internal", folder) if (start / path).exists()),
            None,
        )
        if place is None:
            missing.append(path)
        else:
            folder = place.parent
    assert paths
    assert not missing


def test_every_make_target_that_a_guide_names_is_there() -> None:
    guides = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "README.md"))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make (\w+)", guides, re.MULTILINE)) <= targets
