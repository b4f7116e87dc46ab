import pickletools
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from stratagem_checkpoint import describe
from stratagem_checkpoint.safetensors_file import DTYPES

from stratagem import Checkpoint
from stratagem.errors import CheckpointError


def tensor_of(dtype, *shape):
    raw = torch.randint(-9, 9, shape)
    return torch.complex(raw.float(), raw.float() + 1).to(dtype) if dtype.is_complex else raw.to(dtype)


def same(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[
        left.element_size()
    ]
    return torch.equal(left.contiguous().view(width), right.contiguous().view(width))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 2)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(checkpointer, tmp_path, dtype, shape):
    saved = tensor_of(dtype, *shape)
    checkpointer.save(
        str(tmp_path / "c"), Checkpoint({"model/w": saved, "other": torch.ones(3, dtype=torch.bool)})
    )
    target = torch.zeros(shape, dtype=dtype)
    checkpointer.open(str(tmp_path / "c")).read({"model/w": target})
    assert same(target, saved)


def test_views_of_any_strides_are_saved_as_what_they_show(checkpointer, tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    long = torch.arange(10_000.0)
    views = {
        "transposed": base.t(),
        "every_other": base[::2, 1::2],
        "slice": long[5:8],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "parameter": torch.nn.Parameter(base[1:3]),
    }
    checkpointer.save(str(tmp_path / "c"), Checkpoint(views))
    targets = {key: torch.zeros(view.shape, dtype=view.dtype) for key, view in views.items()}
    checkpointer.open(str(tmp_path / "c")).read(targets)
    for key, view in views.items():
        assert torch.equal(targets[key], view), key
    size_bytes = (tmp_path / "c" / "tensors-00000.safetensors").stat().st_size
    assert size_bytes < 2000, f"{size_bytes} bytes: a view's whole storage was written"


def test_reading_fills_in_place_and_converts_dtypes_and_strides(checkpointer, tmp_path):
    saved = torch.randn(4, 3)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": saved, "n": torch.tensor(7)}))
    parameter = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.float64))
    transposed = torch.zeros(3, 4, dtype=torch.bfloat16).t()
    reader = checkpointer.open(str(tmp_path / "c"))
    reader.read({"w": parameter})
    reader.read({"w": transposed, "n": (count := torch.zeros(()))})
    assert torch.equal(parameter, saved.double())
    assert parameter.requires_grad
    assert torch.equal(transposed, saved.bfloat16())
    assert count == 7.0


def test_complex_numbers_are_not_read_into_real_ones(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"z": torch.ones(2, dtype=torch.complex64)}))
    with pytest.raises(CheckpointError, match=r"'z' is torch.complex64.*imaginary"):
        checkpointer.open(str(tmp_path / "c")).read({"z": torch.zeros(2)})


def test_state_and_rank_state_come_back(checkpointer, tmp_path):
    state = {"progress": {"epoch": 3, "best": float("inf")}, "rng": (1, torch.arange(3)), 7: b"\x00\xff"}
    generator = torch.get_rng_state()
    checkpointer.save(str(tmp_path / "c"), Checkpoint({}, state, {"torch": generator}))
    reader = checkpointer.open(str(tmp_path / "c"))
    assert reader.state["progress"] == state["progress"]
    assert reader.state[7] == b"\x00\xff"
    assert torch.equal(reader.state["rng"][1], torch.arange(3))
    assert torch.equal(reader.rank_state(0)["torch"], generator)
    assert [reader.rank_state(rank) for rank in (-1, 1, 2)] == [None] * 3
    assert reader.world_size == 1


def test_empty_checkpoint(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({}))
    reader = checkpointer.open(str(tmp_path / "c"))
    assert dict(reader.tensors) == {}
    assert reader.state == {}
    assert reader.rank_state(0) == {}
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["manifest.json"]


def test_tied_tensors_are_written_once_and_read_by_any_name(checkpointer, tmp_path):
    weight = torch.nn.Parameter(torch.randn(100, 10))
    tensors = {"embed": weight, "head": weight, "rows": weight[:50], "copy": weight.detach().clone()}
    checkpointer.save(str(tmp_path / "c"), Checkpoint(tensors))
    assert describe(str(tmp_path / "c"))["aliases"] == {"head": "embed"}
    reader = checkpointer.open(str(tmp_path / "c"))
    assert reader.tensors["head"].shape == (100, 10)
    reader.read({"head": (target := torch.zeros(100, 10))})
    assert torch.equal(target, weight)
    stored = safetensors.torch.load_file(tmp_path / "c" / "tensors-00000.safetensors")
    assert sorted(stored) == ["copy", "embed", "rows"]


