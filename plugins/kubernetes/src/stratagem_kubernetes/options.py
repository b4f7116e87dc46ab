"""`PodOptions`: what `--on-set` says of the pods, checked as Kubernetes would before anything is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stratagem.errors import ConfigError, nearest, short

FORMS = ("job", "jobset", "trainjob")
MEETING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SECRET_KEY = r"[-._a-zA-Z0-9]+"
_LABEL = r"[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?"
_LABEL_KEY = rf"({_DNS_NAME}/)?{_LABEL}"


@dataclass(frozen=True)
class PodOptions:
    """What `--on-set` says of the pods, and of where they are.

    Raises:
        ConfigError: a name or a value that Kubernetes would refuse, or that contradicts another.
    """

    image: str | None = None
    """With Python, PyTorch and Stratagem, and with the code where `code` is image."""
    form: Literal["job", "jobset", "trainjob"] = "job"
    """job needs nothing but Kubernetes; jobset JobSet, and trainjob Kubeflow Trainer 2."""
    namespace: str | None = None
    """That of kubectl's context where it isn't given."""
    context: str | None = None
    """Of kubectl's configuration; the current one where it isn't given."""
    python: str = "python"
    """In the image."""
    cpu: str | None = None
    """Per node, as 8."""
    memory: str | None = None
    """Per node, as 64Gi."""
    gpus: int | None = None
    """Per node; with `--accelerator cuda` as many as `--devices` where it isn't given, otherwise none."""
    gpu_resource: str = "nvidia.com/gpu"
    """What the cluster calls them."""
    shm: str | None = None
    """Size of /dev/shm, as 8Gi, which workers of a data loader need; the machine's default where it isn't given."""
    code: Literal["snapshot", "image"] = "snapshot"
    """snapshot sends the folder's code, at most 0.7 MB packed; image: the image has it."""
    workdir: str | None = None
    """Where the command begins in the image, with code=image."""
    pvc: str | None = None
    """A PersistentVolumeClaim for run folders. Without one they are gone with the pods."""
    mount: str = "/stratagem"
    """The folder in pods below which code and runs are."""
    env: list[str] | None = None
    """Variables, as [A=1]."""
    secrets: list[str] | None = None
    """Variables from Secrets of the cluster, as [WANDB_API_KEY=wandb/key]."""
    env_from: list[str] | None = None
    """Secrets all of whose keys become variables."""
    service_account: str | None = None
    """Which pods run as."""
    image_pull_secret: str | None = None
    """For the image's registry."""
    node_selector: list[str] | None = None
    """Labels of machines, as [pool=a100]."""
    labels: list[str] | None = None
    """Of all objects, as [kueue.x-k8s.io/queue-name=team]."""

    def __post_init__(self) -> None:
        if self.image is not None and not re.fullmatch(r"\S+", self.image):
            raise ConfigError(f"image={short(self.image)} is no image's name: give one as registry/name:tag")
        for name, known in (("form", FORMS), ("code", ("snapshot", "image"))):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={short(value)} is unknown; {nearest(value, known)}")
        if self.workdir is not None and self.code != "image":
            raise ConfigError(
                "workdir is a folder of the image, and the code comes as a snapshot: give code=image too"
            )
        if self.gpus is not None and self.gpus < 0:
            raise ConfigError(f"gpus={self.gpus} is negative; give 0 or more")
        check("context", self.context, r"[^-\s].*", "a context's name, which doesn't begin with '-'")
        check("namespace", self.namespace, DNS_LABEL, "lower-case letters, digits and '-'", 63)
        for name in ("pvc", "service_account", "image_pull_secret"):
            check(name, getattr(self, name), _DNS_NAME, "lower-case letters, digits, '-' and '.'", 253)
        for name in self.env_from or ():
            check("env_from", name, _DNS_NAME, "a Secret's name", 253)
        for name in ("cpu", "memory", "shm"):
            check(name, getattr(self, name), _QUANTITY, "a quantity as 500m, 8 or 64Gi")
        check("gpu_resource", self.gpu_resource, _LABEL_KEY, "a name as nvidia.com/gpu")
        for name in ("mount", "workdir"):
            check(name, getattr(self, name), r"/[^:]*[^:/]", "an absolute path below /")
        self._check_variables()
        for name in ("labels", "node_selector"):
            for key, value in self.pairs(name).items():
                check(name, key, _LABEL_KEY, "a label's key")
                check(f"{name} {key}", value, rf"({_LABEL})?", "letters, digits, '-', '_' and '.'", 63)

    def pairs(self, option: str) -> dict[str, str]:
        """Return what an option as [A=1, B=2] says.

        Raises:
            ConfigError: an entry has no "=", or a name is there twice.
        """
        found: dict[str, str] = {}
        for entry in getattr(self, option) or ():
            name, equals, value = entry.partition("=")
            if not equals or name in found:
                wrong = "is there twice" if equals else "has no '='"
                raise ConfigError(
                    f"{option} has {short(entry)}, which {wrong}: give it as '{option}=[NAME=VALUE, …]'"
                )
            found[name] = value
        return found

    def _check_variables(self) -> None:
        env, secrets = self.pairs("env"), self.pairs("secrets")
        for name in (*env, *secrets):
            check("env and secrets", name, _VARIABLE, "a variable's name")
            if name in MEETING or name.startswith("PET_") or name == "JOB_COMPLETION_INDEX":
                raise ConfigError(
                    f"{name} is set for the nodes' rendezvous, and isn't for env or secrets: leave it out"
                )
        both = sorted({*env} & {*secrets})
        if both:
            raise ConfigError(f"{both[0]} is in env and in secrets: leave one of them out")
        for name, key in secrets.items():
            check(f"secrets {name}", key, rf"{_DNS_NAME}/{_SECRET_KEY}", "a Secret and its key, as wandb/key")


def check(name: str, value: str | None, pattern: str, allowed: str, longest: int = 4096) -> None:
    """Refuse a value that Kubernetes would refuse; None is always allowed.

    Raises:
        ConfigError: with what is allowed.
    """
    if value is not None and not (re.fullmatch(pattern, value) and len(value) <= longest):
        raise ConfigError(f"{name}={short(value)} would be refused by Kubernetes: give {allowed}")
