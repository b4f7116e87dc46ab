"""Workers of torchrun and torch.distributed.elastic, Stratagem's own launchers among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stratagem.sdk.environments import LauncherEnvironment, RankInfo
from stratagem.sdk.processes import store_file
from stratagem_clusters.variables import integer, missing, text


class TorchElastic(LauncherEnvironment):
    """A worker of an elastic agent, which sets all variables and mostly serves the store as well."""

    name: ClassVar[str] = "torchelastic"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "TORCHELASTIC_RUN_ID", "RANK"):
            return None
        return "torchrun has set TORCHELASTIC_RUN_ID and RANK"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.info = RankInfo(
            global_rank=integer(environ, "RANK", "torchrun"),
            local_rank=integer(environ, "LOCAL_RANK", "torchrun"),
            node_rank=integer(environ, "GROUP_RANK", "torchrun"),
            world_size=integer(environ, "WORLD_SIZE", "torchrun"),
            local_world_size=integer(environ, "LOCAL_WORLD_SIZE", "torchrun"),
            main_address=text(environ, "MASTER_ADDR", "torchrun"),
            main_port=integer(environ, "MASTER_PORT", "torchrun"),
        )
        self._store_is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() in ("true", "1")
        self._store_file = store_file(environ)
        self._run_secret = text(environ, "TORCHELASTIC_RUN_ID", "torchrun")
        self._attempt = (
            integer(environ, "TORCHELASTIC_RESTART_COUNT", "torchrun")
            if "TORCHELASTIC_RESTART_COUNT" in environ
            else 0
        )

    @property
    def store_is_served(self) -> bool:
        return self._store_is_served

    @property
    def store_file(self) -> str | None:
        return self._store_file

    @property
    def run_secret(self) -> str | None:
        return self._run_secret

    @property
    def attempt(self) -> int:
        return self._attempt
