"""What can't be meant is one clear sentence and exit code 2 within seconds, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

HUGE = "9" * 5000
RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
}
TWO_NODES = ("--num-nodes", "2", "--strategy", "ddp", "--rdzv-endpoint")

ARGUMENTS: list[tuple[tuple[str, ...], str]] = [
    (("--devices", HUGE), "is beyond what any machine has"),
    (("--devices", "1000000000"), "is beyond what any machine has"),
    (("--devices", f"0,{HUGE}"), "is beyond what any machine has"),
    (("--devices", "\N{FULLWIDTH DIGIT TWO}"), "can't be understood"),
    (("--devices", "\N{SUPERSCRIPT TWO}"), "can't be understood"),
    (("--devices", "0,99", "--accelerator", "cpu"), "say how many, as devices=2"),
    (("--set", f"devices={HUGE}"), "is beyond what any machine has"),
    (("--num-nodes", HUGE), "is not a number of machines"),
    (("--num-nodes", "\N{FULLWIDTH DIGIT TWO}"), "is not a number of machines"),
    (("--seed", str(2**64)), "seed=18446744073709551616 must be a whole number from 0 to"),
    (("--seed", HUGE), "Invalid value for '--seed'"),
    (("--set", "seed=-1"), "seed=-1 must be a whole number"),
    (("--set", f"seed={HUGE}"), "is of the wrong type"),
    (("--set", "max_restarts=-1"), "max_restarts=-1 must be a whole number"),
    (("--set", f"trainer.max_epochs={HUGE}"), "is of the wrong type"),
    (("--set", f"model.hidden={HUGE}"), "is of the wrong type"),
    (("--set", f"model.lr={HUGE}"), "is of the wrong type"),
    (("--set", "trainer.val_check_interval=0"), "val_check_interval=0 is not an interval"),
    (("--run-dir", "a_file"), "run_dir='a_file' is a file"),
    (("--run-dir", "a_file/runs"), "is a file: choose a folder"),
    (("--run-dir", "a" * 300), "is too long: a name in a path has at most 255 bytes"),
    (("--run-dir", ""), "run_dir='' is not a folder's path"),
    (("--ckpt-path", "nowhere://x"), "which fsspec doesn't know"),
    (("--ckpt-path", "gs://bucket/x"), "gcsfs"),
    (("--ckpt-path", "hdfs://host/x"), "pyarrow"),
    (("--ckpt-path", ""), "is not a checkpoint's path"),
    (("--ckpt-path", "a" * 300), "is not a checkpoint's path"),
    (("--use", "os:system"), "implements none of the hooks"),
    (("--use", "json:JSONDecoder"), "implements none of the hooks"),
    (("--use", "nowhere:x"), "can't be imported"),
    (("--use", ":x"), "can't be imported"),
    (("--use", "..:x"), "can't be imported"),
    (("--strategy", ":ddp"), "names no distribution before the colon: write 'ddp'"),
    (("--strategy", "\0"), "no strategy is called"),
    (("--accelerator", "horovod"), "accelerator='horovod' is now called strategy='horovod'"),
    (("--strategy", "horovod_x"), "no strategy is called 'horovod_x'"),
    (("--node-rank", "3"), "node_rank=3: this run has one node"),
    (("--rdzv-endpoint", "host:1"), "this run has one node"),
    (("--rdzv-backend", "etcd-v2"), "this run has one node"),
    (("--rdzv-conf", "timeout=1"), "this run has one node"),
    ((*TWO_NODES, "host:1", "--rdzv-backend", "other"), "must be one of c10d, etcd"),
    ((*TWO_NODES, "host:1", "--rdzv-backend", "etcd-v2"), "pip install python-etcd"),
    ((*TWO_NODES, "host:x"), "give HOST:PORT"),
    ((*TWO_NODES, "host:99999"), "give HOST:PORT"),
    ((*TWO_NODES, "host:1", "--node-rank", "5"), "nodes are numbered from 0 to 1"),
]


@pytest.fixture
def refused_at_once(net: Path, refused: Callable[..., str]) -> Callable[..., str]:
    Path("a_file").write_text("")

    def run(*args: str) -> str:
        said = refused("fit", *args)
        assert len(said) < 2200
        return said

    return run


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS, ids=lambda value: str(value)[:60])
def test_argument(arguments: tuple[str, ...], said: str, refused_at_once: Callable[..., str]) -> None:
    assert said in refused_at_once("net.py:Net", *arguments)


BOMB = "model:\n  a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"  {one}: &{one} [{','.join([f'*{before}'] * 9)}]\n" for before, one in zip("abcdefgh", "bcdefghi")
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 20_000, "nested deeper than 100 levels (line 1, column 100)"),
        ("\n".join(" " * depth + "a:" for depth in range(900)), "nested deeper than 100 levels"),
        (BOMB, "more than 20000 keys and values, aliases replaced"),
        ("model: &m\n  a: *m\n", "an alias within what the alias stands for (line 2, column 6)"),
        ("seed: 1\nseed: 2\n", "the key 'seed' twice in one section (line 2, column 1)"),
        ("trainer: {max_epochs: 1, max_epochs: 2}\n", "the key 'max_epochs' twice in one section"),
        (f"seed: {HUGE}\n", "a number of 5000 digits"),
        ("model: {hidden: 2020-99-99}\n", "wants int"),
        ("? [a]\n: 1\n", "isn't YAML"),
        ("model: {hidden: !!python/object:os.system x}\n", "isn't YAML"),
        ("run_dir: ''\n", "is not a folder's path"),
    ],
)
def test_configuration(content: str, said: str, refused_at_once: Callable[..., str]) -> None:
    Path("run.yaml").write_text(content)
    assert said in refused_at_once("net.py:Net", "--config", "run.yaml")


def test_files_that_are_no_configuration(refused_at_once: Callable[..., str]) -> None:
    with open("huge.yaml", "w") as file:
        file.truncate(100 * 2**20)
    assert "it has 104857600 bytes, more than" in refused_at_once("net.py:Net", "--config", "huge.yaml")
    os.mkfifo("pipe.yaml")
    for path in ("pipe.yaml", "/dev/zero", "."):
        assert "it is no regular file" in refused_at_once("net.py:Net", "--config", path)
    assert "can't be read" in refused_at_once("net.py:Net", "--config", "\0")


def test_aliases_and_merges_that_a_configuration_has_still_work(folder: Path) -> None:
    from stratagem_cli.yaml_text import read_yaml

    read = read_yaml("base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\nagain: *base\n")
    assert read["other"] == {"a": 1, "b": 3}
    assert read["again"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({**RANK_0, "WORLD_SIZE": f"1{'0' * 30}"}, "WORLD_SIZE is '1000000000000000000000000000000', but"),
        ({"STRATAGEM_CONFIG": "{{"}, "STRATAGEM_CONFIG is '{{', but"),
        ({"STRATAGEM_CONFIG": "3"}, "STRATAGEM_CONFIG is '3', but"),
        ({"STRATAGEM_CONFIG": '{"nonsense": 3}'}, "but `stratagem run` sets it"),
        ({**RANK_0, "WORLD_SIZE": "9999999999"}, "at most 1000000 are believed"),
        ({**RANK_0, "WORLD_SIZE": HUGE}, "WORLD_SIZE is "),
        ({**RANK_0, "WORLD_SIZE": "\N{SUPERSCRIPT TWO}"}, "WORLD_SIZE is "),
        ({**RANK_0, "WORLD_SIZE": "1", "MASTER_PORT": "99999"}, "the highest is 65535"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x9999999999)"}, "for at most 1000000 nodes"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": ",".join(["1(x999999)"] * 50)}, "for at most 1000000 nodes"),
        (
            {**SLURM, "SLURM_STEP_ID": "\N{SUPERSCRIPT TWO}", "SLURM_STEP_TASKS_PER_NODE": "2"},
            "SLURM_STEP_ID",
        ),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_variable(
    variables: dict[str, str],
    said: str,
    refused_at_once: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said in refused_at_once("net.py:Net")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("binary.py", bytes(range(256)), "isn't Python"),
        ("null.py", b"a = 1\0", "isn't Python"),
        ("nested.py", b"(" * 5000, "isn't Python: too many nested parentheses"),
        ("deep.py", b"x = " + b"-" * 200_000 + b"1", "nested too deep for Python"),
        ("encoded.py", b"# coding: foo\n", "isn't Python: unknown encoding: foo"),
        ("./table.csv", b"a,b\n1,2\n", "has no class 'Net'"),
        ("./text.txt", b"some words\n", "isn't Python"),
    ],
)
def test_target(name: str, content: bytes, said: str, refused_at_once: Callable[..., str]) -> None:
    Path(name).write_bytes(content)
    assert said in refused_at_once(f"{name}:Net")


@pytest.mark.parametrize(
    "target", [":", "", "\0.py:Net", f"{'a' * 5000}.py:Net", "/dev/zero:Net", "table.csv:Net"]
)
def test_target_that_is_nowhere(target: str, refused_at_once: Callable[..., str]) -> None:
    assert refused_at_once(target).startswith("TARGET ")
