"""Extensions: objects, names that are installed, or "package.module:Class"."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem import hookimpl
from stratagem.errors import CombinationError, ConflictError, UnknownNameError
from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.resolve.extensions import load_extension
from stratagem.resolve.resolved import GIVEN

NONE = Catalogue(())


class Wraps:
    """Wraps a hook, and keeps what it was made with."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        return (yield)


class NeedsMore(Wraps):
    def __init__(self, size: int) -> None:
        super().__init__(size=size)


class NoHooks:
    pass


MADE = Wraps(made="before")
BROKEN = "an_extension_module_that_is_not_there"


@pytest.fixture
def here(site: Any) -> str:
    """A module with the classes above, by a name that can be imported."""
    site.write("extension_module", "")
    import extension_module

    for name in ("Wraps", "NeedsMore", "NoHooks", "MADE"):
        setattr(extension_module, name, globals()[name])
    return "extension_module"


def test_an_object_is_taken_as_it_is() -> None:
    given = Wraps()
    found = load_extension(NONE, given)
    assert found.value is given
    assert (found.kind, found.name, found.origin) == ("extension", f"{__name__}.Wraps", GIVEN)


def test_a_class_is_made_and_an_object_of_a_module_is_not(here: str) -> None:
    found = load_extension(NONE, f"{here}:Wraps")
    assert type(found.value) is Wraps
    assert (found.kind, found.name, found.origin) == ("extension", f"{here}:Wraps", GIVEN)
    assert load_extension(NONE, f"{here}:MADE").value is MADE


def test_an_installed_one_is_made_with_its_presets_values(site: Any, here: str) -> None:
    record = f'"extension", "wrapping", "{here}:Wraps", "", presets={{"wrapping_twice": {{"times": 2}}}}'
    site.offer("third-party", record)
    catalogue = load_catalogue()
    found = load_extension(catalogue, "wrapping")
    assert (found.value.settings, found.component, found.origin) == ({}, "wrapping", "third-party 1.0")
    assert load_extension(catalogue, "wrapping_twice").value.settings == {"times": 2}
    assert load_extension(catalogue, f"{here}:Wraps").component == ""


def test_a_distribution_before_the_name_chooses_among_several(site: Any, here: str) -> None:
    for party in ("left", "right"):
        presets = f"presets={{'wrapping_by': {{'party': '{party}'}}}}"
        site.offer(f"{party}-party", f'"extension", "wrapping", "{here}:Wraps", "", {presets}')
    catalogue = load_catalogue()
    with pytest.raises(ConflictError, match="choose left-party:wrapping or right-party:wrapping"):
        load_extension(catalogue, "wrapping")
    for party, spelling in (("left", "left-party"), ("right", "Right_Party")):
        assert load_extension(catalogue, f"{spelling}:wrapping").origin == f"{party}-party 1.0"
        assert load_extension(catalogue, f"{spelling}:wrapping_by").value.settings == {"party": party}
    for nothing in ("left-party:Wraps", "a-party:wrapping", "z-party:wrapping"):
        with pytest.raises(UnknownNameError, match=f"'{nothing}' can't be imported"):
            load_extension(catalogue, nothing)


@pytest.mark.parametrize(
    ("extension", "error", "said"),
    [
        ("nothing", UnknownNameError, "no extension is called 'nothing'"),
        (f"{BROKEN}:X", UnknownNameError, f"'{BROKEN}:X' can't be imported: ModuleNotFoundError: No module"),
        ("{here}:Absent", UnknownNameError, "can't be imported: AttributeError: .*Absent"),
        ("exits:X", UnknownNameError, "'exits:X' can't be imported: SystemExit: 3"),
        (
            "{here}:NoHooks",
            CombinationError,
            "is not an extension: NoHooks implements none of the hooks launch",
        ),
        ("{here}:NeedsMore", CombinationError, "can't be made without arguments: TypeError: .*'size'"),
    ],
)
def test_what_is_no_extension_is_refused(site: Any, here: str, extension: str, error: Any, said: str) -> None:
    site.write("exits", "raise SystemExit(3)")
    with pytest.raises(error, match=said):
        load_extension(NONE, extension.format(here=here))
