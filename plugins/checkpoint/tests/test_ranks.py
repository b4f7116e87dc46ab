"""Several real processes over gloo: who writes what, and reading at other world sizes and placements."""

import json

import pytest
import safetensors.torch
import torch
from stratagem_checkpoint import DirectoryCheckpointer, describe
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from stratagem import Checkpoint
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import CheckpointError

PLACEMENTS = {"rows": [Shard(0)], "columns": [Shard(1)], "replicated": [Replicate()]}
PLACEMENTS_2D = {
    "rows of columns": [Shard(0), Shard(1)],
    "columns of rows": [Shard(1), Shard(0)],
    "rows twice": [Shard(0), Shard(0)],
    "hybrid": [Replicate(), Shard(0)],
}


def whole_tensors():
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "model/even": random(8, 12),
        "model/uneven": random(5, 7),
        "model/short": random(2, 3),  # fewer rows than ranks
        "model/half": random(9, 4).bfloat16(),
        "model/vector": random(11),
        "model/cube": random(4, 6, 5),
        "model/empty": random(0, 4),
        "model/complex": torch.complex(random(6, 5), random(6, 5)),
    }


def mesh_of(world_size, placement):
    if placement in PLACEMENTS_2D:
        return init_device_mesh("cpu", (2, world_size // 2)), PLACEMENTS_2D[placement]
    return init_device_mesh("cpu", (world_size,)), PLACEMENTS[placement]


def shard(tensors, world_size, placement):
    mesh, placements = mesh_of(world_size, placement)
    return {
        key: distribute_tensor(
            tensor, mesh, [p if p.is_replicate() or p.dim < tensor.ndim else Replicate() for p in placements]
        )
        for key, tensor in tensors.items()
    }


def save(collectives, path, placement):
    tensors = whole_tensors()
    if collectives.world_size > 1:
        tensors = shard(tensors, collectives.world_size, placement)
    tensors |= {
        "plain/scalar": torch.tensor(3.5),
        "plain/step": torch.tensor(12),
        "plain/table": torch.ones(6, 2),
    }
    state = {"who": f"rank {collectives.rank}"}
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors, state, {"rank": collectives.rank}))


def load(collectives, path, placements):
    """Read everything once per placement; returns what differs from what was saved."""
    expected = whole_tensors()
    reader = DirectoryCheckpointer(collectives).open(path)
    wrong = [] if reader.state == {"who": "rank 0"} else [reader.state]
    states = [reader.rank_state(rank) for rank in range(reader.world_size + 1)]
    if states != [{"rank": rank} for rank in range(reader.world_size)] + [None]:
        wrong.append(states)
    for placement in placements:
        targets = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
        if collectives.world_size > 1:
            targets = shard(targets, collectives.world_size, placement)
        reader.read(targets | {"plain/scalar": (scalar := torch.zeros(()))})
        wholes = {
            key: each.full_tensor() if isinstance(each, DTensor) else each for key, each in targets.items()
        }
        wrong += [(placement, key) for key, whole in wholes.items() if not torch.equal(whole, expected[key])]
        wrong += [] if scalar == 3.5 else [(placement, "plain/scalar")]
    return wrong


@pytest.mark.parametrize(
    ("world_size", "placement"),
    [
        (1, "rows"),
        (2, "rows"),
        (2, "replicated"),
        (4, "columns"),
        *(pytest.param(4, name, marks=pytest.mark.long) for name in PLACEMENTS_2D),
    ],
)
def test_what_any_world_saved_any_other_reads(ranks, tmp_path, world_size, placement):
    path = str(tmp_path / "c")
    ranks(save, world_size, path=path, placement=placement)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    assert load(LocalCollectives(torch.device("cpu")), path, ["whole"]) == []
    assert ranks(load, 2, path=path, placements=["rows", "columns", "replicated"]) == [[]] * 2
    if (world_size, placement) in [(1, "rows"), (2, "rows"), (4, "hybrid"), (4, "columns of rows")]:
        assert ranks(load, 4, path=path, placements=["rows", "columns", *PLACEMENTS_2D]) == [[]] * 4


