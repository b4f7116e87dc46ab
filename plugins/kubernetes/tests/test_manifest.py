"""Manifests are what the published models of Kubernetes, JobSet and Kubeflow Trainer know."""

from __future__ import annotations

import importlib
import io
import json
import os
import tarfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from stratagem_kubernetes import KubernetesPlace
from stratagem_kubernetes.archive import pack
from stratagem_kubernetes.manifest import object_name
from stratagem_kubernetes.pods import CONTAINER
from stratagem_places import PlaceRequest

from stratagem.errors import ConfigError, UsageError

MODELS = {
    "Service": "io_k8s_api_core_v1_service:IoK8sApiCoreV1Service",
    "Job": "io_k8s_api_batch_v1_job:IoK8sApiBatchV1Job",
    "JobSet": "jobset_v1alpha2_job_set:JobsetV1alpha2JobSet",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime:TrainerV1alpha1TrainingRuntime",
    "TrainJob": "trainer_v1alpha1_train_job:TrainerV1alpha1TrainJob",
}
EVERYTHING: dict[str, Any] = {
    "image": "registry.example/team/net:1",
    "cpu": "8",
    "memory": "64Gi",
    "gpus": 4,
    "shm": "8Gi",
    "pvc": "runs",
    "env": ["A=1", "B=$(A)"],
    "secrets": ["TOKEN=wandb/key"],
    "env_from": ["s3-login"],
    "service_account": "trainer",
    "image_pull_secret": "registry",
    "node_selector": ["pool=a100"],
    "labels": ["kueue.x-k8s.io/queue-name=team"],
}


def request_of(*words: str, **keywords: Any) -> PlaceRequest:
    keywords = {"run_dir": "/home/me/runs/20260101-120000-Net", "min_nodes": 2, "max_nodes": 2, **keywords}
    return PlaceRequest(stage="fit", words=("net.py:Net", *words), code_dir="/home/me/code", **keywords)


def documents(place: KubernetesPlace, request: PlaceRequest) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(place.render(request))}


