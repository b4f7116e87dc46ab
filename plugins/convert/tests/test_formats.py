"""Weights go through every format bit for bit, and are what each format's own library reads."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stratagem_checkpoint.checksums import CHECKED_BYTES
from stratagem_convert.formats import stored
from stratagem_convert.formats.converting import FORMATS, Writing, format_of, read_weights, write_weights
from stratagem_convert.formats.stored import Weights, WeightsReader

from stratagem import Checkpoint
from stratagem.errors import CheckpointError, ConfigError

TIED = torch.randn(300, 70, generator=torch.Generator().manual_seed(1))
STATE: Mapping[str, torch.Tensor] = {
    "embed.weight": TIED,
    "norm.weight": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "slice": torch.arange(10)[2:5],
    "step": torch.tensor(3, dtype=torch.int32),
    "none": torch.empty(0, 3),
    "eight": torch.randn(5).to(torch.float8_e4m3fn),
    "mask": torch.tensor([True, False]),
    "waves": torch.tensor([1 + 2j, -1j], dtype=torch.complex64),
    "head.weight": TIED,
}
NAMES = {
    name: f"x{suffix}" for name, suffix in zip(FORMATS, ("", ".safetensors", "", ".pt", ".ckpt", "", ""))
}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_equal(weights: Weights, state: Mapping[str, torch.Tensor] = STATE) -> None:
    assert set(weights.names()) == set(state)
    with WeightsReader(weights) as reader:
        for name, tensor in state.items():
            found = reader.whole(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            assert bits(found) == bits(tensor), name


@pytest.fixture
def source(tmp_path: Path, checkpointer) -> str:
    """A checkpoint as a run of one process writes it."""
    path = str(tmp_path / "run")
    tensors = {f"model/{name}": tensor for name, tensor in STATE.items()}
    state = {"progress": {"epoch": 1, "step": 7, "batch": 0}, "kind": "trainer"}
    checkpointer.save(path, Checkpoint({**tensors, "optimizer/0/step/exp_avg": torch.zeros(2)}, state))
    return path


def converted(source: str, target: Path, name: str, **how: object) -> str:
    write_weights(read_weights(source), str(target), name, Writing(**how))
    assert [each for each in os.listdir(target.parent) if ".tmp-" in each] == []
    return str(target)


@pytest.mark.parametrize("name", FORMATS)
def test_there_and_back_bit_for_bit(source: str, tmp_path: Path, name: str, checkpointer) -> None:
    there = converted(source, tmp_path / NAMES[name], name)
    assert format_of(there) == ("torch" if name == "lightning" else name)
    weights = read_weights(there)
    assert weights.format == name
    assert_equal(weights)
    assert weights.aliases == ({} if name == "dcp" else {"head.weight": "embed.weight"})
    back = converted(there, tmp_path / "back", "stratagem")
    targets = {f"model/{key}": torch.zeros_like(tensor) for key, tensor in STATE.items()}
    reader = checkpointer.open(back)
    reader.read(targets)
    assert {key: bits(tensor) for key, tensor in targets.items()} == {
        f"model/{key}": bits(tensor) for key, tensor in STATE.items()
    }


def test_what_is_left_out_is_reported(source: str) -> None:
    weights = read_weights(source)
    assert weights.left_out == ["1 tensors of optimizers and callbacks, and the run's state"]
    assert weights.facts == {"epoch": "1", "global_step": "7"}


@pytest.mark.parametrize("name", ["torch", "lightning"])
@pytest.mark.parametrize("maps", [False, True])
def test_torch_loads_it(source: str, tmp_path: Path, name: str, maps: bool) -> None:
    path = converted(source, tmp_path / "x", name)
    loaded = torch.load(path, weights_only=True, mmap=maps)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None  # no file of it has another checksum than it says
    state = loaded["state_dict"] if name == "lightning" else loaded
    assert {key: bits(tensor) for key, tensor in state.items()} == {
        key: bits(tensor) for key, tensor in STATE.items()
    }
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    if name == "lightning":
        assert (loaded["epoch"], loaded["global_step"]) == (1, 7)


def test_dcp_loads_it(source: str, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    path = converted(source, tmp_path / "x", "dcp")
    loaded = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(loaded, checkpoint_id=path)
    assert {key: bits(tensor) for key, tensor in loaded.items()} == {
        key: bits(tensor) for key, tensor in STATE.items()
    }


def test_the_chunks_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

    whole = torch.arange(35.0).reshape(5, 7)
    cuts = [(0, 3, 0, 4), (0, 3, 4, 7), (3, 5, 0, 7)]

    class Cut(DefaultSavePlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            (item,) = plan.items
            items = []
            for a, b, c, d in cuts:
                chunk = ChunkStorageMetadata(torch.Size([a, c]), torch.Size([b - a, d - c]))
                data = type(item.tensor_data)(chunk, item.tensor_data.properties, item.tensor_data.size)
                items.append(
                    WriteItem(type(item.index)(item.index.fqn, [a, c]), WriteItemType.SHARD, tensor_data=data)
                )
            self.plan = replace(plan, items=items)
            return self.plan

        def lookup_object(self, index):
            a, b, c, d = next(cut for cut in cuts if (cut[0], cut[2]) == tuple(index.offset))
            return whole[a:b, c:d]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({"w": whole}, storage_writer=FileSystemWriter(tmp_path / "x"), planner=Cut(), no_dist=True)
    weights = read_weights(str(tmp_path / "x"))
    assert len(weights.tensors["w"].chunks) == 3
    assert_equal(weights, {"w": whole})


def test_a_part_of_a_dcp_folder(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import save

    state = {"model": {"w": torch.ones(3)}, "optim": {"lr": 0.1, "m": torch.zeros(3)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=tmp_path / "x", no_dist=True)
    assert_equal(read_weights(str(tmp_path / "x"), "model"), {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"'optim\.lr' .* isn't a tensor: .* --key, of model, optim"):
        read_weights(str(tmp_path / "x"))
    with pytest.raises(CheckpointError, match="has no 'net': it has model, optim"):
        read_weights(str(tmp_path / "x"), "net")


def test_safetensors_loads_it(source: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    loaded = load_file(converted(source, tmp_path / "x.safetensors", "safetensors"))
    assert {key: bits(tensor) for key, tensor in loaded.items()} == {
        key: bits(tensor) for key, tensor in STATE.items() if key != "head.weight"
    }


def test_files_of_a_hugging_face_folder_are_as_long_as_asked_for(source: str, tmp_path: Path) -> None:
    path = converted(source, tmp_path / "x", "huggingface", shard_bytes=1000)
    shards = sorted(each for each in os.listdir(path) if each.endswith(".safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert_equal(read_weights(path))
    os.unlink(os.path.join(path, shards[1]))
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors can't be read"):
        read_weights(path)


def test_blocks_of_rows_make_up_the_tensor(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BLOCK_BYTES", 1000)
    for name in ("stratagem", "safetensors", "torch"):
        assert_equal(read_weights(converted(source, tmp_path / f"y{NAMES[name]}", name)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_chunks_of_several_ranks_are_put_together(ranks: int, tmp_path: Path, checkpointer) -> None:
    """As `WeightsReader` meets them in a sharded checkpoint, along any dim."""
    whole = torch.arange(60.0).reshape(6, 10)
    tensor = stored.StoredTensor(torch.float32, (6, 10), ())
    raw = tmp_path / "raw"
    parts = whole.chunk(ranks, 1)
    with open(raw, "wb") as file:
        file.write(b"".join(bits(part) for part in parts))
    chunks, start, column = [], 0, 0
    for part in parts:
        chunks.append(stored.Chunk(str(raw), start, (0, column), tuple(part.shape)))
        start, column = start + part.numel() * 4, column + part.shape[1]
    tensor = stored.StoredTensor(torch.float32, (6, 10), tuple(chunks))
    assert_equal(Weights("x", "test", {"w": tensor}), {"w": whole})


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def test_no_code_of_a_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2), "evil": Evil()}, "x.pt")
    with pytest.raises(CheckpointError, match=r"other objects than tensors.*posix\.mkdir"):
        read_weights("x.pt")
    os.mkdir("x")
    Path("x/.metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"names posix\.mkdir"):
        read_weights("x")
    os.mkdir("y")
    torch.save({"module": {"w": torch.ones(2)}, "evil": Evil()}, "y/mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match=r"other objects than tensors.*posix\.mkdir"):
        read_weights("y")
    torch.save({"module": {"w": torch.ones(2)}, "args": Namespace(a=1)}, "y/mp_rank_00_model_states.pt")
    assert_equal(read_weights("y"), {"w": torch.ones(2)})
    assert not os.path.exists("evil")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"model": {"w": torch.ones(1)}, "epoch": 3},
            "'model' in .* is a dict, .* --key .it has 'model', 'epoch'",
        ),
        ([1], "has a list instead of a state dict"),
        ({"w": torch.ones(1).to_sparse()}, "'w' in .* not a plain tensor"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=said):
        read_weights(str(tmp_path / "x.pt"))


def test_a_nested_state_dict_is_named(tmp_path: Path) -> None:
    torch.save({"a": {"model": {"w": torch.ones(1)}}, "epoch": 3}, tmp_path / "x.pt")
    assert_equal(read_weights(str(tmp_path / "x.pt"), "a.model"), {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"has no 'a\.net'"):
        read_weights(str(tmp_path / "x.pt"), "a.net")


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 5000])
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="x"):
        read_weights(str(tmp_path / name))


def test_a_torn_byte_of_the_source_stops_a_conversion(source: str, tmp_path: Path) -> None:
    file = next(Path(source).glob("tensors-*"))
    content = bytearray(file.read_bytes())
    content[-100 % CHECKED_BYTES % len(content)] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="aren't what was written"):
        converted(source, tmp_path / "x.pt", "torch")
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_a_dtype_that_the_target_lacks(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, dtype=torch.complex128)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"'w' has dtype torch\.complex128, which safetensors"):
        converted(str(tmp_path / "x.pt"), tmp_path / "y.safetensors", "safetensors")
    assert sorted(os.listdir(tmp_path)) == ["x.pt"]


def test_what_cannot_be_written_is_reported(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc] no space\nand a trace")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"x\.pt can't be written: .* no space; choose another place"):
        converted(source, tmp_path / "x.pt", "torch")
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_renamed(source: str) -> None:
    weights = read_weights(source).renamed(lambda name: name.removeprefix("embed."))
    assert "weight" in weights.tensors
    assert weights.aliases == {"head.weight": "weight"}
    with pytest.raises(CheckpointError, match="would be called 'x'"):
        weights.renamed(lambda name: "x")


def test_an_option_that_the_format_lacks(source: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hf-config is for huggingface"):
        converted(source, tmp_path / "x.pt", "torch", config=".")
    with pytest.raises(ConfigError, match="--key is for torch, lightning, dcp"):
        read_weights(source, "model")