def test_three_ranks_and_uneven_shards(ranks, tmp_path):
    path = str(tmp_path / "c")
    ranks(save, 3, path=path, placement="rows")
    assert ranks(load, 2, path=path, placements=["columns"]) == [[]] * 2


def test_each_rank_writes_its_own_shard_and_copies_are_written_once(ranks, tmp_path):
    path = str(tmp_path / "c")
    ranks(save, 4, path=path, placement="rows")
    files = sorted(tmp_path.glob("c/tensors-*.safetensors"))
    assert [file.name for file in files] == [f"tensors-0000{rank}.safetensors" for rank in range(4)]
    stored = [safetensors.torch.load_file(file) for file in files]
    for rank, chunks in enumerate(stored):
        assert torch.equal(
            chunks[f"model/even@{2 * rank},0"], whole_tensors()["model/even"][2 * rank : 2 * rank + 2]
        )
    plain = [name for chunks in stored for name in chunks if name.startswith("plain/")]
    assert sorted(plain) == ["plain/scalar", "plain/step", "plain/table"]


def save_copies(collectives, path):
    tensors = {f"w{number}": torch.full((1000,), float(number)) for number in range(8)}
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors))


def test_copies_are_divided_evenly(ranks, tmp_path):
    path = str(tmp_path / "c")
    ranks(save_copies, 4, path=path)
    files = sorted(tmp_path.glob("c/tensors-*.safetensors"))
    assert [len(safetensors.torch.load_file(file)) for file in files] == [2, 2, 2, 2]
    assert len(describe(path)["tensors"]) == 8


def save_parts(collectives, path):
    """As pipeline stages do: each rank has tensors that the others don't."""
    tensors = {
        f"stage{collectives.rank}/w": torch.full((3,), float(collectives.rank)),
        "shared": torch.ones(2),
    }
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors))


def load_parts(collectives, path):
    target = torch.zeros(3)
    DirectoryCheckpointer(collectives).open(path).read({f"stage{1 - collectives.rank}/w": target})
    return target.tolist()


def test_the_union_over_ranks_is_the_checkpoint(ranks, tmp_path):
    path = str(tmp_path / "c")
    ranks(save_parts, 2, path=path)
    assert sorted(describe(path)["tensors"]) == ["shared", "stage0/w", "stage1/w"]
    assert ranks(load_parts, 2, path=path) == [[1.0] * 3, [0.0] * 3]


def save_tied(collectives, path):
    mesh = init_device_mesh("cpu", (collectives.world_size,))
    weight = distribute_tensor(torch.arange(2.0).reshape(1, 2), mesh, [Shard(0)])  # empty on rank 1
    plain = torch.ones(3)
    apart = torch.ones(3) if collectives.rank else plain  # tied on rank 0 only
    tensors = {"embed": weight, "head": weight, "plain": plain, "plain2": plain, "apart": apart}
    tensors |= {"nothing": torch.ones(0), "nothing2": torch.ones(0)}
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors))


def test_ties_hold_only_where_every_rank_has_them(ranks, tmp_path, checkpointer):
    path = str(tmp_path / "c")
    ranks(save_tied, 2, path=path)
    assert describe(path)["aliases"] == {"head": "embed", "plain2": "plain"}
    reader = checkpointer.open(path)
    reader.read({"head": (head := torch.zeros(1, 2)), "apart": (apart := torch.zeros(3))})
    assert torch.equal(head, torch.arange(2.0).reshape(1, 2))
    assert torch.equal(apart, torch.ones(3))


