"""Hugging Face folders straight from the memory of several ranks."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from stratagem_convert import export_huggingface
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
from stratagem_convert.formats.exporting import runs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from stratagem import Checkpoint, LocalCollectives
from stratagem.errors import CheckpointError

LOCAL = LocalCollectives(torch.device("cpu"))
PLACEMENTS = {"rows": [Shard(0)], "columns": [Shard(1)], "replicated": [Replicate()], "last": [Shard(2)]}


def whole():
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    shared = random(6, 4)
    return {
        "model/even": random(8, 12),
        "model/uneven": random(5, 7),
        "model/cube": random(4, 6, 5),
        "model/half": random(9, 4).bfloat16(),
        "model/large": random(2100, 1030),
        "model/embedding": shared,
        "model/head": shared,
        "model/transposed": random(3, 5).T,
        "model/count": torch.tensor(7),
        "model/empty": random(0, 4),
        "model/complex": torch.complex(random(6, 5), random(6, 5)).conj(),
    }


def contents(folder):
    return {name: Path(folder, name).read_bytes() for name in os.listdir(folder)}


@pytest.mark.parametrize("shard_bytes", [10**9, 5000])
def test_it_is_what_saving_and_converting_gives(checkpointer, tmp_path, shard_bytes):
    checkpointer.save(str(tmp_path / "c"), Checkpoint(whole()))
    converted, exported = str(tmp_path / "converted"), str(tmp_path / "exported")
    write_weights(read_weights(str(tmp_path / "c")), converted, "huggingface", Writing(shard_bytes))
    export_huggingface(LOCAL, whole(), exported, shard_bytes)
    assert contents(exported).keys() == contents(converted).keys()
    for name, content in contents(exported).items():
        assert content == contents(converted)[name], name
    assert (len(contents(exported)) == 1) == (shard_bytes == 10**9)
    assert sorted(os.listdir(tmp_path)) == ["c", "converted", "exported"]


def export(collectives, path, placement):
    mesh = init_device_mesh("cpu", (collectives.world_size,))
    tensors = {}
    for key, tensor in whole().items():
        fitting = [
            each if each.is_replicate() or each.dim < tensor.ndim else Replicate()
            for each in PLACEMENTS[placement]
        ]
        is_plain = key in ("model/count", "model/embedding", "model/head")
        tensors[key] = tensor if is_plain else distribute_tensor(tensor.resolve_conj(), mesh, fitting)
    tensors["model/head"] = tensors["model/embedding"]
    tensors[f"model/of{collectives.rank}"] = torch.full((3,), float(collectives.rank))
    export_huggingface(collectives, tensors, path, 10_000)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_rank_writes_its_parts(ranks, tmp_path, placement):
    path = str(tmp_path / "hf")
    ranks(export, 2, path=path, placement=placement)
    read = {
        key: tensor
        for name in os.listdir(path)
        if name.endswith(".safetensors")
        for key, tensor in safetensors.torch.load_file(f"{path}/{name}").items()
    }
    expected = {key.removeprefix("model/"): tensor for key, tensor in whole().items()}
    del expected["head"]
    expected.update({f"of{rank}": torch.full((3,), float(rank)) for rank in range(2)})
    assert read.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(read[key], tensor.resolve_conj()), key
        assert read[key].dtype == tensor.dtype
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == expected.keys()
    assert read_weights(path).aliases == {"head": "embedding"}


def fail(collectives, path):
    tensor = torch.ones(3).to_sparse() if collectives.rank else torch.ones(3)
    try:
        export_huggingface(collectives, {"model/w": tensor}, path)
    except CheckpointError as error:
        return str(error)


def test_one_rank_that_can_not_fails_all(ranks, tmp_path):
    messages = ranks(fail, 2, path=str(tmp_path / "hf"))
    assert messages[0] == messages[1]
    assert "'w' can't be saved" in messages[0]
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_replaced(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").touch()
    with pytest.raises(CheckpointError, match="isn't replaced"):
        export_huggingface(LOCAL, {"model/w": torch.ones(3)}, str(tmp_path / "hf"))
    assert os.listdir(tmp_path / "hf") == ["mine"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        export_huggingface(LOCAL, {"model/w": torch.ones(3)}, str(tmp_path / "hf"))
    assert os.listdir(tmp_path) == []


def test_configurations_are_copied(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "config.json").write_text("{}")
    export_huggingface(LOCAL, {"model/w": torch.ones(3)}, str(tmp_path / "hf"), config=str(tmp_path / "from"))
    assert sorted(os.listdir(tmp_path / "hf")) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        ((0, 0, 0), (3, 4, 5)),
        ((1, 0, 0), (2, 4, 5)),
        ((1, 2, 0), (2, 1, 5)),
        ((0, 1, 2), (3, 2, 2)),
        ((0, 0, 0), (0, 4, 5)),
    ],
)
def test_runs_are_where_a_box_is(offsets, lengths):
    elements = torch.arange(60).reshape(3, 4, 5)
    box = elements[tuple(slice(o, o + n) for o, n in zip(offsets, lengths))].reshape(-1).tolist()
    found = [begin + i for begin, count in runs((3, 4, 5), offsets, lengths) for i in range(count)]
    assert found == box
    assert list(runs((), (), ())) == [(0, 1)]
