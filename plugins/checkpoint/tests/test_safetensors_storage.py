"""The storage classes under torch's own `save` and `load`, which the checkpointer doesn't use."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from stratagem_checkpoint.loading import find_manifest
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.publication import MANIFEST
from stratagem_checkpoint.safetensors_storage import SafetensorsReader, SafetensorsWriter

from stratagem import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_torch_reads_a_checkpoint(checkpointer, tmp_path):
    weight = torch.randn(4, 3)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"a": weight, "tied": weight, "n": torch.tensor(2)}))
    filesystem = LocalFilesystem(MANIFEST)
    folder, manifest = find_manifest(filesystem, str(tmp_path / "c"), "c")
    targets = {"tied": torch.zeros(4, 3), "n": torch.tensor(0)}
    dcp.load(targets, storage_reader=SafetensorsReader(filesystem, folder, manifest), no_dist=True)
    assert torch.equal(targets["tied"], weight)
    assert targets["n"] == 2


class Noting(SafetensorsWriter):
    """Keeps the length of each tensor, as torch gets it."""

    def finish(self, metadata, results):
        self.sizes = {each.index.fqn: each.size_in_bytes for of_rank in results for each in of_rank}
        super().finish(metadata, results)


def test_torch_writes_the_files(tmp_path):
    writer = Noting(LocalFilesystem(MANIFEST), str(tmp_path))
    dcp.save({"w": torch.ones(2, 3), "e": torch.ones(0)}, storage_writer=writer, no_dist=True)
    assert writer.sizes == {"w": 2 * 3 * 4}
    assert [record.name for record in writer.files] == ["tensors-00000.safetensors"]
    assert {key: (record.shape, len(record.chunks)) for key, record in writer.tensors.items()} == {
        "w": ((2, 3), 1),
        "e": ((0,), 0),
    }
