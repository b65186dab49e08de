"""Run the lines of docs/cluster.md for torchrun on two hosts as they stand there: two network namespaces are the hosts.

Run by hand, as root on Linux, since namespaces need it: ``python tests/two_hosts.py``. A third namespace is the host of
the notebook. All three see one folder for ipyparallel's connection files, as with a home directory that hosts share,
and find each other by name over a bridge of their own. Cells run, a host loses its engines, its lines are started
again, and the next cell goes on. Namespaces and processes are gone afterwards.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cluster.md"
HOSTS = {
    "dsx-notebook": ("notebook", "10.77.0.1"),
    "dsx-node0": ("node0", "10.77.0.2"),
    "dsx-node1": ("node1", "10.77.0.3"),
}
"""By namespace: the name of the host, and its address."""
CELLS = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "dsexplore")
print("connected", flush=True)
for given in sys.stdin:
    options, _, body = given.rstrip("\\n").partition("|")
    result = shell.run_cell("%%commtrace " + options + "\\n" + body.replace(";;", "\\n"))
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        trace = shell.user_ns["_trace"]
        events = trace.events.group_by("op", "axis", maintain_order=True).len().rows()
        print("values:", trace.results)
        print("events:", events)
        print("clock offsets, ns:", trace.info.clock_offsets, flush=True)
    print("failed:" if error is not None else "done", error or "", flush=True)
"""
"""A notebook: each line of its input is a cell, ``options|body``."""
OPEN = "--profile two --backend gloo --mesh dp=2,tp=4"
FIRST = (
    "import socket, torch, torch.distributed as dist;;x = torch.ones(4) * rank;;"
    "dist.all_reduce(x, group=mesh['tp'].get_group());;dist.all_reduce(x);;"
    "(socket.gethostname(), rank, x[0].item())"
)
AGAIN = "dist.all_reduce(x);;x[0].item()"


def run(*command: str) -> None:
    """Run a command to its end.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run(command, check=True)


@contextmanager
def hosts() -> Iterator[None]:
    """Three network namespaces on one bridge, each with its own host name, which the others can look up."""
    with ExitStack() as made:
        names = "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in HOSTS.values())
        for number, (space, (_, address)) in enumerate(HOSTS.items()):
            run("ip", "netns", "add", space)
            made.callback(run, "ip", "netns", "del", space)
            made.callback(stop, space)
            files = Path("/etc/netns", space)
            files.mkdir(parents=True)
            made.callback(shutil.rmtree, files)
            (files / "hosts").write_text(names)
            run("ip", "-n", space, "link", "set", "lo", "up")
            if number == 0:
                run("ip", "-n", space, "link", "add", "bridge", "type", "bridge")
                run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "bridge")
                run("ip", "-n", space, "link", "set", "bridge", "up")
            else:
                first, port = next(iter(HOSTS)), f"port{number}"
                run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", first)
                run("ip", "-n", first, "link", "set", port, "master", "bridge", "up")
                run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                run("ip", "-n", space, "link", "set", "eth0", "up")
        yield


def lines_of(section: str) -> list[str]:
    """Return the shell lines of a section of the page, in order."""
    text = PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith(("ipcontroller", "torchrun"))]


def start(space: str, line: str, folder: Path, **pipes: int) -> subprocess.Popen[str]:
    """Start a shell line on a host, in a session of its own."""
    host = HOSTS[space][0]
    command = ["ip", "netns", "exec", space, "unshare", "--uts", "bash", "-c", f"hostname {host} && exec {line}"]
    environment = {
        **os.environ,
        "IPYTHONDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)


def stop(space: str) -> None:
    """End every process of a host, as its loss does: torchrun gives its workers sessions of their own."""
    found = subprocess.run(["ip", "netns", "pids", space], check=True, capture_output=True, text=True).stdout
    for process in map(int, found.split()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Notebook:
    """A notebook on the first host."""

    def __init__(self, folder: Path) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        program = f"{sys.executable} -c {shlex.quote(CELLS)}"
        self.process = start("dsx-notebook", program, folder, **pipes)
        self.until("connected")

    def cell(self, body: str, options: str = OPEN) -> list[str]:
        """Run a cell, and print what it showed."""
        assert self.process.stdin is not None
        print(f"\n%%commtrace {options}", *body.split(";;"), sep="\n", flush=True)
        self.process.stdin.write(f"{options}|{body}\n")
        self.process.stdin.flush()
        return self.until("done", "failed:")

    def until(self, *ends: str) -> list[str]:
        """Return the lines up to one that begins so."""
        assert self.process.stdout is not None
        found = []
        for line in self.process.stdout:
            if re.match(r"values|events|clock|done|failed", line):
                print("   ", line.rstrip(), flush=True)
            found.append(line)
            if line.startswith(ends):
                return found
        raise SystemExit("the notebook has ended")


class Site:
    """The hosts, the folder that all of them see, and what was started on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def launch(self, space: str, line: str) -> subprocess.Popen[str]:
        """Print a shell line, and start it on a host."""
        print(f"{HOSTS[space][0]}$ {line}", flush=True)
        self.started.append(start(space, line, self.folder))
        return self.started[-1]

    def notebook(self) -> Notebook:
        """Start the notebook."""
        notebook = Notebook(self.folder)
        self.started.append(notebook.process)
        return notebook


@contextmanager
def site(name: str) -> Iterator[Site]:
    """Yield the hosts with a folder of that name; afterwards hosts, processes and folder are gone."""
    folder = Path(tempfile.mkdtemp(prefix=f"dsexplore-{name}-"))
    made = Site(folder)
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        opened.callback(lambda: [process.wait() for process in made.started])
        opened.enter_context(hosts())
        yield made


def engines(folder: Path, notebook: Notebook, count: int, options: str = OPEN) -> None:
    """Wait until that many engines answer."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if notebook.cell("rank", options)[-1].startswith("done"):
            return
        time.sleep(3)
    raise SystemExit(f"fewer than {count} engines within 300 s: see {folder}")


def main() -> None:
    """Run it all, and fail where a cell does."""
    controller, *launches = lines_of("torchrun, two hosts")
    nodes = ("dsx-node0", "dsx-node1")
    with site("two-hosts") as opened:
        opened.launch("dsx-notebook", controller)
        file = opened.folder / "profile_two" / "security" / "ipcontroller-engine.json"
        while not file.exists():
            time.sleep(0.5)
        for space, line in zip(nodes, launches, strict=True):
            opened.launch(space, line)
        notebook = opened.notebook()
        engines(opened.folder, notebook, 8)
        shown = notebook.cell(FIRST)
        if not any("('node1', 4, 112.0)" in line for line in shown):
            raise SystemExit("rank 4 is not on node1, or the sum is another than 4 × 28")
        print("\nnode1 is lost, with its four engines; its job is ended and started again", flush=True)
        stop("dsx-node1")
        if notebook.cell(AGAIN)[-1].startswith("done"):
            raise SystemExit("a cell ran on all ranks without those of node1")
        stop("dsx-node0")
        for space, line in zip(nodes, launches, strict=True):
            opened.launch(space, line)
        engines(opened.folder, notebook, 8)
        if not notebook.cell(FIRST)[-1].startswith("done"):
            raise SystemExit("no cell runs after the engines were started again")
        notebook.cell(AGAIN)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # namespaces and processes are gone then, too
    main()
