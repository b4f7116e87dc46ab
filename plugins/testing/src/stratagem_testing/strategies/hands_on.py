"""Your own training loop, if it changes gradients, steps and tensors itself."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR

from stratagem.errors import CollectiveError, ReplicaError, StratagemError, WorkerError
from stratagem_testing.checks import ConformanceError, NotApplicable, check, expect
from stratagem_testing.subject import StrategySubject
from stratagem_testing.workers import shared_workers

STEPS, BATCH = 4, 12
_ALL_RANKS_S = 60.0
"""How long a rank that has refused waits for the others to refuse, too."""


class _Run:
    """The interface of the loops below, in plain torch: one process has the samples of all ranks."""

    rank, ranks = 0, 1

    def __init__(self, subject: StrategySubject) -> None:
        self.record: list[_Value] = []
        self.model: Any = None
        self._replaced = subject.optimizer or (lambda optimizer: optimizer)

    def sgd(self, module: nn.Module, momentum: float = 0.0) -> Optimizer:
        """Return the optimizer that the strategy is tried with."""
        return self._replaced(SGD(module.parameters(), lr=0.1, momentum=momentum))

    def setup(self, module: nn.Module, *optimizers: Optimizer) -> Any:
        made = self._set_up(module, *optimizers)
        self.model = made[0] if optimizers else made
        return made

    def _set_up(self, module: nn.Module, *optimizers: Optimizer) -> Any:
        return (module, *optimizers) if optimizers else module

    def backward(self, loss: Tensor, module: nn.Module) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own has no types

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()

    def save_and_load(self, model: Any, optimizer: Any, others: dict[str, Any]) -> None:
        for each in (model, optimizer, *others.values()):
            each.load_state_dict(copy.deepcopy(each.state_dict()))

    def batches(self, seed: int = 11) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's samples of each global batch. Samples of later ranks are larger."""
        generator = torch.Generator().manual_seed(seed)
        own = slice(self.rank * BATCH // self.ranks, (self.rank + 1) * BATCH // self.ranks)
        for _ in range(STEPS):
            x = torch.randn(BATCH, 6, generator=generator) * torch.linspace(0.5, 1.5, BATCH)[:, None]
            y = torch.randn(BATCH, 3, generator=generator)
            yield self.to_device(x[own]), self.to_device(y[own])

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of this rank's samples. The mean over ranks must be that of one process."""
        loss = F.mse_loss(model(batch[0]), batch[1])
        self.record.append(_Value("the loss", float(loss.detach()), of_rank=True))
        return loss

    def note(self, name: str, value: Any) -> None:
        """Record a number that must be the same on every rank as in one process."""
        self.record.append(_Value(name, float(value)))


class _StrategyRun(_Run):
    """The interface of the loops below, with a `Runtime`."""

    def __init__(self, subject: StrategySubject, runtime: Any, folder: str) -> None:
        super().__init__(subject)
        self.runtime, self.folder = runtime, folder
        self.rank, self.ranks = runtime.data_rank, subject.shares()
        self._set_up, self.backward, self.no_sync = runtime.setup, runtime.backward, runtime.no_sync  # type: ignore[method-assign]  # the instance's, on purpose

    def save_and_load(self, model: Any, optimizer: Any, others: dict[str, Any]) -> None:
        # Objects that setup returned are saved and loaded even if they aren't named.
        self.runtime.save(f"{self.folder}/middle", others)
        self.runtime.load(f"{self.folder}/middle", others)

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.runtime.device)


@dataclass(frozen=True)
class _Value:
    name: str
    value: float
    of_rank: bool = False
    """Whether it is of this rank's samples. Then the mean over ranks is compared."""


@dataclass(frozen=True)
class _Came:
    """The result of one loop on one rank."""

    record: list[_Value] = field(default_factory=list)
    refusal: str = ""


_Loop = Callable[[_Run], None]


