"""`RayPlace`: a Ray cluster, running or started for the run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

from stratagem_places import Place, PlacedRun, PlaceRequest, PlaceStatus, is_process, started_at, state_of

from stratagem.errors import ConfigError, UsageError
from stratagem_ray.spec import FILE, RaySpec

EXIT_CODE = "ray.exit_code"
RUNNING = "ray.running"
"""Files of the place's folder, which the driver writes."""
_CONNECT_S = 5.0
_MEET_S = 1800
"""How long nodes wait for each other."""


@dataclass(frozen=True)
class RayPlace(Place):
    """One actor per node, which runs Stratagem's launcher; a driver in the background here looks after them."""

    address: str = "auto"
    """Of a running cluster, one of whose machines this is: HOST:PORT, or auto to find it. local starts one here."""
    cpus: float | None = None
    """Of a node; as many as `--devices` where it isn't given, or 1."""
    gpus: float | None = None
    """Of a node; with `--accelerator cuda` as many as `--devices` where it isn't given, otherwise none."""
    resources: list[str] | None = None
    """Further ones of a node, as [a100=1]."""
    strategy: Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"] = "STRICT_SPREAD"
    """Strategy of the placement group: STRICT_SPREAD puts each node on its own machine."""

    def __post_init__(self) -> None:
        if self.address.startswith(("ray://", "http://", "https://")):
            raise ConfigError(
                f"address={self.address!r} is of a client that isn't in the cluster: submit from one of its "
                "machines, or by `ray job submit --working-dir . -- stratagem fit … --on ray`"
            )
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{name}={value} is negative; give 0 or more")
        self._further()

    def why_not(self) -> str | None:
        if find_spec("ray") is None:
            return "Ray isn't installed: pip install 'stratagem-ray[engine]'"
        host, colon, port = self.address.rpartition(":")
        if colon:
            # Ray itself would continue trying for minutes.
            try:
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            except (OSError, ValueError) as error:
                return f"no Ray cluster answers at address={self.address!r} ({error})"
        return None

    def render(self, request: PlaceRequest) -> str:
        return self._spec(request).as_json()

    def submit(self, request: PlaceRequest) -> Mapping[str, Any]:
        for left in (EXIT_CODE, RUNNING):
            path = os.path.join(request.place_dir, left)
            if os.path.exists(path):
                os.unlink(path)
        with open(os.path.join(request.place_dir, FILE), "w", encoding="utf-8") as file:
            file.write(self.render(request))
        with open(os.path.join(request.output_dir, "driver.txt"), "wb") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", "stratagem_ray.driver", request.place_dir],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return {"process": started.pid, "started": started_at(started.pid) or ""}

    def status(self, run: PlacedRun) -> PlaceStatus:
        process, began = run.job_number("process", min=2), run.job_text("started", r"[^\n]*", "a text")
        code = _read(run, EXIT_CODE)
        if code.isdecimal():
            return PlaceStatus(state_of(int(code)), f"exit code {code}" if code != "0" else "", int(code))
        if not is_process(process, began):
            return PlaceStatus("unknown", "its driver is gone, as after a restart of this machine")
        nodes = _read(run, RUNNING)
        return (
            PlaceStatus("running", nodes) if nodes else PlaceStatus("waiting", "for resources of the cluster")
        )

    def stop(self, run: PlacedRun) -> None:
        if not self.status(run).is_over:
            os.kill(run.job_number("process", min=2), signal.SIGTERM)

    def _spec(self, request: PlaceRequest) -> RaySpec:
        words = request.words
        if request.max_nodes > 1:
            if _has(request, "--rdzv-backend", "--rdzv-endpoint"):
                raise UsageError(
                    "on ray nodes meet at the driver: leave --rdzv-backend and --rdzv-endpoint out"
                )
            words = _with_rendezvous(words)
        if request.stage == "fit" and not _has(request, "--ckpt-path"):
            words = ("--ckpt-path", "auto", *words)  # a node that comes in the place of another continues
        wanted = replace(request, words=words)
        return RaySpec(
            address=self.address,
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            resources=self._bundle(request),
            strategy=self.strategy,
            code_dir=request.code_dir,
            subfolder=request.subfolder,
            arguments=wanted.node_command()[1:],
            variables=request.variables,
            max_restarts=request.max_restarts,
            place_dir=request.place_dir,
            output_dir=request.output_dir,
        )

    def _bundle(self, request: PlaceRequest) -> dict[str, float]:
        on_cuda = request.accelerator == "cuda"
        if request.devices is None and (self.cpus is None or (on_cuda and self.gpus is None)):
            raise UsageError(
                "what a node needs isn't known before there is one: give --devices N, or --on-set cpus=N and gpus=N"
            )
        devices = request.devices or 1
        cpus = devices if self.cpus is None else self.cpus
        gpus = (devices if on_cuda else 0) if self.gpus is None else self.gpus
        wanted = {"CPU": float(cpus), "GPU": float(gpus), **self._further()}
        return {name: amount for name, amount in wanted.items() if amount}

    def _further(self) -> dict[str, float]:
        found = {}
        for entry in self.resources or ():
            name, _, amount = entry.partition("=")
            try:
                found[name] = float(amount)
            except ValueError:
                raise ConfigError(f"resources has {entry!r}: give each as NAME=AMOUNT") from None
        return found


def _has(request: PlaceRequest, *flags: str) -> bool:
    return any(word.partition("=")[0] in flags for word in request.words)


def _with_rendezvous(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words with what lets all nodes, the first too, look for the rendezvous at the driver."""
    ours = f"is_host=false,join_timeout={_MEET_S}"
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--rdzv-conf" and equals:
            return (*words[:at], f"{name}={ours},{value}", *words[at + 1 :])
        if name == "--rdzv-conf" and at + 1 < len(words):
            return (*words[: at + 1], f"{ours},{words[at + 1]}", *words[at + 2 :])
    return ("--rdzv-conf", ours, *words)


def _read(run: PlacedRun, name: str) -> str:
    try:
        with open(os.path.join(run.run_dir, "place", name), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
