"""The job's script, as --dry-run prints it anywhere."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stratagem_cli.typed import Text, typed
from stratagem_places import PlacedRun, PlaceRequest
from stratagem_slurm.place import SlurmPlace

from stratagem.errors import ConfigError, UsageError

REQUEST = PlaceRequest(
    stage="fit",
    words=("net.py:Net", "--set", "model.name=it's"),
    run_dir="/runs/a b",
    code_dir="/runs/a b/place/code",
    subfolder="sub",
    devices=8,
)


def script(request: PlaceRequest = REQUEST, **options: Any) -> str:
    text = SlurmPlace(**options).render(request)
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return text


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_one_node() -> None:
    text = script(
        partition="gpu", account="me", time="4:00:00", gres="gpu:8", mem="64G", args=["--exclusive"]
    )
    assert directives(text) == [
        "--job-name='a b'",
        "--partition=gpu",
        "--account=me",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=64G",
        "--gres=gpu:8",
        "--time=4:00:00",
        "--signal=USR1@60",
        "--chdir='/runs/a b/place/code/sub'",
        "--output='/runs/a b/place/output/%j.txt'",
        "--open-mode=append",
        "--requeue",
        "--exclusive",
    ]
    assert "MASTER_ADDR" not in text
    assert """stratagem fit --run-dir '/runs/a b' net.py:Net --set 'model.name=it'"'"'s' "$@"\n""" in text


def test_several_nodes_meet_at_the_first() -> None:
    text = script(replace(REQUEST, min_nodes=4, max_nodes=4))
    assert "--nodes=4" in directives(text)
    assert "export MASTER_ADDR=" in text
    assert "NODE_RANK=$SLURM_PROCID" in text
    assert "--wait=60" in text
    elastic = script(replace(REQUEST, min_nodes=1, max_nodes=4))
    assert {"--nodes=1-4", "--no-kill"} <= set(directives(elastic))
    assert "--wait=0 --no-kill" in elastic


def test_restarts_are_an_array_of_jobs_one_after_the_other() -> None:
    text = script(replace(REQUEST, max_restarts=3))
    assert "--array=0-3%1" in directives(text)
    assert "--output='/runs/a b/place/output/%A_%a.txt'" in directives(text)
    assert "set -- --ckpt-path auto" in text
    assert 'scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"' in text
    assert "--ckpt-path" not in script(replace(REQUEST, stage="test", max_restarts=3))


def test_what_follows_from_the_request() -> None:
    cuda = replace(REQUEST, accelerator="cuda", grace_period_s=90.0)
    assert {"--gres=gpu:8", "--signal=USR1@120"} <= set(directives(script(cuda)))
    assert not [line for line in directives(script(replace(REQUEST, stage="run"))) if "signal" in line]
    given = script(cuda, gres="gpu:a100:8", cpus_per_task=64, signal="TERM@300", requeue=False)
    assert {"--gres=gpu:a100:8", "--cpus-per-task=64", "--signal=TERM@300", "--no-requeue"} <= set(
        directives(given)
    )
    unknown = script(replace(REQUEST, devices=None))
    assert not [line for line in directives(unknown) if "cpus" in line]


def test_containers() -> None:
    pyxis = script(container="nvcr.io#nvidia/pytorch", container_mounts=["/data"], python="python")
    assert "--container-image='nvcr.io#nvidia/pytorch'" in pyxis
    assert "--container-mounts='/runs/a b:/runs/a b,/data:/data'" in pyxis
    apptainer = script(
        container="torch.sif", container_runtime="apptainer", python="python", setup="module load x"
    )
    assert "\nmodule load x\n" in apptainer
    assert "apptainer exec --nv --bind '/runs/a b:/runs/a b'" in apptainer
    assert "torch.sif \\\n  python -m stratagem fit" in apptainer


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time": "soon"}, "time='soon' is no time of Slurm's"),
        ({"partition": "a\nb"}, "partition='a\\nb' must be one line"),
        ({"account": " "}, "account=' ' must be one line, and not empty"),
        ({"args": ["exclusive"]}, "args has 'exclusive'"),
        ({"args": ["--a\nb"]}, "must be one line"),
        ({"cpus_per_task": 0}, "cpus_per_task=0"),
        ({"signal": "usr1"}, "signal='usr1'"),
    ],
)
def test_values_that_cannot_be_right(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SlurmPlace(**options)
    assert sentence in str(refused.value)


def test_options_as_the_command_line_gives_them() -> None:
    values = {
        "time": "10",
        "cpus_per_task": "4",
        "requeue": "false",
        "args": "[--exclusive, --reservation=x]",
    }
    found = typed(SlurmPlace, {name: Text(value) for name, value in values.items()}, "")
    assert found == {
        "time": "10",
        "cpus_per_task": 4,
        "requeue": False,
        "args": ["--exclusive", "--reservation=x"],
    }
    for name, value, sentence in (
        ("partiton", "x", "SlurmPlace has no setting 'partiton'; nearest: partition"),
        ("cpus_per_task", "x", "SlurmPlace wants int | None"),
        ("container_runtime", "docker", "'docker' is of the wrong type"),
    ):
        with pytest.raises(ConfigError) as refused:
            typed(SlurmPlace, {name: Text(value)}, "")
        assert sentence in str(refused.value)


def test_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sbatch isn't installed here" in (SlurmPlace().why_not() or "")
    run = PlacedRun(run_dir=str(tmp_path), place="slurm", job={"job_id": "12"})
    with pytest.raises(UsageError, match="squeue can't be asked"):
        SlurmPlace().status(run)
    with pytest.raises(UsageError, match="scancel can't be asked"):
        SlurmPlace().stop(run)


STANDS_FOR_SLURM = """#!/bin/sh
case "$(basename "$0")" in
  squeue) printf '{squeue}' ;;
  sacct) if [ -n '{sacct}' ]; then printf '{sacct}'; else echo 'no accounting' >&2; exit 1; fi ;;
  scontrol) printf '{scontrol}' ;;
