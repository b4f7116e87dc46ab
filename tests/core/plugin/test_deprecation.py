"""A plugin that writes what the API before this one had is understood, and told what to write instead."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from inspect import signature
from types import ModuleType

import pytest

from stratagem.plugin import catalogue
from stratagem.plugin.catalogue import load_catalogue
from stratagem.plugin.component import Component
from stratagem.plugin.deprecation import renamed_fields, replaced_names

THIRD = '"strategy", "third", "third_strategy:Third", "a third one"'


@renamed_fields(since=2, plain="original_module")
@dataclass(frozen=True)
class Request:
    """A request one of whose fields was renamed."""

    original_module: str
    training: bool = True


def test_a_name_that_moved_is_found_and_told_once_at_the_line_that_asks() -> None:
    module = ModuleType("some_sdk")
    module.__getattr__ = replaced_names("some_sdk", since=2, Record="stratagem.plugin.component:Component")
    said = (
        "some_sdk.Record is deprecated since plugin API 2, and goes with 3: write stratagem.plugin.component."
    )
    with pytest.warns(DeprecationWarning, match=f"^{said}Component$") as told:
        assert module.Record is Component
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.Record is Component
    with pytest.raises(AttributeError, match="module 'some_sdk' has no attribute 'Other'"):
        _ = module.Other


def test_a_field_is_read_by_its_old_name() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"Request.plain is deprecated .* API 2.* with 3: write original_module"
    ) as told:
        assert Request("a module").plain == "a module"
    assert told[0].filename == __file__


def test_a_record_is_made_and_copied_by_its_old_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"Request\(plain=…\) .*: write original_module=…") as told:
        assert Request(plain="a module", training=False) == Request("a module", False)
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Request\(plain=…\)"):
        assert replace(Request("one"), plain="other") == Request("other")


def test_todays_names_warn_of_nothing() -> None:
    assert Request(original_module="a").original_module == "a"
    assert list(signature(Request).parameters) == ["original_module", "training"]


def test_a_core_of_the_next_api_takes_plugins_of_this_one(site, monkeypatch) -> None:
    site.offer("third-party", THIRD + ", api_version=1")
    site.offer("fourth-party", THIRD.replace("third", "fourth") + ", api_version=3")
    monkeypatch.setattr(catalogue, "API_VERSION", 2)
    assert load_catalogue().find("strategy", "third")
    with pytest.raises(catalogue.ApiVersionError, match="written for plugin API 3, and this core has 2"):
        load_catalogue().find("strategy", "fourth")
