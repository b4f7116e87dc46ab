"""`stratagem checkpoint`: what each command prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from stratagem_cli.main import main

from stratagem import Checkpoint


def save(checkpointer, path: str, value: float = 1.0, **state: object) -> None:
    tensors = {
        "model/embed.weight": torch.full((3, 2), value),
        "model/head.bias": torch.zeros(4),
        "optimizer/0/head.bias/exp_avg": torch.zeros(4),
    }
    checkpointer.save(path, Checkpoint(tensors, {"kind": "trainer", **state}))


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert main(["checkpoint", *args]) == code
    return capsys.readouterr().out


# inspect --------------------------------------------------------------------------------------------


def test_inspect(checkpointer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume = {
        "exact": ["the data, from the next sample on"],
        "inexact": {"random numbers": "no checkpoint has them"},
    }
    save(checkpointer, "a", progress={"step": 7, "epoch": 1, "batch": 3}, strategy="ddp", resume=resume)
    said = run(capsys, "inspect", "a")
    for line in (
        "a: stratagem",
        "step 7, epoch 1, batch 3, strategy ddp, kind trainer, ranks 1",
        "3 tensors, 14 values, 56 bytes",
        "model       2 tensors",
        "model/embed.weight             float32   3×2",
        "resumes exactly: the data, from the next sample on",
        "doesn't resume exactly: random numbers: no checkpoint has them",
    ):
        assert line in said
    assert len(said.splitlines()) < 24
    summary = json.loads(run(capsys, "inspect", "a", "--json"))
    assert summary["tensors"]["model/head.bias"] == {"dtype": "float32", "shape": [4]}
    assert summary["resume"] == resume


def test_inspect_shows_one_screen_unless_all_is_asked_for(
    checkpointer,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpointer.save("a", Checkpoint({f"model/{n}": torch.zeros(1) for n in range(50)}))
    assert "… and 38 more: --all shows them" in run(capsys, "inspect", "a")
    assert "model/49" in run(capsys, "inspect", "a", "--all")
    assert "resumes: unknown" in run(capsys, "inspect", "a")


def test_inspect_of_other_formats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.ones(2, 2)}, "x.pt")
    assert run(capsys, "inspect", "x.pt").startswith(
        "x.pt: torch\n  1 tensors, 4 values, 16 bytes\n  w  float32   2×2"
    )


def test_a_state_of_other_types_is_no_fault(
    checkpointer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"progress": {"step": "x", "epoch": "y"}, "resume": [1], "callbacks": [2], "prepared": [3]}
    save(checkpointer, "runs/a", **state)
    assert "resumes: unknown" in run(capsys, "inspect", "runs/a")
    assert "stays  a  step -1" in run(capsys, "prune", "runs", "--keep", "1")
    run(capsys, "convert", "runs/a", "x.pt")


# verify ---------------------------------------------------------------------------------------------


def test_verify(checkpointer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcd":
        save(checkpointer, name)
    assert run(capsys, "verify", "a", "b") == "a: whole\nb: whole\n"
    content = bytearray(Path("a/tensors-00000.safetensors").read_bytes())
    content[-1] ^= 1
    Path("a/tensors-00000.safetensors").write_bytes(content)
    os.truncate("b/state.json", 3)
    os.unlink("c/tensors-00000.safetensors")
    said = run(capsys, "verify", "a", "b", "c", "d", code=1)
    assert "a: tensors-00000.safetensors: bytes 0 to" in said
    assert "aren't what was written: model/embed.weight, model/head.bias, optimizer" in said
    assert "b: state.json has 3 bytes instead of" in said
    assert "c: tensors-00000.safetensors is missing: model/embed.weight" in said
    assert "d: whole" in said


def test_verify_names_the_tensor_that_is_torn(
    checkpointer,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpointer.save("a", Checkpoint({f"model/{name}": torch.zeros(2**18) for name in "abcd"}))
    path = Path("a/tensors-00000.safetensors")
    content = bytearray(path.read_bytes())
    content[int(2.5 * 2**20)] ^= 1
    path.write_bytes(content)
    (line,) = run(capsys, "verify", "a", code=1).splitlines()
    assert line.endswith("bytes 2097152 to 3145728 aren't what was written: model/b, model/c")


def test_verify_of_other_formats_finds_what_is_short(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(100)}, "x.safetensors")
    assert run(capsys, "verify", "x.safetensors") == "x.safetensors: whole\n"
    os.truncate("x.safetensors", 300)
    assert main(["checkpoint", "verify", "x.safetensors"]) == 2


# diff -----------------------------------------------------------------------------------------------


def test_diff(checkpointer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(checkpointer, "a")
    save(checkpointer, "b", 1.5)
    assert run(capsys, "diff", "a", "a").startswith("3 tensors equal, 0 differ")
    said = run(capsys, "diff", "a", "b", code=1)
    assert "model/embed.weight: 6 values differ, by up to 0.5" in said
    assert "2 tensors equal, 1 differ by up to 0.5" in said


def test_diff_with_another_format(
    checkpointer,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(checkpointer, "a")
    nan = torch.full((3, 2), float("nan"))
    torch.save({"net.embed.weight": nan, "net.head.bias": torch.zeros(5), "more": torch.ones(1)}, "x.pt")
    said = run(capsys, "diff", "x.pt", "a", "--rename", "net.=", code=1)
    assert "only in the first: more" in said
    assert "embed.weight: 6 values differ, by up to inf" in said
    assert "head.bias: shapes (5,) and (4,)" in said


# convert --------------------------------------------------------------------------------------------


def test_convert(checkpointer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(checkpointer, "a")
    said = run(capsys, "convert", "a", "x.safetensors", "--rename", "head.=top.")
    assert said.splitlines() == [
        "x.safetensors: 2 tensors, 40 bytes, stratagem to safetensors",
        "left out: 1 tensors of optimizers and callbacks, and the run's state",
    ]
    run(capsys, "convert", "x.safetensors", "b", "--to", "stratagem", "--rename", "top.=head.")
    assert "0 differ by up to 0, 0 of another shape, 1 missing in the second" in run(
        capsys, "diff", "a", "b", code=1
    )
    assert "it has only weights, from which no run can resume" in run(capsys, "inspect", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "nothing"], "there is no checkpoint at nothing; check the path"),
        (["inspect", "empty"], "empty is a folder of no known format"),
        (["inspect", "net.py"], "net.py is a file of no known format"),
        (["verify"], "PATH is missing"),
        (["diff", "a", "nothing"], "there is no checkpoint at nothing"),
        (["diff", "a", "a", "--rename", "x"], "--rename got 'x': pass OLD=NEW"),
        (["convert", "a", "b"], "b has no known suffix: choose a format with --to"),
        (["convert", "a", "b", "--to", "onnx"], "there is no format 'onnx': choose one of stratagem"),
        (["convert", "a", "net.py", "--to", "torch"], "exists, and isn't replaced"),
        (["convert", "a", "a", "--to", "stratagem"], "exists, and isn't replaced"),
        (["convert", "a", "x.pt", "--key", "model"], "--key is for torch"),
        (["convert", "a", "x.pt", "--hf-config", "empty"], "--hf-config is for huggingface"),
        (["convert", "a", "hf", "--to", "huggingface", "--hf-config", "empty"], "empty has no config.json"),
        (["convert", "a", "hf", "--to", "huggingface", "--max-shard-size", "0"], "--max-shard-size got '0'"),
        (["convert", "a", "net.py/x.pt"], "net.py/x.pt can't be written: "),
        (["convert", "a", "net.py/x", "--to", "stratagem"], "net.py/x can't be written: "),
        (["inspect", "a", "--key", "model"], "--key is for torch"),
        (["convert", "a", "memory://x", "--to", "dcp"], "memory://x is a URL"),
        (["prune", "empty", "--keep", "1"], "empty has no checkpoints"),
        (["prune", "nothing", "--keep", "1"], "there is no folder nothing"),
        (["prune", "runs", "--keep", "1", "--by", "best"], "no checkpoint in runs has a score"),
    ],
)
def test_bad_input(checkpointer, folder: Path, refused, words: list[str], said: str) -> None:
    save(checkpointer, "a")
    save(checkpointer, "runs/a")
    Path("empty").mkdir()
    Path("net.py").write_text("x = 1\n" * 10)
    assert said in refused("checkpoint", *words)
    assert sorted(os.listdir()) == ["a", "empty", "net.py", "runs"]


# prune ----------------------------------------------------------------------------------------------


@pytest.fixture
def several(checkpointer, folder: Path) -> Path:
    """Checkpoints of steps 1 to 5, of which the second is the best and `last` names the fifth."""
    for step, score in ((1, 3.0), (2, 1.0), (3, float("nan")), (4, 2.0), (5, 4.0)):
        callback = {"current_score": score, "best_path": "elsewhere/step-2"}
        state = {"progress": {"step": step}, "callbacks": {"ModelCheckpoint('val_loss',)": callback}}
        save(checkpointer, f"runs/step-{step}", **state)
    os.symlink("step-5", "runs/last")
    Path("runs/notes.txt").write_text("x")
    return folder


def names() -> list[str]:
    return [name for name in sorted(os.listdir("runs")) if name.startswith("step")]


def test_prune_keeps_the_newest_and_what_is_referred_to(
    several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "3 checkpoints, " in run(capsys, "prune", "runs", "--keep", "1", "--dry-run")
    assert len(names()) == 5
    said = run(capsys, "prune", "runs", "--keep", "1")
    assert "stays  step-2  step 2: the best of its run" in said
    assert names() == ["step-2", "step-5"]
    assert sorted(os.listdir("runs")) == ["last", "notes.txt", "step-2", "step-5"]


def test_prune_keeps_the_best(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "prune", "runs", "--keep", "2", "--by", "best")
    assert "stays  step-5  step 5: last is it" in said
    assert names() == ["step-2", "step-4", "step-5"]


def test_prune_by_the_largest_score(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "prune", "runs", "--keep", "2", "--by", "best", "--mode", "max")
    assert names() == ["step-1", "step-2", "step-5"]


def test_scores_of_several_callbacks(checkpointer, folder: Path, refused) -> None:
    for step in (1, 2):
        scores = {"A('loss')": {"current_score": 1.0 * step}, "B('acc')": {"current_score": -1.0 * step}}
        save(checkpointer, f"runs/step-{step}", progress={"step": step}, callbacks=scores)
    assert "scores of several callbacks: choose one with --monitor" in refused(
        "checkpoint", "prune", "runs", "--keep", "1", "--by", "best"
    )
    assert main(["checkpoint", "prune", "runs", "--keep", "1", "--by", "best", "--monitor", "loss"]) == 0
    assert names() == ["step-1"]


# what is no file -------------------------------------------------------------------------------------

COMMANDS = (
    ("inspect", "P"),
    ("verify", "P"),
    ("diff", "P", "good.ckpt"),
    ("diff", "good.ckpt", "P"),
    ("convert", "P", "new", "--to", "stratagem"),
    ("convert", "good.ckpt", "new", "--to", "huggingface", "--hf-config", "P"),
    ("prune", "P", "--keep", "1"),
)


@pytest.mark.timeout(300)
def test_what_is_no_regular_file_is_refused(folder: Path, refused: Callable[..., str]) -> None:
    torch.save({"state_dict": {"w": torch.ones(3)}}, "good.ckpt")
    for name in ("fifo", "fifo.ckpt", "fifo.safetensors"):
        os.mkfifo(name)
    for name, file in (
        ("own", "manifest.json"),
        ("dcp", ".metadata"),
        ("hf", "model.safetensors.index.json"),
        ("single", "model.safetensors"),
        ("ds", "mp_rank_00_model_states.pt"),
        ("latest", "latest"),
    ):
        os.mkdir(name)
        os.mkfifo(os.path.join(name, file))
    os.mkdir("endless")
    os.symlink("/dev/zero", "endless/manifest.json")
    Path("deep.safetensors").write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)
    os.mkdir("deep")
    Path("deep/manifest.json").write_text("[" * 100_000)
    odd = [
        *("fifo", "fifo.ckpt", "fifo.safetensors", "own", "dcp", "hf", "single", "ds", "latest", "endless"),
        *("deep.safetensors", "deep", "/dev/zero", "/dev/null", "/proc/self/mem", "/proc/self"),
        *("nope://x", "::", ""),
    ]
    for path in odd:
        for command in COMMANDS:
            words = [path if word == "P" else word for word in command]
            assert refused("checkpoint", *words), (path, command)


def test_a_store_whose_library_fails_is_one_sentence(
    folder: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.implementations.memory

    def fail(*args: object, **keywords: object) -> None:
        raise RuntimeError("no credentials\nof any kind")  # botocore's isn't an OSError either

    for name in ("info", "ls", "isdir", "exists"):
        monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, name, fail)
    for words in (
        ("inspect", "memory://x"),
        ("verify", "memory://x"),
        ("prune", "memory://x", "--keep", "1"),
    ):
        assert "can't be reached: RuntimeError: no credentials of any kind" in refused("checkpoint", *words)


# archives --------------------------------------------------------------------------------------------


def test_verify_compares_the_checksums_of_an_archive(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"a": torch.ones(300), "b": torch.ones(400)}, "a.ckpt")
    assert run(capsys, "verify", "a.ckpt") == "a.ckpt: whole\n"
    content = bytearray(Path("a.ckpt").read_bytes())
    at = content.find(torch.ones(400).numpy().tobytes())
    content[at + 801] ^= 4
    Path("torn.ckpt").write_bytes(content)
    assert "isn't what was written: b\n" in run(capsys, "verify", "torn.ckpt", code=1)
    assert main(["checkpoint", "convert", "a.ckpt", "b.pt"]) == 0
    capsys.readouterr()
    assert run(capsys, "verify", "b.pt") == "b.pt: whole\n"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(300)}, "without.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert run(capsys, "verify", "without.pt") == "without.pt: whole\n"