def test_the_safetensors_library_reads_the_files(checkpointer, tmp_path):
    tensors = {
        "model/w": torch.randn(3, 2),
        "b": torch.randn(5).bfloat16(),
        "n": torch.tensor(3),
        "e": torch.ones(0),
    }
    checkpointer.save(str(tmp_path / "c"), Checkpoint(tensors, {"t": torch.arange(4)}))
    stored = safetensors.torch.load_file(tmp_path / "c" / "tensors-00000.safetensors")
    for key in ("model/w", "b", "n"):
        assert torch.equal(stored[key], tensors[key])
    state = safetensors.torch.load_file(tmp_path / "c" / "state.safetensors")
    assert torch.equal(state["0"], torch.arange(4))


def test_nothing_in_it_is_a_pickle(checkpointer, tmp_path):
    state = {"nested": [{1, 2}, (3,), torch.ones(2), b"bytes"]}
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.randn(50)}, state, state))
    names = sorted(file.name for file in (tmp_path / "c").iterdir())
    assert len(names) == 6
    assert {name.rpartition(".")[2] for name in names} == {"json", "safetensors"}
    for name in names:
        content = (tmp_path / "c" / name).read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        with pytest.raises(ValueError, match=r"opcode|pickle|STOP|expected|not enough|literal|stack"):
            list(pickletools.genops(content))


def test_missing_key_names_the_nearest(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"model/weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"no tensor 'model/wieght'; nearest: model/weight"):
        checkpointer.open(str(tmp_path / "c")).read({"model/wieght": torch.ones(2)})


def test_wrong_shape_names_both_and_changes_nothing(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"a": torch.ones(2), "w": torch.ones(2, 3)}))
    targets = {"a": torch.zeros(2), "w": torch.zeros(3, 2)}
    with pytest.raises(CheckpointError, match=r"'w' has shape \(2, 3\).*\(3, 2\) is to be filled"):
        checkpointer.open(str(tmp_path / "c")).read(targets)
    assert torch.equal(targets["a"], torch.zeros(2))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2).to_sparse(), "'bad' can't be saved.*to_dense"),
        (torch.empty(2, device="meta"), "'bad' can't be saved.*meta device"),
        (
            torch.ones(2).to(torch.float8_e4m3fnuz),
            "'bad' can't be saved.*float8_e4m3fnuz; allowed are float64,",
        ),
        (torch.nn.parameter.UninitializedParameter(), "'bad' can't be saved.*forward first"),
        (3.5, "'bad' can't be saved as a tensor: it is a float"),
    ],
    ids=["sparse", "meta", "float8", "lazy", "float"],
)
def test_what_cannot_be_a_tensor_is_refused_before_anything_is_written(checkpointer, tmp_path, tensor, words):
    with pytest.raises(CheckpointError, match=words):
        checkpointer.save(str(tmp_path / "c"), Checkpoint({"good": torch.ones(1), "bad": tensor}))
    assert list(tmp_path.iterdir()) == []


def test_unencodable_state_is_refused_before_anything_is_written(checkpointer, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"state\['callbacks'\]\[1\] can't be saved: it is a builtins.object"
    ):
        checkpointer.save(str(tmp_path / "c"), Checkpoint({}, {"callbacks": [1, object()]}))
    with pytest.raises(CheckpointError, match=r"rank_state\['loader'\]"):
        checkpointer.save(str(tmp_path / "c"), Checkpoint({}, {}, {"loader": object()}))
    assert list(tmp_path.iterdir()) == []


def test_saving_again_replaces_and_leaves_nothing_beside(checkpointer, tmp_path):
    path = str(tmp_path / "new" / "folder" / "c")
    checkpointer.save(path, Checkpoint({"w": torch.zeros(2), "gone": torch.zeros(1)}, {"step": 1}))
    checkpointer.save(path, Checkpoint({"w": torch.ones(2)}, {"step": 2}))
    reader = checkpointer.open(path)
    reader.read({"w": (target := torch.zeros(2))})
    assert torch.equal(target, torch.ones(2))
    assert reader.state == {"step": 2}
    assert list(reader.tensors) == ["w"]
    assert [entry.name for entry in (tmp_path / "new" / "folder").iterdir()] == ["c"]


