"""Pods of a Kubeflow PyTorchJob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from stratagem.errors import UsageError
from stratagem.sdk.environments import LauncherEnvironment, RankInfo
from stratagem_clusters.variables import integer, missing, text

_LAUNCHER = "a PyTorchJob"


class Kubeflow(LauncherEnvironment):
    """One process per pod: the operator sets RANK and WORLD_SIZE per pod, and no LOCAL_RANK.

    A job with several processes per pod (`nprocPerNode`) starts them with torchrun in its command.
    """

    name: ClassVar[str] = "kubeflow"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
            return None
        in_pod = "KUBERNETES_PORT" in environ or "KUBERNETES_SERVICE_HOST" in environ
        # What runs several processes in a pod (torchrun, deepspeed) sets LOCAL_RANK.
        if not in_pod or any(name in environ for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")):
            return None
        return "in a Kubernetes pod with MASTER_ADDR, WORLD_SIZE and RANK, but no LOCAL_RANK"

    def __init__(self, environ: Mapping[str, str]) -> None:
        per_pod = environ.get("PET_NPROC_PER_NODE", "1")
        if re.fullmatch(r"[0-9]{1,18}", per_pod) and int(per_pod) > 1:
            raise UsageError(
                f"the PyTorchJob asks for {per_pod} processes per pod (PET_NPROC_PER_NODE), but nothing"
                " has started them; make torchrun the pod's command, as in"
                " `torchrun -m stratagem fit ...`"
            )
        rank = integer(environ, "RANK", _LAUNCHER)
        self.info = RankInfo(
            global_rank=rank,
            local_rank=0,
            node_rank=rank,
            world_size=integer(environ, "WORLD_SIZE", _LAUNCHER),
            local_world_size=1,
            main_address=text(environ, "MASTER_ADDR", _LAUNCHER),
            main_port=integer(environ, "MASTER_PORT", _LAUNCHER),
        )
