"""A global batch that stays the same while ranks come and go: 4, then 3, then 1, then 4 again, as one process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_testing import StrategySubject
from stratagem_testing.subject import SEED
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import ConfigError

GLOBAL, BATCH, EPOCHS = 24, 2, 3
SAMPLES = 108
"""Not a multiple of the global batch: the epoch's last step has 12, of which 4 ranks have 2 and 1 each."""
LEGS = ((4, 3), (3, 7), (1, 11), (4, 15))
"""How many ranks, and at which optimizer step the checkpoint is written that the next ones go on from."""


class Net(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.net = nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 4))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(x, (x @ torch.randn(6, 4, generator=generator)).argmax(1), torch.arange(SAMPLES))


@dataclass
class Step:
    """What an optimizer step was made of, on some ranks or all."""

    numbers: list[int] = field(default_factory=list)
    loss: float = 0.0
    """Of all its samples, added up."""
    rate: float = 0.0


class Watch(stratagem.Callback):
    def __init__(self, until: int | None = None) -> None:
        self.steps: dict[int, Step] = {}
        self.current, self.until = Step(), until

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.current = self.steps.setdefault(trainer.global_step, Step())
        self.current.rate = trainer.prepared.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        numbers = batch[2].tolist()
        self.current.numbers += numbers
        self.current.loss += float(outputs["loss"]) * len(numbers)
        if trainer.global_step == self.until:
            trainer.should_stop = True


def leg(
    subject: StrategySubject, begin: str | None, until: int, end: str, drop_last: bool
) -> dict[int, Step]:
    watch = Watch(until)
    trainer = subject.trainer(callbacks=[watch], max_epochs=EPOCHS, global_batch_size=GLOBAL)
    loader = DataLoader(data(), BATCH, shuffle=True, drop_last=drop_last)
    trainer.fit(_Saving(end), loader, ckpt_path=begin)
    return watch.steps


class _Saving(Net):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_train_end(self) -> None:
        self.trainer.save_checkpoint(self.path)


