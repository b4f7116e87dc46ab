"""`Slots`: the nodes that a run may have, each with a place in the cluster and the actor that is there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stratagem_ray.node import Node
from stratagem_ray.spec import RaySpec

_WAIT_S = 1.0
_ROOM_S = 10.0
"""How long Ray may take to find room before it is said for what."""
_LAST_S = 120.0
"""How long other nodes may take to end once one has ended well."""
_SIGTERM = 128 + signal.SIGTERM


@dataclass
class _Slot:
    index: int
    group: Any
    bundle: int
    actor: Any = None
    lines: Any = None
    """What its actor prints; None once that has ended."""
    has_begun: bool = False


class Slots:
    """Starts the launchers of a run, replaces those that are lost, and reads what they print.

    The fewest nodes are one placement group, which the cluster finds room for at once; each further one has a group
    of its own, and begins when there is room.

    Args:
        spec: the run.
        variables: where its nodes meet.
    """

    def __init__(self, spec: RaySpec, variables: dict[str, str]) -> None:
        import ray
        from ray.util.placement_group import placement_group

        self._ray, self._spec = ray, spec
        self._variables = {**spec.variables, **variables}
        bundle = dict(spec.resources)
        gang = placement_group([bundle] * spec.min_nodes, strategy=spec.strategy)
        self._slots = [_Slot(index, gang, index) for index in range(spec.min_nodes)]
        for index in range(spec.min_nodes, spec.max_nodes):
            self._slots.append(_Slot(index, placement_group([bundle], strategy="PACK"), 0))
        self._room = gang.ready()
        self._room_by: float | None = time.monotonic() + _ROOM_S
        self._lost, self._is_stopping = 0, False
        self._codes: list[int] = []

    def run(self, tell: Callable[[str], None], is_stopped: Callable[[], bool]) -> int:
        """Return the run's exit code once no node runs any more.

        Args:
            tell: is given how many nodes run, whenever that changes.
            is_stopped: whether nodes are to save and end.
        """
        for slot in self._slots:
            self._start(slot)
        shown, until = 0, None
        while True:
            running = [slot for slot in self._slots if slot.lines is not None and slot.has_begun]
            if len(running) != shown:
                shown = len(running)
                tell(f"{shown} of {self._spec.max_nodes} nodes")
            if self._codes and not running:
                break
            if 0 in self._codes:
                until = until or time.monotonic() + _LAST_S
                if time.monotonic() > until:
                    break
            if is_stopped() and not self._is_stopping:
                self._stop()
            if self._is_stopping and not running:
                self._codes.append(_SIGTERM)
                break
            waiting = [slot for slot in self._slots if slot.lines is not None]
            if not waiting:
                break
            self._read(waiting)
            self._tell_of_room()
        failed = [code for code in self._codes if code != 0]
        return failed[0] if failed or not self._codes else 0

    def _tell_of_room(self) -> None:
        """Say once for what the fewest nodes wait, if Ray has found no room for them for some time."""
        if self._room_by is None or time.monotonic() < self._room_by:
            return
        self._room_by = None
        if self._ray.wait([self._room], timeout=0, fetch_local=False)[0]:
            return
        spec = self._spec
        wanted = ", ".join(f"{name} {amount:g}" for name, amount in spec.resources.items()) or "nothing"
        alive = sum(node["Alive"] for node in self._ray.nodes())
        where = ", each on its own machine" if spec.strategy == "STRICT_SPREAD" else ""
        share = "; --on-set strategy=PACK lets them share machines" if where else ""
        print(
            f"waits for room: {spec.min_nodes} nodes with {wanted}{where}; machines of the cluster: {alive}{share}",
            flush=True,
        )

    def _stop(self) -> None:
        """Tell all nodes to save and end, also those that begin now."""
        self._is_stopping = True
        for slot in self._slots:
            if slot.lines is not None:
                slot.actor.stop.remote()

    def _start(self, slot: _Slot) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        wanted = dict(self._spec.resources)
        made = self._ray.remote(Node).options(
            num_cpus=wanted.pop("CPU", 0),
            num_gpus=wanted.pop("GPU", 0),
            resources=wanted or None,
            max_concurrency=2,  # `stop` while `run` continues
            scheduling_strategy=PlacementGroupSchedulingStrategy(slot.group, slot.bundle),
        )
        slot.actor = made.remote(
            self._spec.arguments, self._variables, self._spec.code_dir, self._spec.subfolder
        )
        slot.lines = slot.actor.run.options(num_returns="streaming").remote()
        slot.has_begun = False

    def _read(self, slots: list[_Slot]) -> None:
        """Read what there is of some slots, or wait a little for it."""
        by_lines = {slot.lines: slot for slot in slots}
        ready, _ = self._ray.wait(list(by_lines), timeout=_WAIT_S, fetch_local=False)
        for lines in ready:
            slot = by_lines[lines]
            try:
                said = self._ray.get(next(lines))
            except StopIteration:
                slot.lines = None
            except self._ray.exceptions.RayActorError as error:
                self._replace(slot, error)
            except self._ray.exceptions.RayError as error:  # as Ray's own, of an actor that couldn't be made
                print(f"node {slot.index} failed: {error}", flush=True)
                slot.lines = None
                self._codes.append(1)
            else:
                slot.has_begun = True
                if isinstance(said, int):
                    self._codes.append(said)
                    slot.lines = None
                else:
                    self._keep(slot, said)

    def _replace(self, slot: _Slot, error: Exception) -> None:
        """Take note of a node that was lost; one in its place begins when the cluster has room."""
        slot.lines = None
        self._ray.kill(slot.actor)  # it may only be out of reach
        first = str(error).strip().partition("\n")[0]
        print(f"node {slot.index} was lost: {first}", flush=True)
        self._lost += 1
        if self._is_stopping or 0 in self._codes:
            return
        if self._lost <= self._spec.max_restarts:
            self._start(slot)
        elif not any(other.lines is not None for other in self._slots):
            self._codes.append(1)

    def _keep(self, slot: _Slot, line: str) -> None:
        path = os.path.join(self._spec.output_dir, f"node-{slot.index}.txt")
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