def lost(written: Any, known: Any, path: str = "") -> list[str]:
    """What a model left out or changed; it leaves out what it doesn't know, and adds defaults."""
    if isinstance(written, dict) and isinstance(known, dict):
        return [each for key in written for each in lost(written[key], known.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        return [each for i in range(len(written)) for each in lost(written[i], known[i], f"{path}[{i}]")]
    return [] if written == known else [f"{path}: {written!r} became {known!r}"]


def test_a_field_that_a_model_does_not_know_is_noticed() -> None:
    assert lost({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}, "c": 1}) == [".a.b[1]: 2 became 3"]
    assert lost({"a": {"b": 1}}, {"a": {}}) == [".a.b: 1 became None"]


@pytest.mark.parametrize("options", [EVERYTHING, {"image": "net", "code": "image"}], ids=["all", "least"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("form", ["job", "jobset", "trainjob"])
def test_the_models_of_kubeflow_keep_all_of_a_manifest(
    form: str, nodes: int, options: dict[str, Any]
) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="needs the package kubeflow-trainer-api")
    request = request_of(min_nodes=nodes, max_nodes=nodes, devices=4)
    for kind, document in documents(KubernetesPlace(form=form, **options), request).items():
        module, _, name = MODELS[kind].partition(":")
        model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{module}"), name)
        assert lost(document, model.from_dict(document).to_dict()) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_models_of_kubernetes_keep_all_of_a_job(nodes: int) -> None:
    client = pytest.importorskip(
        "kubernetes.client", reason="needs the package kubernetes: make test-kubernetes"
    )
    api = client.ApiClient()
    request = request_of(min_nodes=nodes, max_nodes=nodes, devices=4)
    for kind, document in documents(KubernetesPlace(**EVERYTHING), request).items():
        said = json.dumps(document)
        model = api.deserialize(said, f"V1{kind}", "application/json")
        assert lost(document, api.sanitize_for_serialization(model)) == []


VERSIONS = [f"1.{minor}.0" for minor in range(27, 38)]


@pytest.mark.parametrize("options", [EVERYTHING, {"image": "net", "code": "image"}], ids=["all", "least"])
def test_each_supported_version_of_kubernetes_accepts_a_job(options: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    documents_ = documents(KubernetesPlace(**options), request_of(devices=4))
    for version in VERSIONS:
        for document in documents_.values():
            schemas.validate(document, version, strict=True)
    broken = deepcopy(documents_["Job"])
    del broken["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"]
    schemas.validate(broken, "1.29.0", strict=True)
    with pytest.raises(schemas.ValidationError, match="'onPodConditions' is a required property"):
        schemas.validate(broken, "1.28.0", strict=True)


def test_pods_of_all_forms_are_the_same_but_for_the_first_node_s_name() -> None:
    found = []
    for form in ("job", "jobset", "trainjob"):
        known = documents(KubernetesPlace(form=form, **EVERYTHING), request_of(devices=4))
        spec = known["Job" if form == "job" else "JobSet" if form == "jobset" else "TrainingRuntime"]["spec"]
        if form == "trainjob":
            spec = spec["template"]["spec"]
        if form != "job":
            [node] = spec["replicatedJobs"]
            spec = node["template"]["spec"]
        pod = spec["template"]["spec"]
        pod.pop("subdomain", None)
        [address] = [e for e in pod["containers"][0]["env"] if e["name"] == "MASTER_ADDR"]
        found.append((pod, address.pop("value"), spec["podFailurePolicy"], spec["backoffLimit"]))
    assert found[0][0] == found[1][0] == found[2][0]
    assert found[0][2:] == found[1][2:] == found[2][2:]
    name = object_name("20260101-120000-Net")
    assert [each[1] for each in found] == [f"{name}-0.{name}", *[f"{name}-{CONTAINER}-0-0.{name}"] * 2]


def test_secrets_are_in_a_manifest_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "this machine's own")
    text = KubernetesPlace(**EVERYTHING).render(request_of(devices=4))
    assert "this machine's own" not in text
    [container] = documents(KubernetesPlace(**EVERYTHING), request_of())["Job"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}} in container[
        "env"
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-login"}}]


def test_without_a_volume_nothing_goes_on_by_itself() -> None:
    spec = documents(KubernetesPlace(image="net"), request_of())["Job"]["spec"]
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob"]
    [container] = spec["template"]["spec"]["containers"]
    assert "--ckpt-path" not in container["command"]


def test_a_volume_lets_a_fit_go_on_unless_it_says_from_where() -> None:
    place = KubernetesPlace(image="net", pvc="runs")
    for words, expected in (((), ["auto"]), (("--ckpt-path", "last"), ["last"]), (("--ckpt-path=x",), [])):
        [container] = documents(place, request_of(*words))["Job"]["spec"]["template"]["spec"]["containers"]
        command = container["command"]
        assert [command[i + 1] for i, word in enumerate(command) if word == "--ckpt-path"] == expected


def test_gpus_are_as_many_as_devices_on_cuda() -> None:
    def limits(**keywords: Any) -> dict[str, str]:
        place = KubernetesPlace(image="net", **keywords.pop("options", {}))
        pod = documents(place, request_of(**keywords))["Job"]["spec"]["template"]["spec"]
        return pod["containers"][0].get("resources", {}).get("limits", {})

    assert limits(accelerator="cuda", devices=8) == {"nvidia.com/gpu": "8"}
    assert limits(accelerator="cpu", devices=8) == {}
    assert limits(devices=8, options={"gpus": 2, "gpu_resource": "amd.com/gpu"}) == {"amd.com/gpu": "2"}
    with pytest.raises(UsageError, match=r"--devices N, or --on-set gpus=N"):
        limits(accelerator="cuda", devices=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "image is missing: give --on-set image="),
        ({"image": "a b"}, "no image's name"),
        ({"form": "deployment"}, "form='deployment' is unknown; there is job, jobset, trainjob"),
        ({"code": "git"}, "code='git' is unknown"),
        ({"workdir": "/src"}, "give code=image too"),
        ({"namespace": "Team_A"}, "namespace='Team_A' would be refused by Kubernetes"),
        ({"pvc": "My Claim"}, "pvc='My Claim' would be refused"),
        (
            {"memory": "64 GB"},
            "memory='64 GB' would be refused by Kubernetes: give a quantity as 500m, 8 or 64Gi",
        ),
        ({"mount": "here"}, "an absolute path"),
        ({"gpus": -1}, "gpus=-1 is negative"),
        ({"env": ["A"]}, "has no '='"),
        ({"env": ["A=1", "A=2"]}, "is there twice"),
        ({"env": ["1A=1"]}, "a variable's name"),
        ({"env": ["MASTER_ADDR=x"]}, "is set for the nodes' rendezvous"),
        ({"env": ["A=1"], "secrets": ["A=b/c"]}, "A is in env and in secrets"),
        ({"secrets": ["A=hunter2"]}, "a Secret and its key, as wandb/key"),
        ({"labels": ["a b=c"]}, "a label's key"),
        ({"node_selector": ["pool=a b"]}, "letters, digits"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_before_anything_is_sent(
    options: dict[str, Any], said: str
) -> None:
    given = options if "image" in options or not options else {"image": "net", **options}
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace("$", r"\$")):
        KubernetesPlace(**given).render(request_of())


def test_names_of_runs_become_names_of_objects_that_stay_apart() -> None:
    assert object_name("digits") == "digits"
    names = ["First_Run", "first-run-", "20260101-120000-Net", "x" * 80, "x" * 81, "…", "-"]
    made = [object_name(name) for name in names]
    assert len(set(made)) == len(names)
    for name in made:
        assert len(name) <= 45
        assert name[0].isalpha()
        assert all(c.islower() or c.isdigit() or c == "-" for c in name)
        assert name[-1] != "-"


def test_code_that_a_configmap_cannot_hold_is_refused_with_its_largest_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("x = 1")
    (tmp_path / "large").symlink_to("/data/large")
    (tmp_path / "same.py").symlink_to("net.py")
    assert pack(str(tmp_path)) == pack(str(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(pack(str(tmp_path)))) as packed:
        assert packed.getnames() == [".", "./net.py", "./same.py"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_bytes(os.urandom(900_000))
    with pytest.raises(UsageError, match=r"0\.9 MB packed \(data/big.bin is the largest file\).*code=image"):
        pack(str(tmp_path))
