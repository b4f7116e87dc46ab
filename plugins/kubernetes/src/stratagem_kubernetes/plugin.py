"""Declares the place `kubernetes`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            "place",
            "kubernetes",
            "stratagem_kubernetes.place:KubernetesPlace",
            "pods of a cluster: an indexed Job, a JobSet, or a TrainJob of Kubeflow",
        )
    ]
