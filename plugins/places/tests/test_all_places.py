"""What every installed place owes its callers, as far as that can be tested without it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from stratagem_places import Place, PlaceRequest

from stratagem import Component
from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue

INSTALLED = load_catalogue().of_kind("place")


@pytest.fixture(params=INSTALLED, ids=lambda component: component.name)
def component(request: pytest.FixtureRequest) -> Component:
    found: Component = request.param
    if found.missing():
        pytest.skip(f"needs {', '.join(found.missing())}")
    return found


def test_every_option_has_a_type_and_a_default(component: Component) -> None:
    place_class = component.load()
    assert issubclass(place_class, Place)
    for option in inspect.signature(place_class).parameters.values():
        assert option.annotation is not inspect.Parameter.empty, option
        assert option.default is not inspect.Parameter.empty, option
    reason = place_class().why_not()
    assert reason is None or (reason.strip() and "\n" not in reason)


def test_a_script_is_the_same_twice_and_writes_nothing(component: Component, tmp_path: Path) -> None:
    place = component.load()()
    run_dir = tmp_path / "a run"
    request = PlaceRequest(
        stage="fit",
        words=("net.py:Net", "--max-epochs", "3"),
        run_dir=str(run_dir),
        code_dir=str(run_dir / "code"),
    )
    try:
        text = place.render(request)
    except UsageError as error:
        pytest.skip(f"needs more settings: {error}")
    assert text == place.render(request)
    assert "net.py:Net" in text
    assert not list(tmp_path.iterdir())
