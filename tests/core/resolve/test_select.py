"""Choosing one component per kind, out of catalogues made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from components import Absent, Derived, Here, NoStrategy, Other, Plain, Second, catalogue, component
from stratagem_checkpoint.directory import DirectoryCheckpointer

from stratagem.collectives.local import LocalCollectives
from stratagem.errors import (
    BrokenPluginError,
    ConfigError,
    DeviceError,
    PrecisionError,
    UnknownNameError,
    UsageError,
)
from stratagem.plugin.component import Capabilities
from stratagem.precision.base import Precision
from stratagem.resolve.resolved import GIVEN, Resolved
from stratagem.resolve.select import (
    check_options,
    checked_strategy,
    choose_accelerator,
    choose_checkpointer,
    choose_precision,
    choose_strategy,
)

ABSENT = component("accelerator", "absent", "Absent", priority=3)
HERE = component("accelerator", "here", "Here", priority=2, strategies=("plain",))
SECOND = component("accelerator", "second", "Second", priority=1)
ALL = catalogue(ABSENT, HERE, SECOND, component("strategy", "plain"))


# Accelerators -----------------------------------------------------------------------------------------


def test_auto_is_the_first_accelerator_that_is_available_and_says_why() -> None:
    chosen = choose_accelerator(ALL, "auto", None)
    assert isinstance(chosen.value, Here)
    assert (chosen.name, chosen.component, str(chosen.origin)) == ("here", "here", "a-party 1.0")
    assert chosen.why == "auto: 2 devices; not available: absent"
    assert chosen.capabilities.strategies == ("plain",)


def test_auto_leaves_out_accelerators_that_the_strategy_does_not_work_on() -> None:
    chosen = choose_accelerator(ALL, "auto", Capabilities(accelerators=("absent", "second")))
    assert isinstance(chosen.value, Second)
    assert chosen.why == "auto: 2 devices; here: not with this strategy; not available: absent"
    # One that it works on, after one that it doesn't, is taken as without the other.
    assert choose_accelerator(ALL, "auto", Capabilities()).name == "here"


def test_auto_leaves_out_accelerators_of_other_devices() -> None:
    chosen = choose_accelerator(ALL, "auto", None, device_type="cpu")
    assert isinstance(chosen.value, Second)
    assert chosen.why == "auto: 2 devices; here: not for cpu; not available: absent"
    assert choose_accelerator(ALL, "auto", None, device_type="meta").name == "here"


def test_auto_never_takes_an_accelerator_that_is_used_by_name_only() -> None:
    by_name = component("accelerator", "by_name", "Here", priority=9, automatic=False)
    both = catalogue(by_name, SECOND)
    assert choose_accelerator(both, "auto", None).name == "second"
    assert choose_accelerator(both, "by_name", None).name == "by_name"
    with pytest.raises(DeviceError, match=r"^no accelerator is available here"):
        choose_accelerator(catalogue(by_name), "auto", None)


def test_auto_without_an_accelerator_says_why() -> None:
    with pytest.raises(DeviceError, match=r"^no accelerator is available here \(none is installed\): pip"):
        choose_accelerator(catalogue(), "auto", None)
    with pytest.raises(DeviceError, match=r"available here \(absent: no driver\): pip install stratagem"):
        choose_accelerator(catalogue(ABSENT), "auto", None)
    both = catalogue(ABSENT, HERE)
    with pytest.raises(DeviceError, match=r"^no accelerator that this strategy .* here: absent: no driver$"):
        choose_accelerator(both, "auto", Capabilities(accelerators=("absent",)))
    message = r"^no accelerator for devices of the type 'cpu' .*: here: not for cpu; absent: no driver; give"
    with pytest.raises(DeviceError, match=message):
        choose_accelerator(both, "auto", None, device_type="cpu")


def test_a_named_accelerator_has_to_be_available() -> None:
    chosen = choose_accelerator(ALL, "second", None)
    assert (chosen.name, chosen.why) == ("second", "2 devices")
    with pytest.raises(
        DeviceError, match=r"'absent' is not available here: no driver; available: here, second$"
    ):
        choose_accelerator(ALL, "absent", None)
    with pytest.raises(DeviceError, match=r"no driver; available: none$"):
        choose_accelerator(catalogue(ABSENT), "absent", None)


def test_a_strategys_name_for_an_accelerator_is_named_in_the_error() -> None:
    message = (
        "accelerator='plain' names a strategy: .*strategy='plain', with accelerator one of .'absent', 'here'"
    )
    with pytest.raises(UnknownNameError, match=message):
        choose_accelerator(ALL, "plain", None)
    with pytest.raises(UnknownNameError, match=r"no accelerator is called 'hree'; nearest: here"):
        choose_accelerator(ALL, "hree", None)


def test_an_accelerator_object_has_what_is_declared_of_its_class() -> None:
    chosen = choose_accelerator(ALL, Here(), None)
    assert (chosen.name, chosen.origin, chosen.capabilities.strategies) == ("here", GIVEN, ("plain",))

    class Own(Here):
        name = "own"

    assert choose_accelerator(ALL, Own(), None).capabilities == Capabilities()


# Strategies -------------------------------------------------------------------------------------------


def test_a_named_strategy_is_made_with_its_presets_and_options() -> None:
    found = catalogue(component("strategy", "plain", presets={"plain_two": {"size": 2}}))
    chosen = choose_strategy(found, "plain_two", {}, 1)
    assert (chosen.name, chosen.component, chosen.value.size, chosen.why) == ("plain_two", "plain", 2, "")
    assert choose_strategy(found, "plain_two", {"size": 3}, 1).value.size == 3
    assert choose_strategy(found, "plain", {}, 1).value.size == 1
    # Whatever the number of processes: what doesn't go with it is refused later, by name.
    first = catalogue(component("strategy", "able"))
    assert choose_strategy(first, "able", {}, 2).name == "able"


def test_auto_strategy_is_called_by_its_own_name_and_says_why() -> None:
    found = catalogue(component("strategy", "plain"), component("strategy", "many", processes="per-device"))
    assert (choose_strategy(found, "auto", {}, 1).name, choose_strategy(found, "auto", {}, 1).why) == (
        "plain",
        "auto: 1 device",
    )
    assert choose_strategy(found, "auto", {}, 2).why == "auto: 2 devices"
    assert choose_strategy(found, "auto", {}, 2).name == "many"
    here = Resolved("accelerator", "here", Here(), capabilities=Capabilities(strategies=("plain",)))
    with pytest.raises(UnknownNameError, match=r"trains on 2 devices"):
        choose_strategy(found, "auto", {}, 2, here)


def test_options_that_a_constructor_lacks_are_refused() -> None:
    def takes(size: int, rate: float = 0.1) -> None: ...

    check_options(takes, {"size": 1, "rate": 1}, "it")
    check_options(Plain, {"anything": 1}, "it")  # the constructor takes any
    with pytest.raises(ConfigError, match=r"^it has no setting 'sise'; it has size, rate$"):
        check_options(takes, {"size": 1, "sise": 1}, "it")


def test_what_a_plugin_calls_a_strategy_has_to_be_one() -> None:
    found = catalogue(component("strategy", "odd", "NoStrategy"))
    with pytest.raises(
        BrokenPluginError, match=r"'odd' of a-party 1.0 is an object of NoStrategy, which isn't"
    ):
        choose_strategy(found, "odd", {}, 1)
    with pytest.raises(UsageError, match=r"is neither a name nor a Strategy: pass one of \['odd'\]"):
        checked_strategy(found, NoStrategy())


def test_a_strategy_object_has_what_is_declared_of_its_class_or_its_base() -> None:
    declared = catalogue(component("strategy", "plain", features=frozenset({"closure"})))
    for given in (Plain(), Derived()):
        chosen = choose_strategy(declared, given, {}, 1)
        assert chosen.value is given
        assert (chosen.name, chosen.component, chosen.why) == (type(given).__name__, "plain", GIVEN)
        assert chosen.capabilities.features == {"closure"}
    other = choose_strategy(declared, Other(), {}, 1)
    assert (other.component, other.origin) == ("", GIVEN)
    assert other.capabilities.features == {"manual_backward"}
    with pytest.raises(ConfigError, match=r"options \['a', 'size'\] go .* a Plain object was given"):
        choose_strategy(declared, Plain(), {"size": 1, "a": 1}, 1)


def test_a_strategy_refines_what_is_declared_of_it() -> None:
    class Refines(Plain):
        def refine_capabilities(self, declared: Capabilities) -> Capabilities:
            return Capabilities(precisions=(*declared.precisions, "more"))

    assert choose_strategy(catalogue(), Refines(), {}, 1).capabilities.precisions == ("*", "more")
    declared = catalogue(component("strategy", "plain", precisions=("wide",)))
    assert choose_strategy(declared, Refines(), {}, 1).capabilities.precisions == ("wide", "more")


# Precisions -------------------------------------------------------------------------------------------

PRECISIONS = catalogue(
    component("precision", "wide", aliases=("32",)),
    component("precision", "narrow", aliases=("16",)),
    component("precision", "half"),
)


def test_a_precision_is_found_by_name_or_number() -> None:
    for wanted in ("wide", "32", 32):
        chosen = choose_precision(PRECISIONS, wanted, Here(), Capabilities())
        assert (chosen.name, chosen.value) == ("wide", Plain)
    with pytest.raises(PrecisionError, match=r"no precision is called 'True'"):
        choose_precision(PRECISIONS, "True", Here(), Capabilities())


def test_a_precision_object_is_kept_under_its_name() -> None:
    class Named:
        name = "mine"

    class Nameless:
        pass

    for given, name in ((Named(), "mine"), (Nameless(), "Nameless"), (True, "bool")):
        chosen = choose_precision(PRECISIONS, given, Here(), Capabilities(precisions=()))
        assert chosen.name == name
        assert chosen.value("x", torch.device("cpu")) is given


def test_a_precision_object_is_made_for_the_device_of_a_process() -> None:
    class Placed(Precision):
        name = "mine"

        def for_device(self, device: torch.device) -> Precision:
            placed = Precision()
            placed.name = f"mine on {device}"
            return placed

    chosen = choose_precision(PRECISIONS, Placed(), Here(), Capabilities())
    assert chosen.value("mine", torch.device("cpu")).name == "mine on cpu"


def test_a_precision_object_is_refused_as_the_component_of_its_name() -> None:
    class Half(Precision):
        name = "half"

    class Narrow(Precision):
        name = "narrow"

    only_wide = Capabilities(precisions=("wide",))
    with pytest.raises(PrecisionError, match=r"'half' doesn't work with this strategy; it has wide$"):
        choose_precision(PRECISIONS, Half(), Here(), only_wide)
    with pytest.raises(PrecisionError, match=r"'narrow' is not available on here: too narrow for it"):
        choose_precision(PRECISIONS, Narrow(), Here(), Capabilities())


def test_a_precision_names_the_accelerators_it_works_on() -> None:
    installed = catalogue(
        component("precision", "wide"), component("precision", "eight", accelerators=("there", "far"))
    )
    message = r"'eight' is not available on here: it only works on there or far; here has wide$"
    with pytest.raises(PrecisionError, match=message):
        choose_precision(installed, "eight", Here(), Capabilities())


def test_a_precision_that_the_devices_lack_is_refused_with_those_that_they_have() -> None:
    message = r"'narrow' is not available on here: too narrow for it; here has half, wide$"
    with pytest.raises(PrecisionError, match=message):
        choose_precision(PRECISIONS, 16, Here(), Capabilities())


def test_a_precision_that_the_strategy_lacks_is_refused() -> None:
    only_wide = Capabilities(precisions=("wide", "narrow"))
    assert choose_precision(PRECISIONS, "wide", Here(), only_wide).name == "wide"
    with pytest.raises(PrecisionError, match=r"'half' doesn't work with this strategy; it has wide, narrow$"):
        choose_precision(PRECISIONS, "half", Here(), only_wide)


# Checkpointers ----------------------------------------------------------------------------------------


def test_a_checkpointer_by_name_is_imported_when_it_is_made() -> None:
    found = catalogue(component("checkpoint", "late", "NoStrategy"))
    chosen = choose_checkpointer(found, None, "late")
    assert (chosen.name, isinstance(chosen.value(), NoStrategy)) == ("late", True)
    absent = catalogue(component("checkpoint", "gone", "NotThere"))
    gone = choose_checkpointer(absent, None, "gone")
    with pytest.raises(BrokenPluginError):
        gone.value()


def test_only_the_default_checkpointer_may_be_missing() -> None:
    missing = choose_checkpointer(catalogue(), None, "directory")
    assert (missing.name, missing.origin) == ("directory", "not here")
    for chosen in ("another", "elsewhere"):
        with pytest.raises(UnknownNameError, match=f"no checkpoint is called '{chosen}'"):
            choose_checkpointer(catalogue(), None, chosen)


def test_a_given_checkpointer_is_kept_and_a_function_is_called_later() -> None:
    here = LocalCollectives(torch.device("cpu"))
    given: Any = DirectoryCheckpointer(here)
    chosen = choose_checkpointer(catalogue(), given, "directory")
    assert (chosen.name, chosen.value(here) is given) == ("DirectoryCheckpointer", True)
    for makes, name in ((DirectoryCheckpointer, "DirectoryCheckpointer"), (lambda c: c, "lambda")):
        chosen = choose_checkpointer(catalogue(), makes, "directory")
        assert chosen.value is makes
        assert name in chosen.name


def test_half_a_checkpointer_is_refused() -> None:
    class OnlySaves:
        def save(self) -> None: ...

    with pytest.raises(ConfigError, match=r"is neither a Checkpointer nor a function"):
        choose_checkpointer(catalogue(), OnlySaves(), "directory")


def test_an_absent_accelerator_object_is_the_callers_choice() -> None:
    assert choose_accelerator(ALL, Absent(), None).name == "absent"
