"""`KubernetesPlace`: one pod per node, made by an indexed Job, a JobSet or a TrainJob."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from stratagem_places import Place, PlacedRun, PlaceRequest, PlaceStatus

from stratagem.errors import ConfigError, UsageError
from stratagem_kubernetes.archive import pack
from stratagem_kubernetes.kubectl import Kubectl, NotThereError
from stratagem_kubernetes.manifest import KINDS, code_map, first_node, object_name, objects
from stratagem_kubernetes.options import DNS_LABEL, PodOptions
from stratagem_kubernetes.pods import PodRun, code_folder, runs_folder
from stratagem_kubernetes.printed import printed_by_pods
from stratagem_kubernetes.state import status_of

MANIFEST = "manifest.yaml"
_STOPPED = "stopped"
"""File in the folder of the place: its objects are gone because they were deleted from here."""
_MEET_S = 1800
"""How long pods wait for each other: one may start long before a machine is found for the next."""


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass(frozen=True)
class KubernetesPlace(PodOptions, Place):
    """A namespace of a Kubernetes cluster, reached by `kubectl`."""

    def why_not(self) -> str | None:
        return self._kubectl.why_not()

    def render(self, request: PlaceRequest) -> str:
        """Return the manifest, without the ConfigMap that brings the code where `code` is "snapshot"."""
        return _yaml(objects(self, self._pod_run(request), request.max_restarts))

    def submit(self, request: PlaceRequest) -> Mapping[str, Any]:
        """Create the objects; the manifest and the packed code are in the run's folder.

        Raises:
            UsageError: an option is missing, the code is too large, or the cluster refuses: in kubectl's words.
        """
        manifest = self.render(request)
        with open(os.path.join(request.place_dir, MANIFEST), "w", encoding="utf-8") as file:
            file.write(manifest)
        if self.code == "snapshot":
            code = code_map(self, self._pod_run(request), pack(request.code_dir))
            manifest = f"{_yaml([code])}---\n{manifest}"
        name = object_name(request.name)
        there = self._kubectl.ask("get", self._kinds, "-l", _selector(name), "-o", "name").split()
        if there:
            raise UsageError(
                f"the cluster has {there[0]} of a run in a folder of that name: `stratagem stop` deletes it, or name "
                "another --run-dir"
            )
        try:
            self._kubectl.ask("create", "-f", "-", content=manifest)
        except UsageError:
            self._delete(name)  # what was created before the cluster refused
            raise
        return {"name": name, "nodes": request.max_nodes, "devices": request.devices}

    def status(self, run: PlacedRun) -> PlaceStatus:
        name = _name(run)
        try:
            owner = json.loads(self._kubectl.ask("get", KINDS[self.form][0], name, "-o", "json"))
        except NotThereError:
            if os.path.exists(_stopped(run)):
                return PlaceStatus("stopped", "deleted from the cluster")
            return PlaceStatus("unknown", f"the cluster has no {self.form} {name}: it was deleted")
        return status_of(owner, self._pods(name))

    def stop(self, run: PlacedRun) -> None:
        """Delete the run's objects: pods get SIGTERM, and their grace period to save."""
        self._delete(_name(run))
        with open(_stopped(run), "w", encoding="utf-8"):
            pass

    def logs(self, run: PlacedRun, rank: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the logs of the run's pods, as long as the cluster has them.

        Raises:
            UsageError: the run has no such rank, or it isn't known in which pod a rank is.
        """
        name, node = _name(run), None if rank is None else _node_of(run, rank)
        return printed_by_pods(
            self._kubectl,
            lambda: self._pods(name),
            node=node,
            rank=rank,
            tells_node=run.job_number("nodes") > 1,
            is_over=(lambda: self.status(run).is_over) if follow else None,
        )

    def _pods(self, name: str) -> list[dict[str, Any]]:
        found = json.loads(self._kubectl.ask("get", "pods", "-l", _selector(name), "-o", "json"))
        return list(found["items"])

    def _delete(self, name: str) -> None:
        self._kubectl.ask("delete", self._kinds, "-l", _selector(name), "--wait=false", "--ignore-not-found")

    @property
    def _kinds(self) -> str:
        return ",".join((*KINDS[self.form], "configmaps"))

    @property
    def _kubectl(self) -> Kubectl:
        return Kubectl(self.context, self.namespace)

    def _pod_run(self, request: PlaceRequest) -> PodRun:
        """Return what the pods do, by their own paths."""
        if self.image is None:
            raise ConfigError(
                "image is missing: give --on-set image=REGISTRY/NAME:TAG, with Python, PyTorch and Stratagem in it"
            )
        gpus = self.gpus
        if gpus is None:
            gpus = request.devices if request.accelerator == "cuda" else 0
        if gpus is None:
            raise UsageError(
                "how many GPUs a pod needs isn't known before there is one: give --devices N, or --on-set gpus=N"
            )
        flags = []
        if request.max_nodes > 1 and not _has(request, "--rdzv-conf", "--rdzv-backend"):
            flags += ["--rdzv-conf", f"join_timeout={_MEET_S}"]
        if request.stage == "fit" and self.pvc is not None and not _has(request, "--ckpt-path"):
            flags += ["--ckpt-path", "auto"]  # a pod that comes again continues
        there = replace(
            request,
            words=(*flags, *request.words),
            run_dir=f"{runs_folder(self)}/{request.name}",
            code_dir=code_folder(self),
        )
        name = object_name(request.name)
        return PodRun(
            name=name,
            command=there.node_command(self.python),
            variables=dict(there.variables),
            num_nodes=request.max_nodes,
            gpus=gpus,
            grace_period_s=request.grace_period_s,
            subfolder=request.subfolder,
            first_node=first_node(self.form, name),
        )


def _yaml(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_WithoutAliases, sort_keys=False)


def _has(request: PlaceRequest, *flags: str) -> bool:
    return any(word.partition("=")[0] in flags for word in request.words)


def _selector(name: str) -> str:
    return f"app.kubernetes.io/instance={name}"


def _name(run: PlacedRun) -> str:
    """Return the name of the run's objects: an argument of kubectl, which has options that run programs."""
    return run.job_text("name", DNS_LABEL, "lower-case letters, digits and '-'")


def _stopped(run: PlacedRun) -> str:
    return os.path.join(run.run_dir, "place", _STOPPED)


def _node_of(run: PlacedRun, rank: int) -> int | None:
    """Return the number of the pod that has a rank; None where all must be looked through."""
    if run.job.get("devices") is None:
        return None
    devices, nodes = run.job_number("devices"), run.job_number("nodes")
    if not 0 <= rank < devices * nodes:
        raise UsageError(f"there is no rank {rank}: the run has {nodes} nodes with {devices} processes each")
    return rank // devices