esac
"""


@pytest.mark.parametrize(
    ("squeue", "code", "sacct", "scontrol", "state"),
    [
        ("PENDING|Resources|\\n", "", "", "", "waiting"),
        ("RUNNING|None|n[1-2]\\nPENDING|JobArrayTaskLimit|\\n", "", "", "", "running"),
        ("PENDING|BeginTime|\\n", "75", "", "", "waiting"),
        ("PENDING|JobArrayTaskLimit|\\n", "0", "", "", "finished"),
        ("", "0", "", "", "finished"),
        ("", "75", "", "", "stopped"),
        ("", "1", "", "", "failed"),
        ("", "", "CANCELLED by 1000\\n", "", "stopped"),
        ("", "", "FAILED\\nTIMEOUT\\n", "", "failed"),
        ("", "", "COMPLETED\\n", "", "finished"),
        ("", "", "", "JobId=12 JobState=NODE_FAIL", "failed"),
        ("", "", "", "", "unknown"),
    ],
)
def test_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    squeue: str,
    code: str,
    sacct: str,
    scontrol: str,
    state: str,
) -> None:
    text = STANDS_FOR_SLURM.format(squeue=squeue, sacct=sacct, scontrol=scontrol)
    for name in ("squeue", "sacct", "scontrol"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "place").mkdir()
    if code:
        (tmp_path / "place/exit_code").write_text(f"{code}\n")
    run = PlacedRun(run_dir=str(tmp_path), place="slurm", job={"job_id": "12"})
    assert SlurmPlace().status(run).state == state


def test_no_value_becomes_a_line_of_its_own() -> None:
    for options in ({"partition": "a\rb"}, {"args": ["--comment=a\x0bb"]}):
        with pytest.raises(ConfigError, match="must be one line"):
            script(**options)
    with pytest.raises(ConfigError, match=r"--run-dir is '/runs/a.ntouch x', which has a line break"):
        script(replace(REQUEST, run_dir="/runs/a\ntouch x"))
