"""What a run's pods print, also of those that come while they are followed."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stratagem_kubernetes.kubectl import Kubectl
from stratagem_kubernetes.pods import CONTAINER
from stratagem_kubernetes.state import has_begun, node_index

_LOOK_EVERY_S = 2.0


def printed_by_pods(
    kubectl: Kubectl,
    pods: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    node: int | None,
    rank: int | None,
    tells_node: bool,
    is_over: Callable[[], bool] | None,
) -> Iterator[str]:
    """Yield lines of the pods' logs.

    Args:
        kubectl: the cluster.
        pods: asks which there are.
        node: only this one's pods.
        rank: only this rank's lines, which the launcher marks.
        tells_node: whether a line begins with its node's number, unless it is a rank's.
        is_over: asked while pods are followed, until it is so; None: what there is by now.
    """
    mark = None if rank is None else f"[rank {rank}] "
    for pod, line in _followed(kubectl, pods, is_over) if is_over else _so_far(kubectl, pods):
        index = node_index(pod)
        if node not in (None, index):
            continue
        if mark is not None:
            if mark in line:
                yield line.replace(mark, "", 1)
        else:
            yield f"[node {index}] {line}" if tells_node else line


_Line = tuple[Mapping[str, Any], str]


def _so_far(kubectl: Kubectl, pods: Callable[[], Sequence[Mapping[str, Any]]]) -> Iterator[_Line]:
    for pod in sorted(filter(has_begun, pods()), key=lambda pod: (node_index(pod), pod["metadata"]["name"])):
        for line in kubectl.stream("logs", pod["metadata"]["name"], "-c", CONTAINER):
            yield pod, line


def _followed(
    kubectl: Kubectl, pods: Callable[[], Sequence[Mapping[str, Any]]], is_over: Callable[[], bool]
) -> Iterator[_Line]:
    """One thread per pod reads its log; a pod that comes in the place of another is followed, too."""
    lines: queue.Queue[_Line] = queue.Queue()
    reading: dict[str, threading.Thread] = {}

    def read(pod: Mapping[str, Any]) -> None:
        for line in kubectl.stream("logs", "--follow", pod["metadata"]["name"], "-c", CONTAINER):
            lines.put((pod, line))

    over = False
    while True:
        for pod in pods():
            name = pod["metadata"]["name"]
            if name not in reading and has_begun(pod):
                reading[name] = threading.Thread(target=read, args=(pod,), daemon=True)
                reading[name].start()
        until = time.monotonic() + _LOOK_EVERY_S
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                yield lines.get(timeout=left)
        is_idle = lines.empty() and not any(thread.is_alive() for thread in reading.values())
        if over and is_idle:
            return
        over = over or is_over()
