"""Wrappers of the five answers hand on everything, so that a derived class forgets nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_single import SingleDeviceStrategy
from torch.utils.data import DataLoader

import stratagem
from stratagem import (
    Checkpointer,
    CheckpointerWrapper,
    Collectives,
    CollectivesWrapper,
    Launcher,
    LauncherWrapper,
    Precision,
    PrecisionWrapper,
    Prepared,
    PreparedWrapper,
    hookimpl,
)
from stratagem.errors import WrongAnswerError

PAIRS = [
    (Launcher, LauncherWrapper),
    (Collectives, CollectivesWrapper),
    (Precision, PrecisionWrapper),
    (Prepared, PreparedWrapper),
    (Checkpointer, CheckpointerWrapper),
]


@pytest.mark.parametrize(("base", "wrapper"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_method_and_property_is_handed_on(base: type, wrapper: type) -> None:
    public = {
        name
        for name, value in vars(base).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }
    assert public - set(vars(wrapper)) == set()
    for name in public:
        of_base, of_wrapper = getattr(base, name), getattr(wrapper, name)
        if inspect.isfunction(of_base):
            assert inspect.signature(of_base) == inspect.signature(of_wrapper), name


class Noted:
    """Wraps all five answers, and notes which methods were called on them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def noting(self, wrapper: type, inner: Any) -> Any:
        calls = self.calls

        class Noting(wrapper):
            def __getattribute__(self, name: str) -> Any:
                if name in vars(wrapper) and not name.startswith("_"):
                    calls.append(f"{wrapper.__name__}.{name}")
                return super().__getattribute__(name)

        return Noting(inner)

    @hookimpl(wrapper=True)
    def launch(self, request):
        return self.noting(LauncherWrapper, (yield))

    @hookimpl(wrapper=True)
    def reduce(self, request):
        return self.noting(CollectivesWrapper, (yield))

    @hookimpl(wrapper=True)
    def precision(self, request):
        return self.noting(PrecisionWrapper, (yield))

    @hookimpl(wrapper=True)
    def setup(self, request):
        return self.noting(PreparedWrapper, (yield))

    @hookimpl(wrapper=True)
    def checkpoint(self, request):
        return self.noting(CheckpointerWrapper, (yield))


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_a_run_with_five_wrappers_ends_with_the_same_weights(tmp_path, precision: str) -> None:
    def weights(*plugins: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        line = Line()
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            precision=precision,
            plugins=plugins,
            max_steps=4,
            gradient_clip_val=0.5,
            enable_progress_bar=False,
            run_dir=tmp_path / str(len(plugins)),
        )
        trainer.fit(line, DataLoader(samples(16), 4))
        return [parameter.detach().clone() for parameter in line.parameters()]

    noted = Noted()
    for plain, wrapped in zip(weights(), weights(noted), strict=True):
        assert torch.equal(plain, wrapped)
    called = set(noted.calls)
    assert {
        "LauncherWrapper.launch",
        "CheckpointerWrapper.save",
        "PreparedWrapper.forward_backward",
    } <= called


class AnswersWithAModule(SingleDeviceStrategy):
    @hookimpl
    def setup(self, request):
        return request.module


def test_setup_that_answers_with_a_module_is_refused() -> None:
    runtime = stratagem.Runtime(AnswersWithAModule(), accelerator="cpu")
    said = "'setup' was answered with an object of Linear by '.*': return one of stratagem.Prepared"
    with pytest.raises(WrongAnswerError, match=said):
        runtime.launch(lambda runtime: runtime.setup(torch.nn.Linear(1, 1)), quiet=True)


class Around:
    """Notes in which order wrappers see the answer: the innermost first."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    @hookimpl(wrapper=True)
    def precision(self, request: Any) -> Any:
        answer = yield
        self.seen.append(self.name)
        return answer


class Outermost(Around):
    @hookimpl(wrapper=True, tryfirst=True)
    def precision(self, request: Any) -> Any:
        return (yield from super().precision(request))


class Innermost(Around):
    @hookimpl(wrapper=True, trylast=True)
    def precision(self, request: Any) -> Any:
        return (yield from super().precision(request))


def test_later_wrappers_are_around_earlier_ones_unless_they_say_otherwise() -> None:
    seen: list[str] = []
    kinds = [(Outermost, "outermost"), (Around, "first"), (Innermost, "innermost"), (Around, "second")]
    plugins = [kind(name, seen) for kind, name in kinds]
    runtime = stratagem.Runtime(SingleDeviceStrategy(), accelerator="cpu", plugins=plugins)
    runtime.launch(lambda runtime: None, quiet=True)
    assert seen == ["innermost", "first", "second", "outermost"]
