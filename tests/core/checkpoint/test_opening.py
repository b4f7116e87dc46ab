import hashlib
import json
import pickle

import pytest
import torch

from stratagem.checkpoint import Checkpoint, describe
from stratagem.errors import CheckpointError, UsageError

FILES = [
    "manifest.json",
    "rank-00000.json",
    "rank-00000.safetensors",
    "state.json",
    "state.safetensors",
    "tensors-00000.safetensors",
]


@pytest.fixture
def saved(checkpointer, tmp_path):
    state = {"epoch": 1, "scale": torch.ones(3)}
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(20, 3)}, state, state))
    assert sorted(file.name for file in (tmp_path / "c").iterdir()) == FILES
    return tmp_path / "c"


def refused(checkpointer, path):
    with pytest.raises(CheckpointError) as caught:
        checkpointer.open(str(path))
    message = str(caught.value)
    assert message.startswith(str(path)) or f"no checkpoint at {path}" in message
    assert "\n" not in message
    assert not message.endswith(".")
    assert isinstance(caught.value, UsageError)
    with pytest.raises(CheckpointError):
        describe(str(path))
    return message


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 0.5, -1], ids=["empty", "half", "a byte short"])
def test_each_truncated_file_is_named(checkpointer, saved, name, keep):
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: int(len(content) * keep) if keep >= 0 else -1])
    assert name in refused(checkpointer, saved)


@pytest.mark.parametrize("name", FILES[1:])
def test_each_missing_file_is_named(checkpointer, saved, name):
    (saved / name).unlink()
    assert f"is incomplete: {name} is missing" in refused(checkpointer, saved)


@pytest.mark.parametrize("name", FILES[1:-1])
def test_each_changed_file_is_named(checkpointer, saved, name):
    content = bytearray((saved / name).read_bytes())
    content[-2] ^= 1
    (saved / name).write_bytes(content)
    assert f"the content of {name} isn't what was written" in refused(checkpointer, saved)


def test_a_damaged_header_of_tensors_is_named_when_read(checkpointer, saved):
    content = bytearray((saved / FILES[-1]).read_bytes())
    content[0:8] = (2**40).to_bytes(8, "little")
    (saved / FILES[-1]).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tensors-00000.safetensors is damaged: its header"):
        checkpointer.open(str(saved)).read({"w": torch.ones(20, 3)})


def test_nothing_there(checkpointer, tmp_path):
    assert (
        refused(checkpointer, tmp_path / "nowhere")
        == f"there is no checkpoint at {tmp_path}/nowhere; check the path"
    )


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


@pytest.mark.parametrize("name", ["epoch.ckpt", "model.pt", "whatever"])
def test_a_pickle_is_refused_and_not_run(checkpointer, tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    assert "a checkpoint is a directory; files such as .ckpt and .pt are pickles" in refused(
        checkpointer, tmp_path / name
    )


def test_a_directory_of_something_else(checkpointer, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log.txt").write_text("x")
    assert "is not a checkpoint: it has no manifest.json" in refused(checkpointer, tmp_path / "logs")
    (tmp_path / "logs" / "manifest.json").write_text('{"name": "my web app"}')
    assert "doesn't say format 'stratagem-checkpoint'" in refused(checkpointer, tmp_path / "logs")


def rewrite(saved, change):
    manifest = json.loads((saved / "manifest.json").read_text())
    change(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))


def test_a_newer_version_says_who_wrote_it(checkpointer, saved):
    rewrite(saved, lambda manifest: manifest.update(format_version=2, stratagem_version="9.1"))
    message = refused(checkpointer, saved)
    assert (
        "has format version 2, written by stratagem 9.1, but this stratagem reads versions up to 1; upgrade"
        in message
    )


def test_an_unfinished_one_is_refused_by_name(checkpointer, saved):
    unfinished = saved.rename(saved.parent / ".best.tmp-0123456789abcdef")
    assert "is an unfinished checkpoint" in refused(checkpointer, unfinished)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"][0].update(name="../elsewhere.json"),
        lambda m: m["files"][0].update(name="/etc/passwd"),
        lambda m: m["tensors"]["w"].update(shape=[20, 4]),
        lambda m: m["tensors"]["w"].update(pieces=[]),
        lambda m: m["tensors"]["w"].update(pieces=[[9, [0, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(pieces=[[4, [1, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(pieces=[[4, [0], [60]]]),
        lambda m: m["tensors"]["w"].update(dtype="float31"),
        lambda m: m["aliases"].update(v="missing"),
        lambda m: m.pop("world_size"),
        lambda m: m.update(files="none"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_damage(checkpointer, saved, change):
    rewrite(saved, change)
    assert "is damaged: its manifest.json can't be understood" in refused(checkpointer, saved)


def test_state_of_an_unknown_kind_is_damage(checkpointer, saved):
    text = b'{"$object": ["builtins.exec", "1"]}'
    (saved / "state.json").write_bytes(text)

    def adopt(manifest):
        record = next(record for record in manifest["files"] if record["name"] == "state.json")
        record.update(size_bytes=len(text), sha256=hashlib.sha256(text).hexdigest())

    rewrite(saved, adopt)
    with pytest.raises(CheckpointError, match=r"unknown kind '\$object'"):
        checkpointer.open(str(saved))
