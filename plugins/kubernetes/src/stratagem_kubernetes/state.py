"""What the cluster's objects say of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratagem_places import PlaceStatus

from stratagem_kubernetes.pods import CONTAINER

_FINISHED = ("Complete", "Completed")


def status_of(owner: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> PlaceStatus:
    """Return how a run is.

    Args:
        owner: the Job, JobSet or TrainJob.
        pods: those of it.
    """
    conditions = {
        each["type"]: each
        for each in owner.get("status", {}).get("conditions", [])
        if each.get("status") == "True"
    }
    for name in _FINISHED:
        if name in conditions:
            return PlaceStatus("finished", name, 0)
    if "Failed" in conditions:
        return PlaceStatus("failed", _described(conditions["Failed"]), exit_code(pods))
    phases = [pod.get("status", {}).get("phase", "Pending") for pod in pods]
    if "Running" in phases:
        return PlaceStatus("running", f"{phases.count('Running')} of {len(phases)} pods are running")
    reasons = [reason for pod in pods if (reason := _waits_for(pod))]
    if "Suspended" in conditions:
        reasons.insert(0, "Suspended")
    return PlaceStatus("waiting", reasons[0] if reasons else "no pod has been started yet")


def exit_code(pods: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the code of the pod that failed first; None where no pod has one."""
    ended = [
        (terminated.get("finishedAt", ""), int(terminated["exitCode"]))
        for pod in pods
        for container in pod.get("status", {}).get("containerStatuses", [])
        if container["name"] == CONTAINER
        and (terminated := container.get("state", {}).get("terminated"))
        and terminated.get("exitCode")
    ]
    return min(ended)[1] if ended else None


def node_index(pod: Mapping[str, Any]) -> int:
    """Return the number of a pod's node."""
    annotations = pod["metadata"].get("annotations", {})
    return int(annotations.get("batch.kubernetes.io/job-completion-index", 0))


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's container has run, so that it has a log."""
    return pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")


def _waits_for(pod: Mapping[str, Any]) -> str:
    """Return why a pod doesn't run, as the scheduler or the kubelet say it."""
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return _described(waiting)
    return next(
        (_described(each) for each in status.get("conditions", []) if each.get("status") == "False"), ""
    )


def _described(said: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (said.get("reason", ""), said.get("message", ""))))
