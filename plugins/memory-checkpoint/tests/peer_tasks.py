"""What ranks of tests do, each as a node of its own."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from stratagem_memory_checkpoint.checkpointer import PeerCheckpointer
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from stratagem import Checkpoint, Collectives, CollectivesWrapper


class Alone(CollectivesWrapper):
    """Its rank is the only one of its node."""

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner)
        self.node_rank, self.local_rank = inner.rank, 0


class Nothing:
    """Stands where no path on a disk may be asked for."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the checkpointer on disk was called")


def save_and_lose(subject: Any, root: str, lost: tuple[int, ...]) -> tuple[str, dict[str, torch.Tensor]]:
    """Save twice, lose the memory of some nodes, and read the newer one; or return the error."""
    return subject.runtime().launch(_save_and_lose, root, lost, quiet=True)


def _save_and_lose(runtime: Any, root: str, lost: tuple[int, ...]) -> tuple[str, dict[str, torch.Tensor]]:
    rank, folder = runtime.rank, os.path.join(root, str(runtime.rank))
    os.makedirs(folder)
    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    on_disk: Any = Nothing()
    alone: Any = Alone(runtime.collectives)
    checkpointer = PeerCheckpointer(on_disk, alone, folder)
    for step in (1, 2, 3):
        whole = torch.arange(10.0, device=runtime.device) * step
        tensors = {
            "model/copied": whole,
            "model/sharded": DTensor.from_local(
                whole.chunk(runtime.world_size)[rank],
                mesh,
                [Shard(0)],
                shape=(10,),
                stride=(1,),
                run_check=False,
            ),
        }
        checkpointer.save(f"peers://step={step}", Checkpoint(tensors, {"step": step}, {"rank": rank}))
    kept = ", ".join(sorted(os.listdir(folder)))
    if rank in lost:
        shutil.rmtree(folder)
        os.makedirs(folder)
    runtime.barrier()
    read = {"model/copied": torch.zeros(10), "model/sharded": torch.zeros(10)}
    try:
        reader = checkpointer.open("peers://step=3")
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}
    reader.read(read)
    assert reader.state == {"step": 3}
    assert [reader.rank_state(each) for each in range(runtime.world_size)] == [
        {"rank": each} for each in range(runtime.world_size)
    ]
    return kept, read
