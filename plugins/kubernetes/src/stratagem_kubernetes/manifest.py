"""The objects of a run: an indexed Job with its Service, a JobSet, or a TrainJob with its TrainingRuntime."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

from stratagem_kubernetes.options import PodOptions
from stratagem_kubernetes.pods import ARCHIVE, CONTAINER, PORT, PodRun, labels, pod_template

PREEMPTED = 75
"""Exit code of a run that has saved and continues when its command runs again."""
REFUSED = 2
"""Exit code of a run that would be refused again."""

KINDS = {
    "job": ("jobs.batch", "services"),
    "jobset": ("jobsets.jobset.x-k8s.io",),
    "trainjob": ("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"),
}
"""Form → what `kubectl` calls its objects; the first has the run's state."""

_LONGEST = 45
"""A pod's name is longer by as much as "-node-0-9999-abcde", and may have 63 characters."""


def object_name(name: str) -> str:
    """Return a run's name as one of Kubernetes' objects may have it.

    Names that lose something get a few characters of their digest instead, so that they stay apart.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"run-{plain}".rstrip("-")
    if plain == name and len(plain) <= _LONGEST:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{plain[: _LONGEST - 7].rstrip('-')}-{digest}"


def first_node(form: str, name: str) -> str:
    """Return the name by which the pods of a run reach that of index 0."""
    return f"{name}-0.{name}" if form == "job" else f"{name}-{CONTAINER}-0-0.{name}"


def objects(options: PodOptions, run: PodRun, max_restarts: int) -> list[dict[str, Any]]:
    """Return a run's objects, but for `code_map`.

    Args:
        options: of the pods.
        run: what they do.
        max_restarts: how often pods may fail, all together.
    """
    return _FORMS[options.form](options, run, max_restarts)


def code_map(options: PodOptions, run: PodRun, archive: bytes) -> dict[str, Any]:
    """Return the ConfigMap that brings the code into pods."""
    metadata = {"name": run.name, "labels": labels(options, run)}
    data = {ARCHIVE: base64.b64encode(archive).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}


def _job(options: PodOptions, run: PodRun, max_restarts: int) -> list[dict[str, Any]]:
    spec = _job_spec(options, run, max_restarts)
    job = _object("batch/v1", "Job", options, run, spec)
    if run.num_nodes == 1:
        return [job]
    spec["template"]["spec"]["subdomain"] = run.name
    service = {
        "clusterIP": "None",
        # Nodes look each other up before any of them could be called ready.
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": run.name},
        "ports": [{"name": "rendezvous", "port": PORT}],
    }
    return [_object("v1", "Service", options, run, service), job]


def _jobset(options: PodOptions, run: PodRun, max_restarts: int) -> list[dict[str, Any]]:
    return [
        _object("jobset.x-k8s.io/v1alpha2", "JobSet", options, run, _jobset_spec(options, run, max_restarts))
    ]


def _trainjob(options: PodOptions, run: PodRun, max_restarts: int) -> list[dict[str, Any]]:
    """The pods get a separate TrainingRuntime: versions differ in what a TrainJob may change in a shared one."""
    template = _jobset_spec(options, run, max_restarts)
    [node] = template["replicatedJobs"]
    node["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    for key in ("completionMode", "completions", "parallelism"):
        del node["template"]["spec"][key]  # the trainer's, by numNodes
    [container] = node["template"]["spec"]["template"]["spec"]["containers"]
    runtime = {"mlPolicy": {"numNodes": run.num_nodes, "torch": {}}, "template": {"spec": template}}
    job = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": run.name,
        },
        "trainer": {"numNodes": run.num_nodes, "image": options.image, "command": container["command"]},
    }
    api = "trainer.kubeflow.org/v1alpha1"
    return [
        _object(api, "TrainingRuntime", options, run, runtime),
        _object(api, "TrainJob", options, run, job),
    ]


_FORMS: dict[str, Callable[[PodOptions, PodRun, int], list[dict[str, Any]]]] = {
    "job": _job,
    "jobset": _jobset,
    "trainjob": _trainjob,
}


def _jobset_spec(options: PodOptions, run: PodRun, max_restarts: int) -> dict[str, Any]:
    node = {"name": CONTAINER, "replicas": 1, "template": {"spec": _job_spec(options, run, max_restarts)}}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [node],
    }


def _job_spec(options: PodOptions, run: PodRun, max_restarts: int) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [_on_exit("FailJob", REFUSED)]
    if options.pvc is not None:
        # It resumes from what it has saved. Without a volume that is gone with the pod.
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        rules += [_on_exit("Ignore", PREEMPTED), {"action": "Ignore", "onPodConditions": disrupted}]
    return {
        "completionMode": "Indexed",
        "completions": run.num_nodes,
        "parallelism": run.num_nodes,
        "backoffLimit": max_restarts * run.num_nodes,
        "podFailurePolicy": {"rules": rules},
        "template": pod_template(options, run),
    }


def _on_exit(action: str, code: int) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [code]},
        # kubernetes/kubernetes#120204: before 1.29, a rule without the field was refused; empty, it means nothing.
        "onPodConditions": [],
    }


def _object(api: str, kind: str, options: PodOptions, run: PodRun, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": run.name, "labels": labels(options, run)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}
