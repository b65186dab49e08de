"""Run the batch script of docs/cluster.md for Slurm as it stands there: two network namespaces are the nodes.

Run by hand, as root on Linux with Debian's ``slurm-wlm`` and ``munge``: ``python tests/slurm_hosts.py``. A third
namespace is the login node, where slurmctld, ``sbatch`` and the notebook run; each node has a slurmd, and says that it
has four GPUs, as the script asks for them. Cells run on the engines of the job; then the job is cancelled. Namespaces
and processes are gone afterwards. See `two_hosts` for torchrun.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.two_hosts import FIRST, HOSTS, PAGE, engines, site, stop

LOGIN, *NODES = HOSTS
SETTINGS = """
ClusterName=two
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
GresTypes=gpu
"""


def batch_script() -> str:
    """Return the script of the page."""
    section = PAGE.read_text().partition("## Slurm")[2].partition("\n## ")[0]
    found = re.search(r"```\n(#!.*?)```", section, re.DOTALL)
    if found is None:
        raise SystemExit(f"{PAGE} has no batch script")
    return found[1]


def write_settings(folder: Path) -> Path:
    """Write Slurm's own files, for two nodes of four cores and four GPUs each."""
    login, address = HOSTS[LOGIN]
    text = SETTINGS.format(login=login, address=address, folder=folder)
    for host, at in (HOSTS[node] for node in NODES):
        text += f"NodeName={host} NodeAddr={at} CPUs=4 RealMemory=4000 Gres=gpu:4 State=UNKNOWN\n"
    text += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    file = folder / "slurm.conf"
    file.write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # else slurmd looks for one, though none is used
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
    for number in range(4):
        (folder / f"gpu{number}").touch()
    for name in ("state", *(f"spool-{HOSTS[node][0]}" for node in NODES)):
        (folder / name).mkdir()
    return file


def main() -> None:
    """Run it all, and fail where a cell does."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not found: apt-get install slurm-wlm munge")
    with site("slurm") as opened:
        folder = opened.folder
        settings = write_settings(folder)
        key = folder / "munge.key"
        key.write_bytes(bytes(range(128)))
        key.chmod(0o400)
        files = f"--key-file={key} --pid-file={folder}/munged.pid --seed-file={folder}/munged.seed"
        files += f" --log-file={folder}/munged.log -S {folder}/munge.socket"
        opened.launch(LOGIN, f"munged --foreground --force {files}")
        opened.launch(LOGIN, f"env SLURM_CONF={settings} slurmctld -D")
        for node in NODES:
            opened.launch(node, f"env SLURM_CONF={settings} slurmd -D -N {HOSTS[node][0]}")
        script = folder / "job.sh"
        script.write_text(batch_script())
        submit = f"until sbatch --output={folder}/job.log {script}; do sleep 1; done"
        opened.launch(LOGIN, f"env SLURM_CONF={settings} bash -c '{submit}'").wait(timeout=120)
        file = folder / "profile_slurm" / "security" / "ipcontroller-client.json"
        deadline = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"the job did not start: {_logs(folder)}")
            time.sleep(0.5)
        notebook = opened.notebook()
        options = "--profile slurm --backend gloo --mesh dp=2,tp=4"
        engines(folder, notebook, 8, options)
        shown = notebook.cell(FIRST, options)
        if not any("('node1', 4, 112.0)" in line for line in shown):
            raise SystemExit(f"rank 4 is not on node1, or the sum is another than 4 × 28: {_logs(folder)}")
        opened.launch(LOGIN, f"env SLURM_CONF={settings} scancel --name=job.sh").wait(timeout=60)
        time.sleep(5)
        if notebook.cell("rank", f"--timeout 10 {options}")[-1].startswith("done"):
            raise SystemExit("a cell ran after the job was cancelled")
        for node in NODES:
            stop(node)


def _logs(folder: Path) -> str:
    return "\n".join(f"{file.name}:\n{file.read_text()[-3000:]}" for file in folder.glob("*.log"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # namespaces and processes are gone then, too
    main()
