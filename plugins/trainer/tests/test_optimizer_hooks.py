"""A module's own optimizer_step and its like: to the bit what a plain loop does that says the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Regression, batches, train
from torch import Tensor, nn
from torch.optim import SGD

import stratagem
from stratagem.errors import CombinationError, ConfigError


class Free(Regression):
    """An optimizer with momentum, so that a wrong step shows in all after it."""

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1, momentum=0.9)


class WarmUp(Free):
    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.global_step + 1) / 5)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class EverySecond(Free):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            assert optimizer_closure().requires_grad is False


class Clips(Free):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any
    ) -> None:
        nn.utils.clip_grad_value_(self.first.parameters(), 0.01)
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")


class Zeros(Free):
    """Steps with a weight decay also where a parameter had no gradient."""

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


def by_hand(module: Free, step: Any, accumulate: int = 1) -> None:
    """The plain loop; `step` gets the module, the optimizer, and the indices of batch and step."""
    optimizer = module.configure_optimizers()
    for _ in range(2):
        for index, batch in enumerate(batches()):
            (module.loss(batch) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                step(module, optimizer, index)
                optimizer.zero_grad()


def warmed(module: Any, optimizer: Any, index: int) -> None:
    module.steps = getattr(module, "steps", 0) + 1
    optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, module.steps / 5)
    optimizer.step()


def clipped(module: Any, optimizer: Any, index: int) -> None:
    nn.utils.clip_grad_value_(module.first.parameters(), 0.01)
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    optimizer.step()


def every_second(module: Any, optimizer: Any, index: int) -> None:
    if index % 2:
        optimizer.step()


def always(module: Any, optimizer: Any, index: int) -> None:
    optimizer.step()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("kind", "step"),
    [(WarmUp, warmed), (EverySecond, every_second), (Clips, clipped), (Zeros, always)],
)
def test_hooks_do_what_a_plain_loop_does(kind: Any, step: Any, accumulate: int, tmp_path: Path) -> None:
    ours, plain = kind(), kind()
    trainer = train(ours, tmp_path, accumulate_grad_batches=accumulate)
    by_hand(plain, step, accumulate)
    for name, expected in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], expected), name
    assert trainer.global_step == (16 // accumulate if kind is not EverySecond or accumulate == 2 else 8)


def test_hooks_that_call_super_change_nothing(tmp_path: Path) -> None:
    class Calls(Free):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            super().optimizer_step(*args, **kwargs)

        def optimizer_zero_grad(self, *args: Any) -> None:
            super().optimizer_zero_grad(*args)

        def configure_gradient_clipping(self, *args: Any) -> None:
            super().configure_gradient_clipping(*args)

    for precision in ("32-true", "16-mixed"):
        one, other = Free(), Calls()
        for module in (one, other):
            train(module, tmp_path, precision=precision, gradient_clip_val=0.05, accumulate_grad_batches=2)
        for name, expected in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], expected), (precision, name)


def test_an_optimizer_that_evaluates_the_loss_itself(tmp_path: Path) -> None:
    class Searches(Regression):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)

    class Hooked(Searches):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            if batch_idx == 3:
                return  # leaves one out
            optimizer.step(closure=lambda: optimizer_closure())

    hooked = Hooked()
    trainer = train(hooked, tmp_path, max_epochs=1)
    assert trainer.global_step == 7
    plain = Searches()
    optimizer = plain.configure_optimizers()
    for index, batch in enumerate(batches()):

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = plain.loss(batch)
            loss.backward()
            return loss

        if index != 3:
            optimizer.step(closure)
    for name, expected in plain.state_dict().items():
        assert torch.equal(hooked.state_dict()[name], expected), name


def test_several_optimizers_stepped_at_different_times(tmp_path: Path) -> None:
    class Two(Regression):
        def configure_optimizers(self) -> Any:
            return SGD(self.first.parameters(), lr=0.1), SGD(self.second.parameters(), lr=0.1)

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            is_first = optimizer.param_groups[0]["params"][0] is self.first.weight
            if is_first or batch_idx % 4 == 3:
                optimizer.step(closure=optimizer_closure)

    ours, plain = Two(), Two()
    train(ours, tmp_path, max_epochs=1)
    first, second = plain.configure_optimizers()
    for index, batch in enumerate(batches()):
        plain.loss(batch).backward()
        first.step()
        if index % 4 == 3:
            second.step()
        plain.zero_grad()
    for name, expected in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], expected), name


def test_a_closure_that_is_called_twice(tmp_path: Path) -> None:
    class Twice(Free):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            optimizer_closure()
            optimizer.step(closure=optimizer_closure)

    with pytest.raises(ConfigError, match="optimizer_step called its closure twice for SGD"):
        train(Twice(), tmp_path)


def test_a_scheduler_that_takes_something_else(tmp_path: Path) -> None:
    class ByEpoch:
        """As those of timm: no scheduler of torch."""

        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self, epoch: int) -> None:
            self.optimizer.param_groups[0]["lr"] = 0.1 / (epoch + 1)

        def state_dict(self) -> dict[str, Any]:
            return {}

    class Needs(Free):
        def configure_optimizers(self) -> Any:
            self.optimizer = super().configure_optimizers()
            return [self.optimizer], [{"scheduler": ByEpoch(self.optimizer), "interval": "epoch"}]

    class Has(Needs):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            assert metric is None
            scheduler.step(epoch=self.current_epoch)

    with pytest.raises(ConfigError, match=r"ByEpoch.step takes .*: define lr_scheduler_step\(self, sch"):
        train(Needs(), tmp_path)
    module = Has()
    train(module, tmp_path, max_epochs=3)
    assert module.optimizer.param_groups[0]["lr"] == 0.1 / 3


def test_a_metric_that_is_missing_and_not_strict(tmp_path: Path) -> None:
    class Plateau(Free):
        strict = False

        def configure_optimizers(self) -> Any:
            self.optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
            config = {"scheduler": scheduler, "monitor": "never", "strict": self.strict, "name": "rate"}
            return {"optimizer": self.optimizer, "lr_scheduler": config}

    with pytest.warns(UserWarning, match="monitor='never' was not logged.*strict=False"):
        train(Plateau(), tmp_path)
    strict = Plateau()
    strict.strict = True
    with pytest.raises(ConfigError, match="monitor='never' was not logged"):
        train(strict, tmp_path)


def test_strategies_that_step_by_themselves_refuse_before_anything_starts(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="pipeline", accelerator="cpu", devices=2, run_dir=tmp_path, logger=False
    )
    with pytest.raises(
        CombinationError, match=r"'pipeline' can't do this: optimizer_step, .*can: ddp, single"
    ):
        trainer.fit(WarmUp(), batches())


def test_manual_optimization_has_no_such_hooks(tmp_path: Path) -> None:
    module = WarmUp()
    module.automatic_optimization = False
    with pytest.raises(ConfigError, match="WarmUp optimizes manually, and defines optimizer_step"):
        train(module, tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded", "ddp_fully_sharded"])
def test_two_ranks_step_as_one_process_does(strategy: str, tmp_path: Path) -> None:
    """The clipping of a module's own, and a warm-up, on ranks that average or shard gradients."""
    ours, alone = Both(), Both()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = stratagem.Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, run_dir=tmp_path / "run", **quiet
    )
    trainer.fit(ours, whole_batches(2))
    train_whole = stratagem.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, run_dir=tmp_path / "one", **quiet
    )
    train_whole.fit(alone, whole_batches(4))
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], expected, msg=name)


class Both(WarmUp):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any
    ) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


def whole_batches(size: int) -> Any:
    data = copy.copy(batches().dataset)
    return torch.utils.data.DataLoader(data, size)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_modules_own_clipping_sees_gradients_of_their_true_size(accumulate: int, tmp_path: Path) -> None:
    """With precision 16-mixed losses are scaled by 65536; what the hook reads and limits isn't."""
    norms: dict[str, list[float]] = {}

    class Own(Free):
        def loss(self, batch: Any) -> Tensor:
            return super().loss(batch) / 100  # nothing overflows

        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any
        ) -> None:
            norms[precision].append(float(nn.utils.clip_grad_norm_(self.parameters(), 0.05)))

    weights = {}
    for precision in ("32-true", "16-mixed"):
        norms[precision], module = [], Own()
        train(module, tmp_path / precision, precision=precision, accumulate_grad_batches=accumulate)
        weights[precision] = torch.cat([each.detach().flatten() for each in module.parameters()])
    assert max(norms["32-true"]) > 0.06
    torch.testing.assert_close(norms["16-mixed"], norms["32-true"], rtol=0.02, atol=0.002)
    torch.testing.assert_close(weights["16-mixed"], weights["32-true"], rtol=0.02, atol=0.002)
