"""What a module may call of itself while it runs, and what it may return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Regression, batches, train
from small import Line, TwoPlayers, samples
from stratagem_trainer.loggers import CSVLogger
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError, DataError


class Free(Regression):
    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


def test_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    class Looks(Free):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, self.global_step, self.dtype, self.logger))
            self.print("here", end="!\n")
            gathered = self.all_gather({"number": 2, "tensor": torch.ones(3)})
            assert gathered["number"].tolist() == [2]
            assert gathered["tensor"].shape == (1, 3)
            self.log_dict({"a": 1.0, "b": torch.tensor(2.0)}, on_epoch=True)
            return super().training_step(batch, batch_idx)

    module = Looks()
    assert (module.current_epoch, module.global_step, module.logger, module.loggers) == (0, 0, None, [])
    assert module.example_input_array is None
    trainer = train(module, tmp_path, logger=CSVLogger())
    assert [each[:3] for each in seen] == [(step // 8, step, torch.float32) for step in range(16)]
    assert isinstance(seen[0][3], CSVLogger)
    assert capsys.readouterr().out.count("here!\n") == 16
    assert trainer.callback_metrics["b_epoch"] == 2.0
    assert module.double().dtype == torch.float64


def test_steps_that_take_the_batch_alone(tmp_path: Path) -> None:
    class Alone(Line):
        def training_step(self, batch: Any) -> Any:
            return super().training_step(batch, 0)

        def validation_step(self, batch: Any) -> None:
            super().validation_step(batch, 0)

        def test_step(self, batch: Any, *rest: Any) -> None:
            assert rest

        def predict_step(self, batch: Any) -> Any:
            return super().predict_step(batch, 0)

    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    trainer = stratagem.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, run_dir=tmp_path / "run", seed=1, **quiet
    )
    one, other = Alone(), Line()
    for module in (one, other):
        trainer.fit(module)
        trainer.test(module)
    assert torch.equal(one.layer.weight, other.layer.weight)
    assert torch.equal(torch.cat(trainer.predict(one)), torch.cat(trainer.predict(other)))

    class Wants(Line):
        def training_step(self, batch: Any, batch_idx: int, third: int, fourth: int) -> Any:
            """Takes two more."""

    with pytest.raises(ConfigError, match=r"Wants.training_step takes \(.*\), but is called with \(batch, b"):
        train(Wants(), tmp_path)


def test_freezing() -> None:
    module = Line()
    module.freeze()
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not module.training
    module.unfreeze()
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert module.training


def test_toggling_is_what_the_context_does(tmp_path: Path) -> None:
    class Toggles(TwoPlayers):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            for optimizer, loss in ((first, self.first_loss), (second, self.second_loss)):
                self.toggle_optimizer(optimizer)
                assert self.layer.weight.requires_grad is (optimizer is first)
                self.manual_backward(loss(batch))
                self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)
            assert self.layer.weight.requires_grad
            assert self.other.weight.requires_grad

        def first_loss(self, batch: Any) -> Any:
            return self(batch[0]).square().mean()

        def second_loss(self, batch: Any) -> Any:
            return self.other(self(batch[0])).square().mean()

    ours, plain = Toggles(), Toggles()
    train(ours, tmp_path, max_epochs=1)
    optimizers = plain.configure_optimizers()
    for batch in batches():
        for optimizer, loss in zip(optimizers, (plain.first_loss, plain.second_loss)):
            loss(batch).backward()
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()
            plain.zero_grad()
    for name, expected in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], expected), name


def test_schedulers_that_a_manual_module_asks_for_are_its_own(tmp_path: Path) -> None:
    class Own(TwoPlayers):
        def configure_optimizers(self) -> Any:
            optimizers = super().configure_optimizers()
            self.made = optimizers
            return optimizers, [ExponentialLR(each, 0.5) for each in optimizers]

        def on_train_epoch_end(self) -> None:
            first, _ = self.lr_schedulers()
            first.step()

    module = Own()
    train(module, tmp_path, max_epochs=3)
    assert [each.param_groups[0]["lr"] for each in module.made] == [0.05 * 0.5**3, 0.05]


FORMS: dict[str, Any] = {
    "one": lambda o, s: o,
    "a list": lambda o, s: [o],
    "a tuple": lambda o, s: (o,),
    "two lists": lambda o, s: ([o], [s]),
    "two lists with a dict": lambda o, s: (
        [o],
        [
            {
                "scheduler": s,
                "interval": "step",
                "frequency": 8,
                "name": "rate",
                "strict": True,
                "monitor": None,
                "reduce_on_plateau": False,
            }
        ],
    ),
    "a dict": lambda o, s: {"optimizer": o, "lr_scheduler": s},
    "a dict with a dict": lambda o, s: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": s, "interval": "epoch"},
    },
    "a list of dicts": lambda o, s: [{"optimizer": o, "lr_scheduler": s}],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_configure_optimizers(form: str, tmp_path: Path) -> None:
    class Formed(Regression):
        def configure_optimizers(self) -> Any:
            self.optimizer = SGD(self.parameters(), lr=0.1)
            return FORMS[form](self.optimizer, StepLR(self.optimizer, 1, 0.5))

    module = Formed()
    train(module, tmp_path)
    has_scheduler = form not in ("one", "a list", "a tuple")
    assert module.optimizer.param_groups[0]["lr"] == (0.1 * 0.5**2 if has_scheduler else 0.1)


def test_no_optimizer_at_all(tmp_path: Path) -> None:
    class Nothing(Regression):
        def configure_optimizers(self) -> Any:
            return None

    module = Nothing()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.warns(UserWarning, match="configure_optimizers returned None: the fit changes no parameter"):
        train(module, tmp_path)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_step_that_returns_nothing(tmp_path: Path) -> None:
    class Forgets(Free):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)

    with pytest.raises(DataError, match=r"Forgets.training_step returned None for all 8 batches"):
        train(Forgets(), tmp_path)

    class SkipsAnEpoch(Free):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if self.current_epoch else super().training_step(batch, batch_idx)

    train(SkipsAnEpoch(), tmp_path)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            lambda self, batch: self.second(batch[0]).mean(),
            r"Wrong.training_step failed for batch 0, which is \(float32 \[4, 4\] on cpu, float32 \[4, 1\] on cpu\)$",
        ),
        (
            lambda self, batch: (self.first(batch[0]) + torch.zeros(4, 8, device="meta")).mean(),
            "on cpu\\); make tensors with device=self.device",
        ),
        (lambda self, batch: self.first(batch[0]), r"has the shape \[4, 8\]: return its mean"),
        (lambda self, batch: self.loss(batch).detach(), "has no gradient: training_step detached it"),
    ],
)
def test_an_error_in_a_step_says_what_it_was_given(step: Any, words: str, tmp_path: Path) -> None:
    class Wrong(Free):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return step(self, batch)

    with pytest.raises(RuntimeError, match=words):
        train(Wrong(), tmp_path)


def test_transfers_of_a_modules_own(tmp_path: Path) -> None:
    class Wrapped:
        """No tensor, list, tuple, dict or dataclass, and without a method `to`."""

        def __init__(self, pair: Any) -> None:
            self.pair = pair

    class Moves(Line):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return Wrapped(batch)

        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            assert (device, dataloader_idx) == (torch.device("cpu"), 0)
            return super().transfer_batch_to_device(batch.pair, device, dataloader_idx)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            x, y = batch
            return x * 2, y

    class Doubles(Line):
        def forward(self, x: Any) -> Any:
            return super().forward(x * 2)

    one, other = Moves(), Doubles()
    found = []
    for module in (one, other):
        trainer = train(module, tmp_path)
        found.append(trainer.validate(module, DataLoader(samples(6), 4))[0]["val_loss"])
    assert torch.equal(one.layer.weight, other.layer.weight)
    assert found[0] == found[1]

    class Forgets(Line):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            """Returns nothing."""

    with pytest.raises(DataError, match="on_after_batch_transfer returned None: return the batch"):
        train(Forgets(), tmp_path)
