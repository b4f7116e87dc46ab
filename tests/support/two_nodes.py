"""Two machines on one: network namespaces joined by a cable, and a module that tells where it is trained."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

PREFIX = "stratagem"
INTERFACE, ADDRESSES = "eth0", ("10.77.0.1", "10.77.0.2")


@dataclass(frozen=True)
class Node:
    """One of the machines."""

    namespace: str
    rank: int

    def start(self, command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        """Start a command there."""
        inside = ["ip", "netns", "exec", self.namespace, *command]
        return subprocess.Popen(
            inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **how
        )


def why_not() -> str | None:
    """Say why there can't be namespaces here; None where there can."""
    if shutil.which("ip") is None:
        return "needs the command ip (Debian's package iproute2)"
    probe = f"stratagem-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces aren't permitted: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two nodes that reach each other and nothing else; nothing is left of them afterwards."""
    _remove_forgotten()
    nodes = (Node(f"{PREFIX}-a-{os.getpid()}", 0), Node(f"{PREFIX}-b-{os.getpid()}", 1))
    with ExitStack() as stack:
        for node in nodes:
            _ip("netns", "add", node.namespace)
            stack.callback(_remove, node)
        there = (nodes[0].namespace, "type", "veth", "peer", "name", INTERFACE, "netns", nodes[1].namespace)
        _ip("link", "add", INTERFACE, "netns", *there)
        for node, address in zip(nodes, ADDRESSES):
            _ip("-n", node.namespace, "address", "add", f"{address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", node.namespace, "link", "set", interface, "up")
        yield nodes


def _remove_forgotten() -> None:
    """Remove the nodes of tests that were killed before they could."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        made = re.fullmatch(rf"{PREFIX}-[ab]-(\d+)", name)
        if made and not psutil.pid_exists(int(made[1])):
            _remove(Node(name, 0))


def _remove(node: Node) -> None:
    """End what still runs there, and remove it; its end of the cable goes with it."""
    left = subprocess.run(["ip", "netns", "pids", node.namespace], capture_output=True, text=True).stdout
    for process in left.split():
        subprocess.run(["kill", "-9", process], capture_output=True)
    _ip("netns", "del", node.namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Placed(stratagem.Module):
    """A small regression of blocks.

    Args:
        batch_size: of a loader's batch.
        folder: where each rank leaves `rank<N>.json` about itself; none if empty.
    """

    def __init__(self, batch_size: int = 16, folder: str = "") -> None:
        super().__init__()
        self.batch_size, self.folder = batch_size, folder
        with torch.random.fork_rng():
            torch.manual_seed(0)
            blocks = (nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
            self.net = nn.Sequential(nn.Linear(6, 16), *blocks, nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_start(self) -> None:
        if self.folder:
            place = Path(self.folder, f"rank{self.global_rank}.json")
            place.write_text(json.dumps(self.place()))

    def place(self) -> dict[str, Any]:
        weight = self.net[0].weight
        mesh = getattr(weight, "device_mesh", None)
        return {
            "node": int(os.environ["GROUP_RANK"]),
            "network": os.readlink("/proc/self/ns/net"),
            "mesh": None if mesh is None else mesh.mesh.tolist(),
        }

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(320, 6, generator=generator)
        return DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), self.batch_size, shuffle=True)
