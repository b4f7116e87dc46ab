"""Arguments of other types than they must have: one sentence each, and no error from within."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line

import stratagem
from stratagem.errors import StratagemError

QUIET = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


class Odd:
    """Nothing that anything takes."""

    def __repr__(self) -> str:
        return "Odd()"


def said(value: Any) -> str:
    """Return a test's name for a value, the same in each process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


ODD: tuple[Any, ...] = (
    5,
    -1,
    1.5,
    "x",
    True,
    None,
    object(),
    [5],
    {},
    b"x",
    (1, 2),
    float("nan"),
    "a\0b",
    2**70,
)


def refused_or_taken(call: Callable[[], object]) -> bool:
    """Whether a call is refused; any other error than ours fails."""
    try:
        call()
    except StratagemError as error:
        said = str(error)
    else:
        return False
    assert "\n" not in said, said
    return True


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[stratagem.Runtime, Any, Any]]:
    monkeypatch.chdir(tmp_path)
    runtime = stratagem.Runtime(strategy="single", accelerator="cpu")
    runtime.launch(quiet=True)
    module = torch.nn.Linear(4, 1)
    yield (runtime, *runtime.setup(module, torch.optim.SGD(module.parameters(), 0.1)))
    runtime.close()


@pytest.mark.parametrize("odd", ODD, ids=said)
def test_of_a_trainer(odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect

    monkeypatch.chdir(tmp_path)
    how = {"strategy": "single", "accelerator": "cpu", **QUIET}
    for name in inspect.signature(stratagem.Trainer).parameters:
        if name != "further":
            refused_or_taken(lambda name=name: stratagem.Trainer(**{**how, name: odd}))


def test_of_fit_and_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = stratagem.Trainer(strategy="single", accelerator="cpu", fast_dev_run=True, **QUIET)
    for stage in ("fit", "validate", "test", "predict"):
        call = getattr(trainer, stage)
        for model in (5, "x", [], {}):
            assert refused_or_taken(lambda: call(model)), (stage, model)  # noqa: B023 : called at once
        for path in (5, b"x", 1.5, [1], "a\0b"):
            assert refused_or_taken(lambda: call(Line(), ckpt_path=path)), (stage, path)  # noqa: B023
        name = "train_dataloaders" if stage == "fit" else "dataloaders"
        for loader in (5, "x", b"x", {}):
            assert refused_or_taken(lambda: call(Line(), **{name: loader})), (stage, loader)  # noqa: B023
        for data in (5, "x", [1]):
            assert refused_or_taken(lambda: call(Line(), datamodule=data)), (stage, data)  # noqa: B023
    assert refused_or_taken(lambda: trainer.fit(None))


@pytest.mark.parametrize(
    "odd", [5, -1, "x", None, Odd(), [5], {"a": 1}, b"x", float("nan"), "a\0b"], ids=said
)
def test_of_a_runtime(odd: Any, live: tuple[stratagem.Runtime, Any, Any]) -> None:
    runtime, module, optimizer = live
    for plugins in (5, "nope", Odd()):
        refused_or_taken(lambda: stratagem.Runtime(plugins=plugins))  # type: ignore[arg-type]  # noqa: B023
    calls: dict[str, Callable[[], object]] = {
        "setup": lambda: runtime.setup(odd),
        "setup optimizer": lambda: runtime.setup(torch.nn.Linear(4, 1), odd),
        "setup forward_methods": lambda: runtime.setup(torch.nn.Linear(4, 1), forward_methods=odd),
        "setup accumulate": lambda: runtime.setup(torch.nn.Linear(4, 1), accumulate=odd),
        "setup clipping": lambda: runtime.setup(torch.nn.Linear(4, 1), clipping=odd),
        "dataloader": lambda: list(runtime.dataloader(odd)),
        "backward": lambda: runtime.backward(odd),
        "backward module": lambda: runtime.backward(module(torch.ones(2, 4)).sum(), odd),
        "no_sync": lambda: runtime.no_sync(odd),
        "clip": lambda: runtime.clip(odd, max_norm=1.0),
        "max_norm": lambda: runtime.clip(optimizer, max_norm=odd),
        "max_value": lambda: runtime.clip(optimizer, max_value=odd),
        "norm_type": lambda: runtime.clip(optimizer, max_norm=1.0, norm_type=odd),
        "average_gradients": lambda: runtime.average_gradients(odd),
        "save": lambda: runtime.save(odd),
        "save state": lambda: runtime.save("saved", odd),
        "load": lambda: runtime.load(odd),
        "launch": lambda: stratagem.Runtime(strategy="single", accelerator="cpu").launch(
            odd or 5, quiet=True
        ),
        "seed": lambda: runtime.seed_everything(odd),
    }
    runtime.backward(module(torch.ones(2, 4)).sum())
    refused = {name for name, call in calls.items() if refused_or_taken(call)}
    assert {"setup", "backward", "clip", "average_gradients", "launch"} <= refused