@cache
def plainly(drop_last: bool) -> list[Step]:
    """One process, in plain PyTorch."""
    net, samples = Net().net, data()
    per_epoch = SAMPLES // GLOBAL if drop_last else -(-SAMPLES // GLOBAL)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * per_epoch)
    steps, sampler = [], stratagem.ShardedSampler(SAMPLES, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.start(epoch)
        order = list(sampler)
        for start in range(0, per_epoch * GLOBAL, GLOBAL):
            x, y, numbers = samples[order[start : start + GLOBAL]]
            loss = F.cross_entropy(net(x), y)
            steps.append(Step(numbers.tolist(), loss.item() * len(x), optimizer.param_groups[0]["lr"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return steps


@pytest.mark.parametrize(
    ("strategy", "drop_last"),
    [("ddp", False), ("ddp", True), ("fsdp", False), ("ddp_sharded", False), ("ddp_fully_sharded", False)],
)
def test_ranks_come_and_go(strategy: str, drop_last: bool, tmp_path: Path) -> None:
    subject = StrategySubject(strategy, options={"timeout_s": 60})
    begin, seen = None, {}
    for index, (ranks, until) in enumerate(LEGS):
        end = str(tmp_path / str(index))
        until = min(until, 12) if drop_last else until
        for of_rank in subject.at(ranks).run(leg, begin, until, end, drop_last):
            for step, part in of_rank.items():
                whole = seen.setdefault(step, Step(rate=part.rate))
                whole.numbers += part.numbers
                whole.loss += part.loss
                assert whole.rate == part.rate
        begin = end
    expected = plainly(drop_last)
    assert sorted(seen) == list(range(len(expected)))
    for index, step in enumerate(expected):
        assert sorted(seen[index].numbers) == sorted(step.numbers), index
        count = len(step.numbers)
        assert seen[index].loss / count == pytest.approx(step.loss / count, abs=1e-6), index
        assert seen[index].rate == pytest.approx(step.rate, abs=1e-12), index


def resumed(subject: StrategySubject, paths: list[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Go on from each checkpoint to the epoch's end: the samples, and the sum of losses of each step."""
    came = {}
    for path in paths:
        watch = Watch()
        loader = DataLoader(data(), 12 // subject.world_size, shuffle=True)
        subject.trainer(callbacks=[watch], max_epochs=1).fit(Fixed(), loader, ckpt_path=path)
        numbers = [number for step in watch.steps.values() for number in step.numbers]
        came[path] = (numbers, [step.loss for step in watch.steps.values()])
    return came


class Fixed(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def saved(subject: StrategySubject, path: str) -> list[int]:
    """Save after four steps of 12 samples; return which."""
    watch, module = Watch(), _SavingFixed(path)
    loader = DataLoader(data(), 12 // subject.world_size, shuffle=True)
    subject.trainer(callbacks=[watch], max_epochs=1, max_steps=4).fit(module, loader)
    return [number for step in watch.steps.values() for number in step.numbers]


class _SavingFixed(_Saving, Fixed):
    pass


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_pair_of_one_to_four_ranks(strategy: str, tmp_path: Path) -> None:
    """Saved under n ranks and resumed under m: each sample of the epoch once, and the losses of one process."""
    subject = StrategySubject(strategy, options={"timeout_s": 60})
    paths = {str(tmp_path / str(size)): size for size in (1, 2, 3, 4)}
    before = {
        path: [n for of_rank in subject.at(size).run(saved, path) for n in of_rank]
        for path, size in paths.items()
    }
    losses: dict[tuple[int, int], list[float]] = {}
    for size in (1, 2, 3, 4):
        ranks = subject.at(size).run(resumed, list(paths))
        for path, writers in paths.items():
            after = [n for of_rank in ranks for n in of_rank[path][0]]
            assert Counter(before[path] + after) == Counter(range(SAMPLES)), f"{writers} → {size}"
            of_ranks = [of_rank[path][1] for of_rank in ranks]
            losses[writers, size] = [sum(step) / 12 for step in zip(*of_ranks)]
    assert all(len(each) == 5 for each in losses.values())
    for pair, of_pair in losses.items():
        assert of_pair == pytest.approx(losses[1, 1], abs=1e-6), pair


class TestRefusals:
    def fit(self, tmp_path: Path, loader: Any, **settings: Any) -> None:
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            enable_progress_bar=False,
            enable_checkpointing=False,
            logger=False,
            run_dir=tmp_path / "run",
            **settings,
        )
        trainer.fit(Fixed(), loader)

    def test_a_size_that_is_no_multiple(self, tmp_path: Path) -> None:
        words = (
            r"global_batch_size=24 is not a multiple of 5, which is batch_size=5 on each of 1 ranks: "
            r"global_batch_size=20, or batch_size=[46] would fit"
        )
        with pytest.raises(ConfigError, match=words):
            self.fit(tmp_path, DataLoader(data(), 5), global_batch_size=24)

    def test_a_loader_that_does_not_say_its_batch_size(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="this loader has no batch_size"):
            self.fit(tmp_path, [data()[:4], data()[4:8]], global_batch_size=24)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"global_batch_size": 0}, "must be a whole number of at least 1"),
            ({"global_batch_size": 24, "accumulate_grad_batches": 2}, "leave one out"),
        ],
    )
    def test_before_anything_runs(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            stratagem.Trainer(**settings)

    def test_the_ranks_that_would_fit_are_named(self) -> None:
        from stratagem_trainer.data.global_batch import micro_batches
        from stratagem_trainer.settings import TrainerSettings

        class OfTwo:
            batch_size = 2

        settings = TrainerSettings(global_batch_size=24)
        assert micro_batches(settings, OfTwo(), 3) == 4  # type: ignore[arg-type]  # read as a loader
        with pytest.raises(
            ConfigError, match=r"global_batch_size=20, or 1, 2, 3, 4, 6 or 12 ranks would fit"
        ):
            micro_batches(settings, OfTwo(), 5)  # type: ignore[arg-type]  # read as a loader
