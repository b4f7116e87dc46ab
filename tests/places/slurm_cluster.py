"""A real Slurm of one machine with two emulated nodes, from Debian's packages, which are unpacked and not installed.

`python tests/places/slurm_cluster.py FOLDER` fetches and unpacks them; needs apt-get and dpkg, and no root.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("munge", "libmunge2", "libhwloc15", "liblua5.1-0"),
)
HERE = Path(__file__).parents[2] / ".places" / "slurm"
"""Where `make test-places` unpacks them."""


def fetch(folder: Path) -> None:
    """Unpack Slurm below `folder`, unless it is there."""
    if (folder / "usr/bin/scontrol").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    packages = folder / "packages"
    packages.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=packages, check=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)


@dataclass(frozen=True)
class Cluster:
    """A running one."""

    root: Path
    environ: dict[str, str]

    def run(self, command: str, *arguments: str) -> str:
        """Return what a command of Slurm's prints, as scontrol's."""
        done = subprocess.run(
            [str(self.root / "usr/bin" / command), *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, arguments, done.stderr)
        return done.stdout

    def wait(self, job: str, states: tuple[str, ...], within_s: float) -> dict[str, str]:
        """Return what scontrol says of a job once it is in one of these states."""
        deadline = time.monotonic() + within_s
        while True:
            words = self.run("scontrol", "show", "job", job).split()
            shown = dict(word.split("=", 1) for word in words if "=" in word)
            if shown["JobState"] in states:
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.5)


@contextmanager
def running(root: Path, folder: Path) -> Iterator[Cluster]:
    """Start munged, slurmctld and two slurmd, and end them.

    Args:
        root: where Slurm is unpacked.
        folder: for what they write.
    """
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for name in ("state", "n1", "n2"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    ports = [_free_port() for _ in range(3)]
    settings = {
        "ClusterName": "places",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmUser": getpass.getuser(),
        "SlurmdUser": getpass.getuser(),
        # A job that is put back begins again no sooner than this.
        "AuthInfo": f"socket={folder}/munge.sock,cred_expire=5",
        "PluginDir": libraries / "slurm-wlm",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "%n",
        "SlurmctldPidFile": folder / "ctld.pid",
        "SlurmdPidFile": folder / "%n.pid",
        "SlurmctldLogFile": folder / "ctld.log",
        "SlurmdLogFile": folder / "%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "ReturnToService": 2,
        "KillWait": 10,
    }
    nodes = [
        f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=2"
        for number, port in zip((1, 2), ports[1:], strict=True)
    ]
    lines = [f"{name}={value}" for name, value in settings.items()]
    (folder / "slurm.conf").write_text(
        "\n".join([*lines, *nodes, "PartitionName=p Nodes=n1,n2 Default=YES", ""])
    )
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
        "SLURM_CONF": str(folder / "slurm.conf"),
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
        "PATH": f"{root / 'usr/bin'}:{os.environ['PATH']}",
    }
    sbin = root / "usr/sbin"
    names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log")
    munged = [str(sbin / "munged"), "--force", "--foreground", f"--seed-file={folder}/munged.seed"]
    munged += [f"--{name}={folder / path}" for name, path in (each.split("=") for each in names)]
    daemons = [munged, [str(sbin / "slurmctld-wlm"), "-D"]]
    daemons += [
        [str(sbin / "slurmd-wlm"), "-D", "-N", f"n{n}", "-d", str(sbin / "slurmstepd-wlm")] for n in (1, 2)
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in daemons:
            started.append(
                subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            time.sleep(1)
        cluster = Cluster(root, environ)
        _wait_for_nodes(cluster, folder)
        yield cluster
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_nodes(cluster: Cluster, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if cluster.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"]:
                return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        logs = {path.name: path.read_text()[-1500:] for path in folder.glob("*.log")}
        assert time.monotonic() < deadline, logs
        time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
