"""`Runtime.accumulate` in one process: what is refused; tests/integration/test_accumulate.py has its numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError, GradientError, UsageError

X = torch.arange(4.0)[None]


def in_run(work: Callable[..., Any], accumulate: int = 3) -> Any:
    """Return `work(runtime, model, optimizer)` of a run with one module."""

    def launched(runtime: Any) -> Any:
        model = Line()
        return work(runtime, *runtime.setup(model, SGD(model.parameters(), 0.1), accumulate=accumulate))

    return stratagem.Runtime("single", "cpu").launch(launched, quiet=True)


def take(runtime: Any, model: nn.Module) -> None:
    runtime.backward(model(X).sum())


def test_a_loss_that_is_not_divided_is_refused_in_each_micro_batch() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any, at: int) -> None:
        for place in range(3):
            with runtime.accumulate():
                model(X).sum().backward() if place == at else take(runtime, model)
                optimizer.step()
                optimizer.zero_grad()

    for at in range(3):
        said = rf"micro-batch {at + 1} of 3, and not by runtime\.backward"
        with pytest.raises(GradientError, match=said):
            in_run(lambda *given, at=at: work(*given, at))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("at", [1, 2])
def test_dropped_gradients_of_a_window_are_refused(at: int, set_to_none: bool) -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        for place in range(3):
            with runtime.accumulate():
                if place == at:
                    model.zero_grad(set_to_none)
                take(runtime, model)

    with pytest.raises(GradientError, match="the prepared optimizer's zero_grad"):
        in_run(work)


def test_a_micro_batch_without_a_loss_counts_as_zero() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        before = model.layer.weight.detach().clone()
        for place in range(3):
            with runtime.accumulate():
                if place != 1:
                    take(runtime, model)
                optimizer.step()
        torch.testing.assert_close(before - model.layer.weight, 0.1 * X * 2 / 3)

    in_run(work)


def test_a_step_can_be_left_out_by_dropping_gradients_after_the_last_backward() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        for _ in range(3):
            with runtime.accumulate():
                take(runtime, model)
                optimizer.zero_grad()
        assert model.layer.weight.grad is None

    in_run(work)


def test_one_micro_batch_per_step_is_a_plain_loop() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        before = model.layer.weight.detach().clone()
        with runtime.accumulate():
            assert runtime.sync_gradients
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
        torch.testing.assert_close(before - model.layer.weight, 0.1 * X)

    in_run(work, accumulate=1)


def test_windows_go_on_in_the_next_epoch_where_no_loader_is_given() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> list[bool]:
        ends = []
        for _ in range(3):
            for _ in runtime.dataloader(DataLoader(samples(8), 4)):
                with runtime.accumulate():
                    take(runtime, model)
                    ends.append(runtime.sync_gradients)
        return ends

    assert in_run(work) == [False, False, True] * 2


def test_a_loader_of_unknown_length_ends_no_window() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(4))

    def work(runtime: Any, model: nn.Module, optimizer: Any) -> list[bool]:
        ends = []
        loader = runtime.dataloader(DataLoader(Stream(), 2))
        for _ in range(3):
            for _ in loader:
                with runtime.accumulate(loader):
                    ends.append(runtime.sync_gradients)
        return ends

    assert in_run(work) == [False, False, True] * 2


def test_what_is_not_one_micro_batch_is_refused() -> None:
    def nested(runtime: Any, *_: Any) -> None:
        with runtime.accumulate(), runtime.accumulate():
            pass

    def twice(runtime: Any, *_: Any) -> None:
        loader = runtime.dataloader(DataLoader(samples(), 4))
        for _ in loader:
            for _ in range(2):
                with runtime.accumulate(loader):
                    pass

    def of_torch(runtime: Any, *_: Any) -> None:
        with runtime.accumulate(DataLoader(samples(), 4)):
            pass

    def closure(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        with runtime.accumulate():
            optimizer.step(lambda: 1.0)

    for work, kind, said in (
        (nested, UsageError, "one `with` is one micro-batch"),
        (twice, UsageError, r"twice for one batch.*accumulate\(\) without the loader"),
        (of_torch, ConfigError, r"runtime\.dataloader returned"),
        (closure, ConfigError, "a closure within accumulate"),
    ):
        with pytest.raises(kind, match=said):
            in_run(work)


def test_setup_says_how_many() -> None:
    def nothing(runtime: Any) -> None:
        with runtime.accumulate():
            pass

    def two(runtime: Any) -> None:
        for number in (2, 3):
            model = Line()
            runtime.setup(model, SGD(model.parameters(), 0.1), accumulate=number)
        nothing(runtime)

    def none(runtime: Any) -> None:
        runtime.setup(Line(), accumulate=0)

    for work, said in (
        (nothing, "setup got no optimizer"),
        (two, r"setup got \[2, 3\]"),
        (none, "accumulate=0: give the number of micro-batches"),
    ):
        with pytest.raises(ConfigError, match=said):
            stratagem.Runtime("single", "cpu").launch(work, quiet=True)


def test_no_checkpoint_leaves_gradients_out(tmp_path: Path) -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        for place in range(3):
            with runtime.accumulate():
                take(runtime, model)
                optimizer.step()
            if place == 1:
                with pytest.raises(UsageError, match=r"after micro-batch 2 of 3.*sync_gradients is True"):
                    runtime.save(tmp_path / "saved")
        runtime.save(tmp_path / "saved")

    in_run(work)
    assert (tmp_path / "saved").is_dir()


def test_a_run_that_ends_within_a_window_warns_unless_it_failed() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any, fails: bool = False) -> None:
        with runtime.accumulate():
            take(runtime, model)
        if fails:
            raise ValueError("ended")

    with pytest.warns(UserWarning, match="ended after micro-batch 1 of 3"):
        in_run(work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="ended"):
            in_run(lambda *given: work(*given, fails=True))


def test_gradients_are_dropped_after_a_last_micro_batch_without_a_loss() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        for place in range(3):
            with runtime.accumulate():
                if place < 2:
                    take(runtime, model)
                optimizer.step()
                optimizer.zero_grad()
        assert model.layer.weight.grad is None

    in_run(work)


def test_an_undivided_loss_after_zero_grad_is_refused_in_the_first_micro_batch() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        with runtime.accumulate():
            optimizer.zero_grad()
            model(X).sum().backward()

    with pytest.raises(GradientError, match="micro-batch 1 of 3"):
        in_run(work)


def test_two_losses_with_optimizers_of_their_own_are_refused() -> None:
    def work(runtime: Any) -> None:
        models = [Line(), Line()]
        prepared = [runtime.setup(each, SGD(each.parameters(), 0.1), accumulate=2) for each in models]
        with runtime.accumulate():
            for model, optimizer in prepared:
                optimizer.zero_grad()
                runtime.backward(model(X).sum(), model)

    with pytest.raises(UsageError, match="twice in one micro-batch of accumulate, with several optimizers"):
        stratagem.Runtime("single", "cpu").launch(work, quiet=True)


def test_a_step_of_the_optimizer_that_setup_got_is_refused() -> None:
    def work(runtime: Any) -> None:
        model = Line()
        given = SGD(model.parameters(), 0.1)
        model, _ = runtime.setup(model, given, accumulate=2)
        with runtime.accumulate():
            take(runtime, model)
            given.step()

    with pytest.raises(UsageError, match=r"step the optimizer that setup\(\) returned"):
        stratagem.Runtime("single", "cpu").launch(work, quiet=True)


def test_a_window_whose_last_micro_batch_does_not_step_is_refused() -> None:
    def work(runtime: Any, model: nn.Module, optimizer: Any) -> None:
        for place in range(3):
            with runtime.accumulate():
                take(runtime, model)
                if place < 2:
                    optimizer.step()

    with pytest.raises(
        UsageError, match=r"SGD\.step was called in this window, and not in its last micro-batch"
    ):
        in_run(work)
