import os
import pickle
import shutil

import pytest
import torch
from forged import rewrite_file, rewrite_manifest
from stratagem_checkpoint import describe

from stratagem import Checkpoint
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
    assert f"{name} is damaged: bytes 0 to {len(content)} aren't what was written" in refused(
        checkpointer, saved
    )


def test_a_damaged_header_of_tensors_is_named_when_read(checkpointer, saved):
    content = bytearray((saved / FILES[-1]).read_bytes())
    content[0:8] = (2**40).to_bytes(8, "little")
    rewrite_file(saved, FILES[-1], bytes(content))
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


def test_another_version_says_who_wrote_it(checkpointer, saved):
    rewrite_manifest(saved, lambda manifest: manifest.update(format_version=3, stratagem_version="9.1"))
    message = refused(checkpointer, saved)
    assert (
        "has format version 3, written by stratagem 9.1, but this stratagem reads version 2; upgrade"
        in message
    )
    rewrite_manifest(saved, lambda manifest: manifest.update(format_version=1, stratagem_version="0.0"))
    assert (
        "has format version 1, written by stratagem 0.0, but this stratagem reads version 2; load"
        in refused(checkpointer, saved)
    )


@pytest.mark.parametrize("version", [-1, 0, True, None, "2", 2.0, [2]], ids=repr)
def test_a_version_that_is_none_is_damage(checkpointer, saved, version):
    rewrite_manifest(saved, lambda manifest: manifest.update(format_version=version))
    assert "is damaged: its manifest.json says format_version" in refused(checkpointer, saved)