def _net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        # Layers with five rows and three rows, which two ranks can't shard equally.
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _set_up(run: _Run) -> tuple[nn.Sequential, Any, Any]:
    net = _net()
    return (net, *run.setup(net, run.sgd(net, momentum=0.9)))


def _nothing_special(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()


# Backwards ----------------------------------------------------------------------------------------


def _raw_backward(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        run.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch's own has no types
        optimizer.step()


def _last_window_within_no_sync(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for first, second in zip(run.batches(), run.batches(seed=12)):
        for batch in (first, second):
            with run.no_sync(model):
                run.backward(run.loss(model, batch) / 2, model)
        optimizer.step()
        optimizer.zero_grad()


def _two_forwards_and_two_backwards(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for first, second in zip(run.batches(), run.batches(seed=12)):
        losses = [run.loss(model, batch) for batch in (first, second)]
        for loss in losses:
            run.backward(loss / 2, model)
        optimizer.step()
        optimizer.zero_grad()


def _gradient_assigned_before_a_backward(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(model(batch[0]).abs().mean(), parameters)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient * (0.1 / norm).clamp(max=1.0)
        run.backward(run.loss(model, batch), model)
        optimizer.step()


def _frozen_between_forward_and_backward(run: _Run) -> None:
    net = _net()
    model, optimizer = run.setup(net, run.sgd(net, momentum=0.9))
    for index, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss = run.loss(model, batch)
        net[0].requires_grad_(index % 2 == 0)
        run.backward(loss, model)
        optimizer.step()
        net[0].requires_grad_(True)


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ArithmeticError("in the backward")


def _exception_that_all_ranks_catch(run: _Run) -> None:
    raises = "nowhere"

    def hook(layer: nn.Module, args: Any, output: Tensor) -> Any:
        if raises == "forward":
            raise ArithmeticError("in the forward")
        return _Raises.apply(output) if raises == "backward" else None  # type: ignore[no-untyped-call]  # torch's

    net = _net()
    net[1].register_forward_hook(hook)
    model, optimizer = run.setup(net, run.sgd(net))
    for where, batch in zip(("nowhere", "forward", "backward", "nowhere"), run.batches()):
        raises = where
        optimizer.zero_grad()
        try:
            run.backward(run.loss(model, batch), model)
        except ArithmeticError:
            continue
        optimizer.step()


# Steps --------------------------------------------------------------------------------------------


def _step_with_closure(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for batch in run.batches():

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = run.loss(model, batch)
            run.backward(loss, model)
            return loss

        optimizer.step(closure)


def _scheduled(run: _Run, made_before: bool) -> None:
    _, model, optimizer = _set_up(run)
    schedules = [StepLR(optimizer, 1, gamma=0.5)] if made_before else []
    for index, batch in enumerate(run.batches()):
        if index == 1:
            run.save_and_load(model, optimizer, {f"schedule-{i}": each for i, each in enumerate(schedules)})
            schedules = schedules or [StepLR(optimizer, 1, gamma=0.5)]
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()
        for schedule in schedules:
            schedule.step()


def _schedule_from_before_a_load(run: _Run) -> None:
    _scheduled(run, made_before=True)


def _schedule_from_after_a_load(run: _Run) -> None:
    _scheduled(run, made_before=False)


def _optimizer_made_after_setup(run: _Run) -> None:
    model = run.setup(_net())
    optimizer = run.sgd(model, momentum=0.9)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()


def _second_optimizer_made_later(run: _Run) -> None:
    net = _net()
    model, optimizer = run.setup(net, run.sgd(net[0]))
    late: list[Optimizer] = []
    for index, batch in enumerate(run.batches()):
        late = late or ([run.sgd(net[2])] if index == 1 else [])
        net.zero_grad()
        run.backward(run.loss(model, batch), model)
        for each in (optimizer, *late):
            each.step()


def _steps_without_an_optimizer(run: _Run) -> None:
    model = run.setup(_net())
    for batch in run.batches():
        run.backward(run.loss(model, batch), model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad.zero_()


class _Centralized(SGD):
    """Subtracts each gradient's mean if the group has the option. That needs the whole gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"] if group.get("centralize") else ():
                parameter.grad -= parameter.grad.mean()
        return super().step(closure)


def _option_that_is_switched_on(run: _Run) -> None:
    net = _net()
    model, optimizer = run.setup(net, _Centralized(net.parameters(), lr=0.1))
    for index, batch in enumerate(run.batches()):
        if index == 1:
            for group in optimizer.param_groups:
                group["centralize"] = True
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()


def _step_hooks_that_read_gradients(run: _Run) -> None:
    def before(stepped: Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in stepped.param_groups for p in group["params"] if p.grad is not None]
        run.note("the norm that a step hook reads", sum(float(g.square().sum()) for g in gradients) ** 0.5)

    net = _net()
    given = run.sgd(net)
    given.register_step_pre_hook(before)
    model, optimizer = run.setup(net, given)
    optimizer.register_step_pre_hook(before)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()


# Tensors ------------------------------------------------------------------------------------------


def _values_of_parameters(run: _Run) -> None:
    net, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()
        for name, parameter in net.named_parameters():
            run.note(f"{name}.mean()", parameter.mean().item())
            run.note(f"the largest of {name}", float(parameter.detach().abs().max()))


def _values_of_gradients(run: _Run) -> None:
    net, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                run.note(f"{name}.grad.norm()", parameter.grad.norm().item())
        optimizer.step()


def _gradients_assigned_over_former_ones(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    for batch in run.batches():
        loss, parameters = run.loss(model, batch), list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.grad = gradient
        optimizer.step()


def _gradients_in_one_buffer(run: _Run) -> None:
    _, model, optimizer = _set_up(run)
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    buffer = run.to_device(torch.zeros(sum(sizes)))
    for parameter, part in zip(parameters, torch.split(buffer, sizes)):
        parameter.grad = part.view_as(parameter)
    for batch in run.batches():
        buffer.zero_()
        run.backward(run.loss(model, batch), model)
        buffer.mul_(0.5)
        optimizer.step()


def _rows_that_are_written(run: _Run) -> None:
    net, model, optimizer = _set_up(run)
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        optimizer.step()
        weight, bias = net[0].get_parameter("weight"), net[2].get_parameter("bias")
        weight.data[3].zero_()
        with torch.no_grad():
            bias[1:].fill_(0.25)


def _clip_of_an_older_list(run: _Run) -> None:
    net = _net()
    parameters = list(net.parameters())
    model, optimizer = run.setup(net, run.sgd(net, momentum=0.9))
    for batch in run.batches():
        optimizer.zero_grad()
        run.backward(run.loss(model, batch), model)
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()


# Checks -------------------------------------------------------------------------------------------


@check(world_sizes=(1, 2))
def check_own_backwards(subject: StrategySubject) -> None:
    """A loop's own backwards, accumulation and caught exceptions have plain PyTorch's results, or are refused."""
    _expect_equal_or_refused(
        subject,
        _raw_backward,
        _last_window_within_no_sync,
        _two_forwards_and_two_backwards,
        _gradient_assigned_before_a_backward,
        _frozen_between_forward_and_backward,
        _exception_that_all_ranks_catch,
    )


@check(world_sizes=(1, 2))
def check_own_steps(subject: StrategySubject) -> None:
    """A loop's closures, schedulers and late optimizers have plain PyTorch's results, or are refused."""
    _expect_equal_or_refused(
        subject,
        _step_with_closure,
        _schedule_from_before_a_load,
        _schedule_from_after_a_load,
        _optimizer_made_after_setup,
        _second_optimizer_made_later,
        _steps_without_an_optimizer,
        _option_that_is_switched_on,
    )


@check(world_sizes=(1, 2))
def check_own_gradients(subject: StrategySubject) -> None:
    """Gradients that a loop and step hooks read are those of one process, or they are refused."""
    _expect_equal_or_refused(
        subject,
        _values_of_gradients,
        _gradients_assigned_over_former_ones,
        _gradients_in_one_buffer,
        _step_hooks_that_read_gradients,
    )


@check(world_sizes=(1, 2))
def check_own_tensors(subject: StrategySubject) -> None:
    """Parameters that a loop reads and writes are the full ones, or it is refused."""
    _expect_equal_or_refused(subject, _values_of_parameters, _rows_that_are_written, _clip_of_an_older_list)


def _expect_equal_or_refused(subject: StrategySubject, *loops: _Loop) -> None:
    tried = (_nothing_special, *loops)
    by_rank: list[list[_Came]] = subject.run(_on_rank, tried)
    if by_rank[0][0].refusal:
        raise NotApplicable(by_rank[0][0].refusal)
    plain = shared_workers().run(1, _plainly, subject, tried)[0]
    for loop, alone, ranks in zip(tried, plain, zip(*by_rank)):
        if not ranks[0].refusal:
            _expect_same(_described(loop), [each.record for each in ranks], alone, subject.tolerance())


def _expect_same(loop: str, ranks: list[list[_Value]], alone: list[_Value], tolerance: float) -> None:
    for rank, record in enumerate(ranks):
        expect(
            [each.name for each in record] == [each.name for each in alone],
            f"{loop}: rank {rank} has {len(record)} values, but one process {len(alone)}",
        )
    for index, expected in enumerate(alone):
        values = [record[index].value for record in ranks]
        compared = [sum(values) / len(values)] if expected.of_rank else values
        count = sum(each.name == expected.name for each in alone[:index])
        for value in compared:
            expect(
                abs(value - expected.value) <= tolerance,
                f"{loop}: {expected.name} (number {count}) is {value:.8g}, but {expected.value:.8g} in one process",
            )


def _described(loop: _Loop) -> str:
    return loop.__name__.strip("_").replace("_", " ")


def _plainly(subject: StrategySubject, loops: Iterable[_Loop]) -> list[list[_Value]]:
    torch.set_num_threads(1)
    return [_recorded(_Run(subject), loop) for loop in loops]


def _on_rank(subject: StrategySubject, loops: Iterable[_Loop]) -> list[_Came]:
    return [_tried(subject, loop) for loop in loops]


def _tried(subject: StrategySubject, loop: _Loop) -> _Came:
    folder = Path(subject.folder, loop.__name__)
    folder.mkdir(exist_ok=True)
    try:
        return _Came(subject.runtime().launch(_in_run, subject, loop, str(folder), quiet=True))
    except StratagemError as error:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, (CollectiveError, ReplicaError, WorkerError)):
            raise ConformanceError(
                f"{_described(loop)}: no rank refused it, and it ended with {said}"
            ) from error
        if not _all_refuse(folder, subject.processes()):
            raise ConformanceError(f"{_described(loop)}: only some ranks refused it: {said}") from error
        return _Came(refusal=said)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConformanceError(f"{_described(loop)}: an error without an explanation: {said}") from error


def _in_run(runtime: Any, subject: StrategySubject, loop: _Loop, folder: str) -> list[_Value]:
    return _recorded(_StrategyRun(subject, runtime, folder), loop)


def _recorded(run: _Run, loop: _Loop) -> list[_Value]:
    loop(run)
    with torch.no_grad():  # records the effect of the last step
        run.loss(run.model, next(run.batches()))
    return run.record


def _all_refuse(folder: Path, ranks: int) -> bool:
    """Return whether all ranks refuse. A rank that doesn't refuse may wait for this one forever."""
    (folder / f"refused-{os.environ.get('RANK', '0')}").touch()
    deadline = time.monotonic() + _ALL_RANKS_S
    while time.monotonic() < deadline:
        if len(list(folder.glob("refused-*"))) == ranks:
            return True
        time.sleep(0.01)
    return False
