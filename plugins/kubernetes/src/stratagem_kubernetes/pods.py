"""The pod of one node: its container, what it mounts, and the variables by which nodes meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratagem_kubernetes.options import PodOptions

CONTAINER = "node"
"""Name of the container, as Kubeflow Trainer's torch policy expects it."""
PORT = 29400
ARCHIVE = "code.tar.gz"
GRACE_MARGIN_S = 15
"""For what follows a save: ranks, launcher and container end, too."""
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
"""Where the pods of an indexed Job have their number."""


@dataclass(frozen=True, kw_only=True)
class PodRun:
    """What a run's pods are to do.

    Attributes:
        name: of the run's objects, a DNS label.
        command: of each pod.
        variables: what the command needs.
        num_nodes: pods.
        gpus: of each.
        grace_period_s: what a save after SIGTERM may take.
        subfolder: working directory, relative to the code.
        first_node: the name by which pods reach that of index 0.
    """

    name: str
    command: Sequence[str]
    variables: dict[str, str]
    num_nodes: int
    gpus: int
    grace_period_s: float
    subfolder: str
    first_node: str


def pod_template(options: PodOptions, run: PodRun) -> dict[str, Any]:
    """Return the template of a Job's pods."""
    volumes, mounts = _volumes(options, run)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        # A pod's first process alone gets SIGTERM: no shell stands before it.
        "command": [literal(word) for word in run.command],
        "env": variables(options, run),
        "envFrom": [{"secretRef": {"name": name}} for name in options.env_from or ()],
        "ports": [{"containerPort": PORT}] if run.num_nodes > 1 else [],
        "resources": resources(options, run),
        "volumeMounts": mounts,
        "workingDir": working_dir(options, run),
    }
    spec: dict[str, Any] = {
        # Each attempt is a new pod, as a pod failure policy requires.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(run.grace_period_s) + GRACE_MARGIN_S,
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": options.image_pull_secret}] if options.image_pull_secret else [],
        "nodeSelector": options.pairs("node_selector"),
        "initContainers": [_unpacking(options, mounts)] if options.code == "snapshot" else [],
        "containers": [_given(container)],
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels(options, run)}, "spec": _given(spec)}


def labels(options: PodOptions, run: PodRun) -> dict[str, str]:
    """Return the labels of all objects of a run; the first two find them again."""
    ours = {"app.kubernetes.io/managed-by": "stratagem", "app.kubernetes.io/instance": run.name}
    return {**options.pairs("labels"), **ours}


def resources(options: PodOptions, run: PodRun) -> dict[str, Any]:
    """Return what a node has; requests are the limits, so that no other pod can take it away."""
    wanted = {"cpu": options.cpu, "memory": options.memory}
    wanted[options.gpu_resource] = str(run.gpus) if run.gpus else None
    limits = {name: amount for name, amount in wanted.items() if amount is not None}
    return {"requests": dict(limits), "limits": limits} if limits else {}


def variables(options: PodOptions, run: PodRun) -> list[dict[str, Any]]:
    """Return the container's variables; those of Secrets by reference."""
    # What is printed is to be in the pod's log at once.
    plain = {"PYTHONUNBUFFERED": "1", **run.variables, **options.pairs("env")}
    if run.num_nodes > 1:
        plain |= {"MASTER_ADDR": run.first_node, "MASTER_PORT": str(PORT)}
    found: list[dict[str, Any]] = [{"name": name, "value": literal(value)} for name, value in plain.items()]
    if run.num_nodes > 1:
        found.append({"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}})
    for name, reference in options.pairs("secrets").items():
        secret, _, key = reference.partition("/")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def literal(text: str) -> str:
    """Return `text` so that Kubernetes replaces no $(NAME) in it."""
    return text.replace("$", "$$")


def code_folder(options: PodOptions) -> str:
    """Return where pods see the code that travels with the run."""
    return f"{options.mount}/code"


def runs_folder(options: PodOptions) -> str:
    """Return where pods see run folders."""
    return f"{options.mount}/runs"


def working_dir(options: PodOptions, run: PodRun) -> str | None:
    """Return where the command starts."""
    if options.code == "image":
        return options.workdir
    return f"{code_folder(options)}/{run.subfolder}".rstrip("/")


def _unpacking(options: PodOptions, mounts: list[dict[str, str]]) -> dict[str, Any]:
    archive = f"{options.mount}/archive/{ARCHIVE}"
    return {
        "name": "code",
        "image": options.image,
        "command": [options.python, "-m", "tarfile", "-e", archive, code_folder(options)],
        "volumeMounts": [mount for mount in mounts if mount["name"] in ("archive", "code")],
    }


def _volumes(options: PodOptions, run: PodRun) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the pod's volumes, and where its containers have them."""
    volumes: list[dict[str, Any]] = []
    paths: dict[str, str] = {}
    if options.code == "snapshot":
        volumes += [{"name": "archive", "configMap": {"name": run.name}}, {"name": "code", "emptyDir": {}}]
        paths |= {"archive": f"{options.mount}/archive", "code": code_folder(options)}
    claim = {"persistentVolumeClaim": {"claimName": options.pvc}} if options.pvc else {"emptyDir": {}}
    volumes.append({"name": "runs", **claim})
    paths["runs"] = runs_folder(options)
    if options.shm is not None:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm}})
        paths["shm"] = "/dev/shm"
    return volumes, [{"name": name, "mountPath": path} for name, path in paths.items()]


def _given(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value not in (None, [], {})}
