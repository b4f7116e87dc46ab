"""Which samples are read in which order, in real processes, beside loops of torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_ddp import DDPStrategy
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import stratagem
from stratagem.errors import DataError


class Ordered(Line):
    """Thirteen samples, in the order in which they are."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(13), self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(13), self.batch_size, shuffle=True)


class Halves(IterableDataset[Any]):
    """Batches for the first ranks only."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def __iter__(self) -> Any:
        return iter([samples(8)[index] for index in range(self.count)])


class Lopsided(Line):
    def train_dataloader(self) -> DataLoader[Any]:
        rank = self.global_rank
        return DataLoader(Halves(rank, 8 * (rank == 0)), self.batch_size)


def ddp() -> DDPStrategy:
    return DDPStrategy(start_method="fork")


def trainer(folder: Path, devices: int, **settings: Any) -> stratagem.Trainer:
    chosen: dict[str, Any] = {"strategy": ddp() if devices > 1 else "single", "max_epochs": 3, **settings}
    return stratagem.Trainer(
        accelerator="cpu",
        devices=devices,
        seed=5,
        run_dir=str(folder),
        enable_progress_bar=False,
        enable_checkpointing=False,
        **chosen,
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_a_loader_in_order_trains_as_a_plain_loop_over_it(tmp_path: Path, devices: int) -> None:
    module, plain = Ordered(batch_size=8 // devices), Line()
    trainer(tmp_path, devices).fit(module)
    optimizer = plain.configure_optimizers()
    x, y = samples(13).tensors
    # Two ranks have equally many: the thirteenth sample's partner is the first.
    last = [*range(8, 13), 0] if devices == 2 else [*range(8, 13)]
    for _ in range(3):
        for chosen in ([*range(8)], last):
            optimizer.zero_grad()
            F.mse_loss(plain(x[chosen]), y[chosen]).backward()
            optimizer.step()
    torch.testing.assert_close(module.layer.weight, plain.layer.weight)


def test_a_rank_whose_stream_is_empty_ends_the_fit(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"epoch 0 on rank 1 of 2 has no batch \(batches as a Halves"
    ) as caught:
        trainer(tmp_path, 2).fit(Lopsided())
    assert caught.value.exit_code == 1  # loaders are looked at when the fit has begun


def test_a_generator_that_is_used_up_ends_the_fit(tmp_path: Path) -> None:
    x, y = samples(8).tensors
    with pytest.raises(DataError, match=r"epoch 1 has no batch .*a generator can be read only once"):
        trainer(tmp_path, 1).fit(Line(), ((x, y) for _ in range(3)), None)


def read(runtime: Any, strategy_is_collective: bool) -> Any:
    model = Line()
    wrapped = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))[0]
    data = samples(9)
    training = runtime.dataloader(DataLoader(data, 2))
    epochs = [[batch[0][:, 0].tolist() for batch in training] for _ in range(2)]
    evaluation = runtime.dataloader(DataLoader(data, 2, shuffle=True, drop_last=True), evaluation=True)
    assert evaluation.repeats is strategy_is_collective
    wrapped.eval()
    total = torch.zeros(2)
    seen = []
    with torch.no_grad():
        for (x, y), counts in evaluation.pairs():
            loss = F.mse_loss(wrapped(x), y, reduction="sum")
            if counts:
                total += torch.tensor([loss.item(), len(x)])
                seen.append(x[:, 0].tolist())
    total = runtime.all_reduce(total, "sum")
    refused = ""
    try:
        plain = [x[:, 0].tolist() for x, _ in evaluation]
        assert plain == seen
    except DataError as error:
        refused = str(error)
    return runtime.collectives.gather_objects((epochs, seen, total.tolist(), len(evaluation), refused))


@pytest.mark.parametrize("strategy", ["ddp_fork", "fsdp"])
def test_a_raw_loop_reads_in_order_and_evaluates_each_sample_once(strategy: str) -> None:
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=2, seed=3)
    is_collective = strategy == "fsdp"
    ranks = runtime.launch(read, is_collective, quiet=True)
    x, y = samples(9).tensors
    first = x[:, 0].tolist()
    order = [*range(9), 0]
    for rank, (epochs, seen, total, length, refused) in enumerate(ranks):
        own = [first[index] for index in order[rank::2]]
        assert epochs == [[own[0:2], own[2:4], own[4:]]] * 2
        assert [value for batch in seen for value in batch] == first[rank::2]
        loss = F.mse_loss(Line()(x), y, reduction="sum").item()
        assert total == pytest.approx([loss, 9], rel=1e-5)
        assert length == (3 if is_collective or rank == 0 else 2)
        assert bool(refused) is is_collective
    if is_collective:
        assert "`for batch, counts in loader.pairs()`" in ranks[0][4]
