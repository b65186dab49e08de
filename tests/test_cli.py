"""The command ``dsexplore`` runs its subcommands ``lab``, ``demo``, ``show`` and ``aio``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal import cli
from dsexplore._internal.errors import UsageError, page_of
from dsexplore._internal.worlds.simulate import simulate
from tests.programs import python


def test_demo_prints_the_trace_and_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    assert cli.main(["demo", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {page}" in printed
    html = page.read_text()
    assert html.lstrip().lower().startswith("<!doctype html>")
    for word in ("Llama", "all_reduce", "all_gather", "reduce_scatter", "tp", "dp"):
        assert word in html
    assert "://" not in html.replace("http://www.w3.org/", "")


def test_demo_says_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert cli.main(["demo"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--mesh", "tp=4"], "shards over the axes dp and tp"),
        (["demo", "--mesh", "dp=2;tp=4"], "is not AXIS=RANKS"),
        (["demo", "--mesh", "dp=3,tp=5"], "8 heads and 4 key-value heads do not divide among 5 ranks: give tp=1"),
        (["demo", "--mesh", "dp=2,tp=8"], "do not divide among 8 ranks"),
        (["demo", "--html", "no/such/folder/out.html"], "there is no folder no/such/folder"),
        (["show", "no-such-trace"], "no-such-trace"),
        (["show", "no-such-trace", "--html", "no/such/folder/out.html"], "there is no folder no/such/folder"),
        (["hang", "no-such-folder", "--html", "no/such/folder/out.html"], "there is no folder no/such/folder"),
        (["loading", "no-such-folder", "--html", "no/such/folder/out.html"], "there is no folder no/such/folder"),
    ],
)
def test_bad_input_is_one_line_with_an_address_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith(f"dsexplore {arguments[0]}: ")
    assert printed.err.removesuffix(f"{page_of(UsageError)}\n").count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"dsexplore {dsexplore.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["demo", "--nothing"]])
def test_bad_usage_is_argparses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: dsexplore" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0
    assert "usage: dsexplore" in capsys.readouterr().out


def test_show_shows_a_saved_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    import torch.distributed as dist

    with simulate(4), dsexplore.commtrace(save=tmp_path / "run") as trace:
        dist.all_reduce(torch.ones(8))
    assert cli.main(["show", str(tmp_path / "run"), "--html", str(tmp_path / "run.html")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(trace._repr_mimebundle_()["text/plain"])
    assert "all_reduce" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "work"),
    [
        (["demo"], "dsexplore._internal.worlds.simulate.simulate"),
        (["show", "run"], "dsexplore.load"),
        (["hang", "run"], "dsexplore.explain_hang"),
        (["run", "--world-size", "2", "train.py"], "dsexplore._internal.cli._run_script"),
        (["aio", "folder"], "dsexplore._internal.aio.command.run"),
        (["comm", "--real", "2"], "dsexplore._internal.cost.comm_command.run"),
    ],
)
def test_the_folder_of_the_page_is_looked_for_before_the_work(
    arguments: list[str], work: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(*_arguments: object, **_named: object) -> None:
        pytest.fail(f"{work} was called")

    monkeypatch.setattr(work, begin)
    command, *rest = arguments
    assert cli.main([command, "--html", "no/folder/page.html", *rest]) == 2
    assert "--html no/folder/page.html: there is no folder no/folder" in capsys.readouterr().err


class TestLab:
    def test_starts_jupyterlab_on_a_copy_of_the_tour(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        started: list[list[str]] = []
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        monkeypatch.chdir(tmp_path)
        cli.open_lab(["--no-browser"], started.append)
        (command,) = started
        assert command[:3] == [sys.executable, "-m", "jupyterlab"]
        assert command[4:] == [f"--LabApp.default_url=/lab/tree/{cli.TOUR}", "--no-browser"]
        folder = Path(command[3].removeprefix("--ServerApp.root_dir="))
        assert folder == tmp_path / "dsexplore-notebooks"
        assert (folder / cli.TOUR).exists()
        assert f"the tutorials are in {folder}" in capsys.readouterr().out

    def test_never_opens_the_clones_own_notebooks(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        clone = Path(dsexplore.__file__).resolve().parents[1]
        monkeypatch.setattr(Path, "home", lambda: tmp_path)
        for folder in (clone, clone / "notebooks", clone / "docs"):
            copy = cli.tour(folder)
            assert copy == tmp_path / "dsexplore-notebooks" / cli.TOUR
            for folder_of_copies in (copy.parent, copy.parent / "lessons"):
                originals = clone / "notebooks" / folder_of_copies.relative_to(copy.parent)
                copied = {path.name for path in folder_of_copies.glob("*.ipynb")}
                assert copied == {path.name for path in originals.glob("*.ipynb")} != set()
        assert not (clone / "dsexplore-notebooks").exists()

    def test_says_where_the_copies_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "dsexplore-notebooks").write_text("a file of that name")
        with pytest.raises(UsageError, match=r"cannot be copied to .*dsexplore-notebooks .*: start in a folder"):
            cli.tour(tmp_path)

    def test_as_root_asks_jupyter_to_allow_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        started: list[list[str]] = []
        monkeypatch.setattr("os.geteuid", lambda: 0)
        cli.open_lab([], started.append)
        assert started[0][-1] == "--allow-root"

    def test_installed_from_a_wheel_copies_the_notebooks_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        installed = tmp_path / "site-packages" / "dsexplore"
        (installed / "notebooks").mkdir(parents=True)
        (installed / "notebooks" / cli.TOUR).write_text("{}")
        monkeypatch.setattr(dsexplore, "__file__", str(installed / "__init__.py"))
        here = tmp_path / "here"
        here.mkdir()
        first = cli.tour(here)
        assert first == here / "dsexplore-notebooks" / cli.TOUR
        first.write_text("mine")
        assert cli.tour(here).read_text() == "mine"

    def test_a_misspelt_option_names_the_one_that_was_meant(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            cli.main(["run", "--worldsize", "8", "train.py"])
        assert "--worldsize (did you mean --world-size?)" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            cli.main(["demo", "--htlm", "out.html"])
        assert "(did you mean --html?)" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            cli.main(["run", "--world-size", "eight", "train.py"])
        assert "'eight' (give a whole number, such as --world-size 8)" in capsys.readouterr().err

    def test_without_jupyterlab_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"pip install 'dsexplore\[lab\]'"):
            cli.open_lab([])


def test_is_installed_as_a_command() -> None:
    done = python("import sys; from dsexplore._internal.cli import main; sys.exit(main(['show', 'nothing']))")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
