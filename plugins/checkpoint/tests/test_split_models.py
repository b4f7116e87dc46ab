"""Real processes over gloo: models under FSDP2 and tensor parallelism read what others have saved."""

import pytest
import torch
from stratagem_checkpoint import DirectoryCheckpointer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from stratagem import Checkpoint


def build(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3))


def split(model, world_size):
    """FSDP2, with tensor parallelism where there are four ranks; ten rows don't go into four parts."""
    if world_size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    elif world_size == 2:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return {f"model/{name}": tensor for name, tensor in model.state_dict().items()}


def save(collectives, path):
    tensors = split(build(seed=1), collectives.world_size)
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors))


def load(collectives, path):
    """Returns what this rank has that differs from its part of what was saved, as torch cut that.

    `full_tensor()` can't tell: torch 2.9 mixes up rows that FSDP and tensor parallelism cut into uneven parts.
    """
    tensors = split(build(seed=2), collectives.world_size)
    DirectoryCheckpointer(collectives).open(path).read(tensors)
    expected = split(build(seed=1), collectives.world_size)
    return [key for key in expected if not torch.equal(local(tensors[key]), local(expected[key]))]


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@pytest.mark.parametrize("writers", [1, 2, 4])
def test_fsdp_and_tensor_parallel_models_read_each_other(ranks, tmp_path, writers):
    path = str(tmp_path / "c")
    ranks(save, writers, path=path)
    for readers in (1, 2, 4):
        assert ranks(load, readers, path=path) == [[]] * readers
