"""The extension surface: every hook is specified, documented, and says what answers it."""

from __future__ import annotations

import inspect

import pluggy
import pytest

from stratagem.plugin import requests
from stratagem.plugin.component import imported
from stratagem.plugin.hookspecs import (
    PROJECT,
    PROTOCOLS,
    RUN_HOOKS,
    CommandGroup,
    DiscoveryHooks,
    RunHooks,
    hookimpl,
)


def methods(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_")]


def test_a_run_has_these_hooks_in_the_order_of_their_calls() -> None:
    assert RUN_HOOKS == ("launch", "reduce", "precision", "setup", "checkpoint")
    assert tuple(methods(RunHooks)) == RUN_HOOKS


def test_discovery_has_these() -> None:
    assert methods(DiscoveryHooks) == ["stratagem_components", "stratagem_commands"]
    assert methods(CommandGroup) == ["add_command", "add_lazy"]


@pytest.mark.parametrize("hook", RUN_HOOKS)
def test_a_hook_is_answered_once_and_with_an_object_of_its_protocol(hook: str) -> None:
    specification = getattr(RunHooks, hook)
    assert specification.stratagem_spec["firstresult"] is True
    protocol = imported(PROTOCOLS[hook])
    assert inspect.isclass(protocol)
    assert specification.__annotations__["return"] == protocol.__name__
    asked = specification.__annotations__["request"]
    assert asked == f"{hook.capitalize()}Request"
    assert hasattr(requests, asked)
    assert list(PROTOCOLS) == list(RUN_HOOKS)


@pytest.mark.parametrize("hook", methods(DiscoveryHooks))
def test_every_plugin_answers_what_discovery_asks(hook: str) -> None:
    assert getattr(DiscoveryHooks, hook).stratagem_spec["firstresult"] is False


def test_marked_methods_are_called_by_their_names() -> None:
    class Plugin:
        @hookimpl
        def stratagem_components(self) -> list[int]:
            return [1]

        def stratagem_commands(self, cli: object) -> None:
            raise AssertionError("it isn't marked")

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoveryHooks)
    manager.register(Plugin())
    assert manager.hook.stratagem_components() == [[1]]
    assert manager.hook.stratagem_commands(cli=None) == []