def catch(collectives, path, case):
    checkpointer = DirectoryCheckpointer(collectives)
    odd = collectives.rank == 1
    mesh = init_device_mesh("cpu", (collectives.world_size,))
    try:
        if case == "shapes":
            checkpointer.save(path, Checkpoint({"w": torch.ones(3 if odd else 2)}))
        if case == "dtypes":
            checkpointer.save(
                path, Checkpoint({"w": torch.ones(2, dtype=torch.half if odd else torch.float)})
            )
        if case == "half":
            local = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])
            checkpointer.save(path, Checkpoint({} if odd else {"w": local}))
        if case == "partial":
            local = DTensor.from_local(torch.ones(2, 2), mesh, [Partial()])
            checkpointer.save(path, Checkpoint({"w": local}))
        if case == "state":
            checkpointer.save(path, Checkpoint({}, {}, {"x": object() if odd else 1}))
        if case == "read":
            checkpointer.save(path, Checkpoint({"w": torch.ones(2)}))
            checkpointer.open(path).read({"v" if odd else "w": torch.ones(2)})
        if case == "open":
            checkpointer.open(path)
    except CheckpointError as error:
        return str(error)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("shapes", "tensor 'w' is torch.float32 (2,) on rank 0 but torch.float32 (3,) on rank 1"),
        ("dtypes", "tensor 'w' is torch.float32 (2,) on rank 0 but torch.float16 (2,) on rank 1"),
        ("half", "the tensors of all ranks don't make up whole tensors"),
        ("partial", "tensor 'w' can't be saved: it has the placement"),
        ("state", "rank_state['x'] can't be saved: it is a builtins.object"),
        ("read", "has no tensor 'v'; nearest"),
        ("open", "there is no checkpoint at"),
    ],
)
def test_every_rank_raises_the_same_error_and_leaves_no_trace(ranks, tmp_path, case, words):
    first, second = ranks(catch, 2, path=str(tmp_path / "c"), case=case)
    assert first == second
    assert words.removesuffix("; nearest") in first
    assert [entry.name for entry in tmp_path.iterdir()] == (["c"] if case == "read" else [])


def save_in_memory_limits(collectives, path):
    """The peak of what one process reads into host memory beyond its own shard."""
    from stratagem_checkpoint import checksums, safetensors_file

    safetensors_file.BLOCK_BYTES = 4096
    largest = 0
    original = checksums.CheckedFile.read

    def read(self, start, size):
        nonlocal largest
        largest = max(largest, size)
        return original(self, start, size)

    checksums.CheckedFile.read = read
    mesh = init_device_mesh("cpu", (2,))
    target = distribute_tensor(torch.zeros(1000, 64), mesh, [Shard(1)])
    DirectoryCheckpointer(collectives).open(path).read({"w": target})
    return largest, torch.equal(target.full_tensor(), torch.arange(64000.0).reshape(1000, 64))


def test_resharding_holds_only_a_block_beyond_the_shard(ranks, checkpointer, tmp_path):
    path = str(tmp_path / "c")
    checkpointer.save(path, Checkpoint({"w": torch.arange(64000.0).reshape(1000, 64)}))
    assert ranks(save_in_memory_limits, 2, path=path) == [(4096, True)] * 2


def test_the_manifest_of_several_ranks(ranks, tmp_path):
    path = str(tmp_path / "c")
    ranks(save, 2, path=path, placement="rows")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert (manifest["format"], manifest["format_version"], manifest["world_size"]) == (
        "stratagem-checkpoint",
        2,
        2,
    )
    names = [record["name"] for record in manifest["files"]]
    numbers = [names.index(f"tensors-0000{rank}.safetensors") for rank in (0, 1)]
    assert manifest["tensors"]["model/uneven"] == {
        "dtype": "float32",
        "shape": [5, 7],
        "chunks": [[numbers[0], [0, 0], [3, 7]], [numbers[1], [3, 0], [2, 7]]],
    }
    assert manifest["tensors"]["model/empty"]["chunks"] == []