def test_an_unfinished_one_is_refused_by_name(checkpointer, saved):
    unfinished = saved.rename(saved.parent / ".best.tmp-0123456789abcdef")
    assert "is an unfinished checkpoint" in refused(checkpointer, unfinished)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"][0].update(name="../elsewhere.json"),
        lambda m: m["files"][0].update(name="/etc/passwd"),
        lambda m: m["files"][0].update(name="manifest.json"),
        lambda m: m["files"][0].update(name="rank-00001.json"),
        lambda m: m["files"][0].update(size_bytes=-1),
        lambda m: m["files"][0].update(size_bytes="11"),
        lambda m: m["files"][0].update(xxh3_128=None),
        lambda m: m["files"][0].update(xxh3_128=""),
        lambda m: m["files"].append(m["files"][0]),
        lambda m: m.update(files=None),
        lambda m: m.update(files="none"),
        lambda m: m["tensors"]["w"].update(shape=[20, 4]),
        lambda m: m["tensors"]["w"].update(shape=[20, -3]),
        lambda m: m["tensors"]["w"].update(chunks=[]),
        lambda m: m["tensors"]["w"].update(chunks=None),
        lambda m: m["tensors"]["w"].update(chunks=[[9, [0, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[-1, [0, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[2, [0, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[4, [1, 0], [20, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[4, [0], [60]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[4, [0, 0], [10, 3]], [4, [0, 0], [10, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[4, [0, 0], [12, 3]], [4, [8, 0], [12, 3]]]),
        lambda m: m["tensors"]["w"].update(chunks=[[4, [0, 0], [10, 3]], [4, [11, 0], [9, 3]]]),
        lambda m: m["tensors"].update(
            huge={"dtype": "int8", "shape": [10**9], "chunks": [[4, [0], [10**9]]]}
        ),
        lambda m: m["tensors"]["w"].update(dtype="float31"),
        lambda m: m["aliases"].update(v="missing"),
        lambda m: m["aliases"].update(v=1),
        lambda m: m.pop("world_size"),
        lambda m: m.update(world_size=-3),
        lambda m: m.update(world_size=0),
        lambda m: m.update(world_size=True),
        lambda m: m.update(world_size=10**30),
        lambda m: m.update(world_size=1.0),
    ],
)
def test_a_manifest_that_makes_no_sense_is_damage(checkpointer, saved, change):
    rewrite_manifest(saved, change)
    assert "is damaged: its manifest.json can't be understood" in refused(checkpointer, saved)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": "stratagem-checkpoint", "format": "stratagem-checkpoint"}', "the key 'format' twice"),
        ('{"world_size": NaN}', "NaN is no JSON"),
        ("[" * 10**5, "nested too deeply"),
        ('{"world_size": ' + "9" * 5000 + "}", "is no JSON"),
        ("\ud800", "is no JSON"),
    ],
    ids=["twice", "NaN", "deep", "digits", "surrogate"],
)
def test_a_manifest_that_is_no_strict_json_is_damage(checkpointer, saved, text, reason):
    (saved / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert reason in refused(checkpointer, saved)


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_json_without_end_is_not_read(checkpointer, saved, name):
    size_bytes = 60 * 10**9  # sparse: takes no room
    os.truncate(saved / name, size_bytes)
    if name == "state.json":

        def adopt(manifest):
            record = next(record for record in manifest["files"] if record["name"] == name)
            record.update(size_bytes=size_bytes, xxh3_128="0" * 32 * -(-size_bytes // 2**20))

        rewrite_manifest(saved, adopt)
    assert refused(checkpointer, saved)
    if name == "state.json":
        with pytest.raises(CheckpointError, match=r"state.json has 60000000000 bytes of JSON, allowed are"):
            checkpointer.open(str(saved), verify=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"$object": ["builtins.exec", "1"]}', r"unknown kind '\$object'"),
        ('{"a": {"$tuple": [], "b": 1}}', r"unknown kind '\$tuple'"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1e999}', "a number that is too large"),
        ('{"a": {"$tuple": {"b": 1}}}', r"a \$tuple that is none"),
        ('{"a": {"$dict": ["ab"]}}', r"a \$dict that is none"),
        ('{"a": {"$dict": [[1, 2], [1, 3]]}}', "a dict with a key twice"),
        ('{"a": {"$deque": [[], 1e300]}}', r"a \$deque that is none"),
        ('{"a": {"$complex": ["1", "2"]}}', r"a \$complex that is none"),
        ('{"a": {"$size": [-1]}}', r"a \$size that is none"),
        ('{"a": {"$tensor": ["0", "float32", [1000000000000]]}}', "no chunk '0'"),
        ('{"a": {"$tensor": ["0", "float32", 3]}}', r"a \$tensor that is none"),
        ('{"a": {"$tensor": ["0", "float31", [3]]}}', "float31"),
        ("[1, 2]", "a list where a dict is to be"),
        ("[" * 10**5, "nested too deeply"),
    ],
)
def test_state_that_is_never_saved_is_damage(checkpointer, saved, text, reason):
    rewrite_file(saved, "state.json", text.encode())
    with pytest.raises(CheckpointError, match=rf"state\.(json|safetensors) is damaged: .*{reason}"):
        checkpointer.open(str(saved))


def test_a_tensor_file_of_another_step_is_refused_unless_nothing_is_verified(checkpointer, saved, tmp_path):
    checkpointer.save(str(tmp_path / "d"), Checkpoint({"w": torch.zeros(20, 3)}))
    shutil.copy(tmp_path / "d" / FILES[-1], saved / FILES[-1])
    target = torch.full((20, 3), 7.0)
    with pytest.raises(
        CheckpointError, match=f"{FILES[-1]} is damaged: bytes 0 to 352 aren't what was written"
    ):
        checkpointer.open(str(saved)).read({"w": target})
    assert torch.equal(target, torch.full((20, 3), 7.0))
    checkpointer.open(str(saved), verify=False).read({"w": target})
    assert torch.equal(target, torch.zeros(20, 3))


def test_a_scheme_without_a_file_system_is_an_error(checkpointer):
    with pytest.raises(CheckpointError, match=r"nosuch://there/c' can't be reached: ValueError: .*nosuch"):
        checkpointer.open("nosuch://there/c")


def test_a_target_without_memory_is_refused(checkpointer, saved):
    reader = checkpointer.open(str(saved))
    with pytest.raises(CheckpointError, match="'w' can't be filled: it is on the meta device"):
        reader.read({"w": torch.empty(20, 3, device="meta")})
