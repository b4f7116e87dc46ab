"""A stand-in for a cluster: runs a manifest's pods as processes of this machine, as Kubernetes would start them.

Folders of volumes are made at their mount paths, which a test puts below its own folder; the first node's name
becomes 127.0.0.1, and the port a free one. No kubelet, no scheduler, no isolation: what is held here is the manifest.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass
class StandInPods:
    """Pods of one manifest.

    Args:
        manifest: as it would be submitted.
        archive: what the ConfigMap holds; None where there is none.
        secrets: of the cluster: name → key → value.
    """

    manifest: str
    archive: Path | None = None
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        documents = {each["kind"]: each for each in yaml.safe_load_all(self.manifest)}
        self.documents = documents
        if "TrainJob" in documents:
            self._from_trainjob()
        elif "JobSet" in documents:
            self._from_jobset(documents["JobSet"]["metadata"]["name"], documents["JobSet"]["spec"])
        else:
            job = documents["Job"]
            name = job["metadata"]["name"]
            self._take(job["spec"])
            if "Service" in documents:
                service = documents["Service"]
                assert service["spec"]["clusterIP"] == "None"
                assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
                # An indexed Job's pods are called so within the subdomain of a Service of that name.
                assert self.pod["subdomain"] == service["metadata"]["name"]
            self.known_as = f"{name}-0.{name}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])

    def _take(self, spec: dict[str, Any]) -> None:
        assert spec["completionMode"] == "Indexed"
        assert spec["parallelism"] == spec["completions"]
        self.count, self.pod = spec["parallelism"], spec["template"]["spec"]
        [self.container] = self.pod["containers"]

    def _from_jobset(self, name: str, spec: dict[str, Any]) -> None:
        assert spec["network"]["enableDNSHostnames"]
        [job] = spec["replicatedJobs"]
        assert job["replicas"] == 1
        self._take(job["template"]["spec"])
        self.known_as = f"{name}-{job['name']}-0-0.{name}"

    def _from_trainjob(self) -> None:
        """As the torch policy of Kubeflow Trainer 2 does it (pkg/runtime/framework/plugins/torch)."""
        job, runtime = self.documents["TrainJob"], self.documents["TrainingRuntime"]
        assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        assert runtime["spec"]["mlPolicy"]["torch"] == {}
        jobset = runtime["spec"]["template"]["spec"]
        [node] = jobset["replicatedJobs"]
        step = node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
        assert (node["name"], step) == ("node", "trainer")
        trainer, count = job["spec"]["trainer"], job["spec"]["trainer"]["numNodes"]
        spec = node["template"]["spec"]
        spec.update(completionMode="Indexed", completions=count, parallelism=count)
        [container] = spec["template"]["spec"]["containers"]
        assert container["name"] == "node"
        container.update(image=trainer["image"], command=trainer["command"])
        reserved = {entry["name"] for entry in container["env"] if entry["name"].startswith("PET_")}
        assert not reserved
        name = job["metadata"]["name"]
        injected = {
            "PET_NNODES": str(count),
            "PET_NPROC_PER_NODE": "1",
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29400",
        }
        container["env"] += [{"name": key, "value": value} for key, value in injected.items()]
        container["env"].append({"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}})
        self._from_jobset(name, jobset)

    def start(self, index: int) -> subprocess.Popen[str]:
        """Start the pod of an index: its volumes, its init containers, and then its container."""
        for mount in self.container["volumeMounts"]:
            if not mount["mountPath"].startswith("/dev/"):
                os.makedirs(mount["mountPath"], exist_ok=True)
            if mount["name"] == "archive":
                assert self.archive is not None
                shutil.copy(self.archive, mount["mountPath"])
        for container in self.pod.get("initContainers", []):
            subprocess.run(container["command"], env=self._base(), check=True)
        environ = {**self._base(), **self._variables(index)}
        return subprocess.Popen(
            [expanded(word, environ) for word in self.container["command"]],
            env=environ,
            cwd=self.container.get("workingDir"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _base(self) -> dict[str, str]:
        """What the image would have: Python with this project's packages; and what each pod is reported."""
        bin_dir = os.path.dirname(sys.executable)
        kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_PORT": "tcp://10.96.0.1:443",
        }

    def _variables(self, index: int) -> dict[str, str]:
        found = {"JOB_COMPLETION_INDEX": str(index)}
        for source in self.container.get("envFrom", []):
            found |= self.secrets[source["secretRef"]["name"]]
        for entry in self.container["env"]:
            if "value" in entry:
                value = expanded(entry["value"], found)
            elif "fieldRef" in entry["valueFrom"]:
                assert entry["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
                value = str(index)
            else:
                reference = entry["valueFrom"]["secretKeyRef"]
                value = self.secrets[reference["name"]][reference["key"]]
            found[entry["name"]] = {self.known_as: "127.0.0.1", "29400": self.port}.get(value, value)
        return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) as the kubelet does: $$ is a dollar sign, an unknown name stays."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)
