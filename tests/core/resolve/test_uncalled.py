"""A user's strategy that overrides what only other trainers call is refused, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_ddp import DDPStrategy

from stratagem.config import RunConfig
from stratagem.errors import ConfigError
from stratagem.installed.catalogue import load_catalogue
from stratagem.resolve.run import assemble
from stratagem.resolve.uncalled import UNCALLED


def assembled(strategy: Any, **config: Any) -> Any:
    return assemble(RunConfig(strategy=strategy, **config))


@pytest.mark.parametrize(("name", "advice"), UNCALLED.items())
def test_a_strategys_method_that_nothing_calls_is_refused(name: str, advice: str) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        raise AssertionError

    cls = type("Mine", (DDPStrategy,), {name: method})
    with pytest.raises(ConfigError) as refused:
        assembled(cls(), accelerator="cpu", devices=2)
    assert str(refused.value) == f"Mine.{name} overrides a method that nothing calls here: {advice}"


def test_methods_that_a_strategy_calls_itself_stay() -> None:
    class Mine(DDPStrategy):
        def configure_ddp(self, module: Any, device: Any) -> Any:
            self.setup_module(module)
            return super().configure_ddp(module, device)

        def setup_module(self, module: Any) -> None:
            pass

    assembled(Mine(), accelerator="cpu", devices=2)
    shipped = [
        component.load() for component in load_catalogue().of_kind("strategy") if not component.missing()
    ]
    assert not [(cls, name) for cls in shipped for name in UNCALLED if hasattr(cls, name)]
