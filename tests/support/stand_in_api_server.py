"""A stand-in for the API server of a Kubernetes cluster, for the real `kubectl`: pods of Jobs run here.

It keeps what is created, starts a Job's pods by `stand_in_pods`, and answers with states as a cluster does. It checks
nothing of what it gets: for that there are the published models.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from stand_in_pods import INDEX, StandInPods

CORE = {"configmaps": "ConfigMap", "pods": "Pod", "services": "Service"}
BATCH = {"jobs": "Job"}
_PATH = re.compile(r"/(?:api/v1|apis/batch/v1)/namespaces/(\w+)/(\w+)(?:/([-\w.]+))?(/log)?")


class StandInCluster:
    """What the API server knows.

    Args:
        folder: for archives and logs of pods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.codes: dict[str, int] = {}
        self.deleted: list[str] = []
        self.readers: list[threading.Thread] = []

    def create(self, plural: str, content: dict[str, Any]) -> dict[str, Any]:
        name = content["metadata"]["name"]
        content["metadata"].update(namespace="default", uid=f"{plural}-{name}")
        self.objects[plural, name] = content
        if plural == "jobs":
            self._start(name)
        return content

    def _start(self, name: str) -> None:
        documents = [self.objects[key] for key in (("services", name), ("jobs", name)) if key in self.objects]
        archive = None
        if ("configmaps", name) in self.objects:
            archive = self.folder / "code.tar.gz"
            archive.write_bytes(
                base64.b64decode(self.objects["configmaps", name]["binaryData"]["code.tar.gz"])
            )
        pods = StandInPods(yaml.safe_dump_all(documents), archive)
        for index in range(pods.count):
            pod = f"{name}-{index}-abcde"
            metadata = {
                "name": pod,
                "namespace": "default",
                "labels": self.objects["jobs", name]["spec"]["template"]["metadata"]["labels"],
                "annotations": {INDEX.split("'")[1]: str(index)},
            }
            self.objects["pods", pod] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": pods.pod,
            }
            self.running[pod] = pods.start(index)
            self.readers.append(threading.Thread(target=self._keep_log, args=(pod,), daemon=True))
            self.readers[-1].start()

    def _keep_log(self, pod: str) -> None:
        process = self.running[pod]
        with open(self.folder / f"{pod}.log", "w") as file, process.stdout or nullcontext(()) as lines:
            for line in lines:
                file.write(line)
                file.flush()
        self.codes[pod] = process.wait()

    def get(self, plural: str, name: str) -> dict[str, Any] | None:
        found = self.objects.get((plural, name))
        if found is None:
            return None
        pods = [key for kind, key in self.objects if kind == "pods" and key.startswith(f"{name}-")]
        if plural == "pods":
            found["status"] = self._pod_status(name)
        elif plural == "jobs" and all(pod in self.codes for pod in pods):
            kind = "Failed" if any(self.codes[pod] for pod in pods) else "Complete"
            reason = {
                "type": kind,
                "status": "True",
                "reason": "PodFailurePolicy" if kind == "Failed" else "",
            }
            found["status"] = {"conditions": [reason]}
        return found

    def _pod_status(self, name: str) -> dict[str, Any]:
        if name not in self.codes:
            return {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}
        code = self.codes[name]
        ended = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}
        return {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "node", "state": ended}],
        }

    def listed(self, plural: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        found = [self.get(plural, name) for kind, name in list(self.objects) if kind == plural]
        return [
            each for each in found if each and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]

    def delete(self, plural: str, name: str) -> dict[str, Any] | None:
        """Delete as the garbage collector does it: a Job's pods go with it, and get SIGTERM."""
        self.deleted.append(f"{plural}/{name}")
        if plural == "jobs":
            for pod in [key for kind, key in self.objects if kind == "pods" and key.startswith(f"{name}-")]:
                self.running[pod].send_signal(signal.SIGTERM)
                del self.objects["pods", pod]
        return self.objects.pop((plural, name), None)


def _handler(cluster: StandInCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _say(self, content: Any, code: int = 200) -> None:
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _not_found(self) -> None:
            name = self.path.split("?")[0].rpartition("/")[2]
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            self._say({**status, "message": f'"{name}" not found'}, 404)

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            answers = {
                "/openapi/v3": {
                    "paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in _SCHEMAS}
                },
                **{f"/openapi/v3/{path}": schema for path, schema in _SCHEMAS.items()},
                "/api": {"kind": "APIVersions", "versions": ["v1"]},
                "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
                "/api/v1": _resources("v1", CORE),
                "/apis/batch/v1": _resources("batch/v1", BATCH),
            }
            found = _PATH.fullmatch(url.path)
            if url.path in answers:
                return self._say(answers[url.path])
            if not found:
                return self._not_found()
            _, plural, name, log = found.groups()
            if log:
                return self._log(name, "follow=true" in url.query)
            if name is None:
                selector = parse_qs(url.query).get("labelSelector", [""])[0]
                kind, api = (CORE | BATCH)[plural], "batch/v1" if plural in BATCH else "v1"
                return self._say(
                    {"kind": f"{kind}List", "apiVersion": api, "items": cluster.listed(plural, selector)}
                )
            content = cluster.get(plural, name)
            return self._not_found() if content is None else self._say(content)

        def _log(self, pod: str, follow: bool) -> None:
            process = cluster.running[pod]
            if follow:
                process.wait()
                while pod not in cluster.codes:
                    time.sleep(0.05)
            self._say((cluster.folder / f"{pod}.log").read_text())

        def do_POST(self) -> None:
            found = _PATH.fullmatch(urlsplit(self.path).path)
            assert found, self.path
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._say(cluster.create(found[2], content), 201)

        def do_DELETE(self) -> None:
            found = _PATH.fullmatch(urlsplit(self.path).path)
            assert found, self.path
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            gone = cluster.delete(found[2], found[3])
            self._not_found() if gone is None else self._say(gone)

    return Handler


_VERSION = {"groupVersion": "batch/v1", "version": "v1"}
_GROUP = {"name": "batch", "versions": [_VERSION], "preferredVersion": _VERSION}


def _resources(version: str, kinds: dict[str, str]) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "watch"]
    found = [
        {"name": plural, "singularName": plural[:-1], "kind": kind, "namespaced": True, "verbs": verbs}
        for plural, kind in kinds.items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def _schema(path: str, group: str, kinds: dict[str, str]) -> dict[str, Any]:
    """Tells kubectl that the server, not kubectl, checks fields."""
    checked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {
        f"/{path}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "parameters": checked,
                "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind},
                "responses": {},
            }
        }
        for plural, kind in kinds.items()
    }
    return {"openapi": "3.0.0", "info": {"title": "Stand-in", "version": "v1"}, "paths": paths}


_SCHEMAS = {"api/v1": _schema("api/v1", "", CORE), "apis/batch/v1": _schema("apis/batch/v1", "batch", BATCH)}


@contextmanager
def stand_in_cluster(folder: Path) -> Iterator[tuple[StandInCluster, Path]]:
    """Serve a cluster; yields it and the file that tells kubectl where it is."""
    cluster = StandInCluster(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield cluster, path
    finally:
        server.shutdown()
        server.server_close()
        for process in cluster.running.values():
            process.kill()
        for reader in cluster.readers:
            reader.join()
