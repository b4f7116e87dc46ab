"""Checkpoints in folders that are each node's own; two nodes of two ranks, which are threads."""

import os
import shutil

import pytest
import torch
from stratagem_checkpoint.node_folders import file_sizes, open_node_folder, write_node_folder
from stratagem_checkpoint.publication import MANIFEST
from threads import on_threads

from stratagem import Checkpoint
from stratagem.errors import CheckpointError

NODES, PER_NODE = 2, 2
MANY = 3 * 2**18
"""Elements of three blocks that have a checksum each."""


def on_nodes(work):
    """Run `work(collectives)` on each rank; return results, or what the error says, by rank."""

    def on_rank(collectives):
        collectives.node_rank = collectives.rank // PER_NODE
        try:
            return work(collectives)
        except CheckpointError as error:
            return str(error)

    return on_threads(NODES * PER_NODE, on_rank)


@pytest.fixture
def folders(tmp_path):
    """Two nodes' folders, each with all files of one checkpoint."""
    folders = [tmp_path / f"node-{node}" for node in range(NODES)]
    for folder in folders:
        folder.mkdir()

    def write(collectives):
        rank = collectives.rank
        checkpoint = Checkpoint({f"w{rank}": torch.full((MANY,), float(rank))}, {"epoch": 3}, {"rank": rank})
        return write_node_folder(collectives, str(folders[collectives.node_rank]), checkpoint)

    written = on_nodes(write)
    manifest = written[0][1]
    assert {each for _, each in written} == {manifest}
    for rank, (names, _) in enumerate(written):
        own, others = folders[rank // PER_NODE], folders[1 - rank // PER_NODE]
        assert f"tensors-{rank:05d}.safetensors" in names
        for name in names:
            shutil.copy(own / name, others / name)
    for folder in folders:
        assert file_sizes(manifest, "it") == {
            name: (folder / name).stat().st_size for name in os.listdir(folder)
        }
        (folder / MANIFEST).write_bytes(manifest)
    return folders


def opened(folders, verify=True):
    def read(collectives):
        folder = str(folders[collectives.node_rank])
        reader = open_node_folder(collectives, folder, f"node {collectives.node_rank}", verify)
        reader.verify()
        targets = {f"w{rank}": torch.zeros(MANY) for rank in range(NODES * PER_NODE)}
        reader.read(targets)
        assert reader.state["epoch"] == 3
        assert reader.rank_state(collectives.rank) == {"rank": collectives.rank}
        return [sorted(set(each.tolist())) for each in targets.values()]

    return on_nodes(read)


def test_each_rank_reads_all_of_it_from_its_nodes_folder(folders):
    assert opened(folders) == [[[0.0], [1.0], [2.0], [3.0]]] * 4


@pytest.mark.parametrize("block", range(3))
def test_a_damaged_block_of_any_node_is_found_by_all(folders, block):
    file = folders[1] / "tensors-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[block * 2**20 + 2**19] ^= 1
    file.write_bytes(content)

    def verify(collectives):
        open_node_folder(collectives, str(folders[collectives.node_rank]), "it").verify()

    (said,) = set(on_nodes(verify))
    assert "tensors-00002.safetensors is damaged" in said
    assert str(folders[1]) in said
    assert all(isinstance(each, list) for each in opened(folders, verify=False))


def test_a_file_that_one_node_lacks_is_missed_by_all(folders):
    (folders[1] / "tensors-00000.safetensors").unlink()
    assert set(opened(folders)) == {
        "node 1 is incomplete: tensors-00000.safetensors is missing; use another checkpoint"
    }


def test_a_damaged_manifest_names_no_files(folders):
    manifest = bytearray((folders[0] / MANIFEST).read_bytes())
    manifest[30] ^= 1
    with pytest.raises(CheckpointError, match=r"^it "):
        file_sizes(bytes(manifest), "it")
