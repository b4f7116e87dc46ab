"""Gradients of Σ loss / Σ weight in one process; plugins/testing compares ranks with it under each strategy."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from stratagem import LossSum, Runtime
from stratagem.errors import DataError, GradientError

X = torch.tensor([[1.0], [2.0], [4.0], [8.0]])


def in_runtime(function, **settings):
    return Runtime("single", accelerator="cpu", devices=1, **settings).launch(function, quiet=True)


def set_up(runtime, optimizer=torch.optim.SGD, **options):
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    return runtime.setup(module, optimizer(module.parameters(), **{"lr": 1.0, **options}))


def mean_gradient(*counts):
    """Of the weighted mean over the first rows, with this many each."""
    return sum(float(X[row]) * count for row, count in enumerate(counts)) / max(sum(counts), 1)


@pytest.mark.parametrize("within", [True, False], ids=["no_sync", "each backward"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_gradients_are_of_the_mean_over_the_window(within, as_tensor):
    def loop(runtime):
        model, optimizer = set_up(runtime)
        for counts in ((3, 1), (0, 5), (2, 0)):
            optimizer.zero_grad()
            for row, count in enumerate(counts):
                with runtime.no_sync(model) if within and row == 0 else nullcontext():
                    weight = torch.tensor(count) if as_tensor else count
                    runtime.backward(model(X[row]).sum() * count, weight=weight)
            assert float(model.weight.grad) == pytest.approx(mean_gradient(*counts), rel=1e-6)
            optimizer.step()

    in_runtime(loop)


def test_torchs_own_clipping_sees_the_mean():
    def loop(runtime):
        model, optimizer = set_up(runtime)
        runtime.backward(model(X[2]).sum() * 100, weight=100)
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)) == pytest.approx(4.0)
        optimizer.step()
        assert float(model.weight.detach()) == pytest.approx(0.0, abs=1e-5)

    in_runtime(loop)


def test_weights_of_zero_give_gradients_of_zero():
    def loop(runtime):
        model, optimizer = set_up(runtime)
        for _ in range(2):
            optimizer.zero_grad()
            runtime.backward(model(X[0]).sum() * 0, weight=0)
            optimizer.step()
        assert float(model.weight.detach()) == 1.0
        assert float(model.weight.grad) == 0.0

    in_runtime(loop)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_ends_the_window_however_gradients_are_dropped(set_to_none):
    def loop(runtime):
        model, optimizer = set_up(runtime)
        for count in (7, 2):
            runtime.backward(model(X[1]).sum() * count, weight=count)
            assert float(model.weight.grad) == pytest.approx(2.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

    in_runtime(loop)


def test_gradients_that_a_step_left_are_refused():
    def loop(runtime):
        model, optimizer = set_up(runtime)
        runtime.backward(model(X[1]).sum(), weight=1)
        optimizer.step()
        with pytest.raises(GradientError, match="zero_grad"):
            runtime.backward(model(X[1]).sum(), weight=1)

    in_runtime(loop)


def test_a_loss_without_a_weight_is_refused_beside_others():
    def loop(runtime):
        model, optimizer = set_up(runtime)
        runtime.backward(model(X[1]).sum(), weight=1)
        optimizer.zero_grad()
        with pytest.raises(GradientError, match="has no weight"):
            runtime.backward(model(X[1]).sum())

    in_runtime(loop)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "3", torch.ones(2), torch.tensor(-2.0)])
def test_weights_are_numbers_from_zero(weight):
    def loop(runtime):
        model, _ = set_up(runtime)
        with pytest.raises(DataError, match="the weight of a loss is"):
            runtime.backward(model(X[1]).sum(), weight=weight)

    in_runtime(loop)


def test_two_optimizers_have_windows_of_their_own():
    """As a GAN: each backward reaches one of them, and gradients are dropped right after the step."""

    def loop(runtime):
        module = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
        both = [torch.optim.SGD(each.parameters(), lr=0.0) for each in module]
        module, *both = runtime.setup(module, *both)
        for counts in ((3, 10), (5, 100)):
            for index, (part, optimizer, count) in enumerate(zip(module, both, counts)):
                runtime.backward(part(X[index]).sum() * count, weight=count)
                assert float(part.weight.grad) == pytest.approx(float(X[index]), rel=1e-6)
                optimizer.step()
                optimizer.zero_grad()

    in_runtime(loop)


def test_lbfgs_gets_the_mean_of_sums():
    def loop(runtime):
        model, optimizer = set_up(runtime, torch.optim.LBFGS, max_iter=2, line_search_fn="strong_wolfe")
        values = []

        def closure():
            optimizer.zero_grad()
            loss = ((model(X) - 3) ** 2).sum() * 10
            runtime.backward(loss, weight=40)
            return LossSum(loss, 40)

        values.append(float(optimizer.step(closure)))
        assert values == [pytest.approx(float(((X - 3) ** 2).mean()))]

    in_runtime(loop)


def test_scaled_losses_do_not_overflow_for_their_weight():
    """Until gradients are divided, they are as large as those of a mean: steps are skipped for their size alone."""

    def loop(runtime):
        model, optimizer = set_up(runtime)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(X[1]).float().sum() * 2**20
            loss.register_hook(lambda gradient: seen.append(float(gradient)))
            runtime.backward(loss, weight=2**20)
            optimizer.step()
        assert seen[-1] >= 2**13 / 2**20
        assert runtime.session.set_up_modules()[0][0].state()["loss_weights"] == {"unit": 2.0**-20}

    in_runtime(loop, precision="16-mixed")