def test_an_open_reader_survives_replacement_of_what_it_has_not_read(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.zeros(2)}))
    reader = checkpointer.open(str(tmp_path / "c"))
    checkpointer.remove(str(tmp_path / "c"))
    with pytest.raises(CheckpointError, match=r"tensors-00000.safetensors"):
        reader.read({"w": torch.ones(2)})


def test_foreign_files_and_folders_are_not_replaced_or_removed(checkpointer, tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    for name, words in (("file", "is a file"), ("folder", "thesis.tex")):
        with pytest.raises(CheckpointError, match=words):
            checkpointer.save(str(tmp_path / name), Checkpoint({}))
        with pytest.raises(CheckpointError, match=words):
            checkpointer.remove(str(tmp_path / name))
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "thesis.tex").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 2


def test_remove(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.zeros(2)}))
    checkpointer.remove(str(tmp_path / "c"))
    checkpointer.remove(str(tmp_path / "c"))
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_replaced_and_not_what_it_points_to(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "epoch1"), Checkpoint({}, {"epoch": 1}))
    (tmp_path / "last").symlink_to("epoch1")
    checkpointer.save(str(tmp_path / "last"), Checkpoint({}, {"epoch": 2}))
    assert checkpointer.open(str(tmp_path / "last")).state == {"epoch": 2}
    assert checkpointer.open(str(tmp_path / "epoch1")).state == {"epoch": 1}


def test_file_urls_are_local_paths(checkpointer, tmp_path):
    checkpointer.save(f"file://{tmp_path}/c", Checkpoint({"w": torch.ones(2)}))
    checkpointer.open(str(tmp_path / "c")).read({"w": (target := torch.zeros(2))})
    assert torch.equal(target, torch.ones(2))


def test_other_file_systems_by_url(checkpointer):
    import fsspec

    memory = fsspec.filesystem("memory")
    path = "memory://runs/checkpoints/c"
    try:
        for step in (1, 2):
            checkpointer.save(path, Checkpoint({"w": torch.full((3, 2), float(step))}, {"step": step}))
            reader = checkpointer.open(path)
            reader.read({"w": (target := torch.zeros(3, 2))})
            assert torch.equal(target, torch.full((3, 2), float(step)))
            assert reader.state == {"step": step}
            assert [name.rpartition("/")[2] for name in memory.ls("/runs/checkpoints", detail=False)] == ["c"]
        assert describe(path)["world_size"] == 1
        memory.pipe("/runs/checkpoints/c/state.json", b"{}")
        with pytest.raises(
            CheckpointError, match=r"memory://runs/checkpoints/c is damaged: state.json has 2 bytes"
        ):
            checkpointer.open(path)
        checkpointer.remove(path)
        with pytest.raises(CheckpointError, match="there is no checkpoint at memory://"):
            checkpointer.open(path)
    finally:
        memory.rm("/runs", recursive=True)


def test_describe(checkpointer, tmp_path):
    weight = torch.zeros(4, 3)
    tensors = {"w": weight, "tied": weight, "n": torch.tensor(1)}
    checkpointer.save(str(tmp_path / "c"), Checkpoint(tensors, {"epoch": 1, "loops": {}}))
    summary = describe(str(tmp_path / "c"))
    sizes = {
        file.name: file.stat().st_size for file in (tmp_path / "c").iterdir() if file.name != "manifest.json"
    }
    assert summary["files"] == sizes
    assert summary["size_bytes"] == sum(sizes.values())
    assert summary["tensors"]["w"] == {"dtype": "float32", "shape": [4, 3], "chunks": 1}
    assert summary["elements"] == 13
    assert summary["aliases"] == {"tied": "w"}
    assert summary["state_keys"] == ["epoch", "loops"]
    assert summary["torch_version"] == torch.__version__


def test_the_protocol_imports_no_torch():
    program = "import sys, stratagem.checkpoint.base, stratagem_checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_whole_tensors_are_read_without_torchs_planners(checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(2, 3)}))
    program = f"""if True:
        import sys, torch
        from stratagem_checkpoint import DirectoryCheckpointer
        from stratagem.collectives.local import LocalCollectives
        target = torch.zeros(2, 3)
        checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
        checkpointer.open({str(tmp_path / "c")!r}).read({{"w": target}})
        sys.exit(target.sum() != 6 or "torch.distributed.checkpoint" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
