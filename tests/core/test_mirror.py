"""Each module of the core has a test file of its own, at the same place below tests/core.

Modules without one are listed in modules_without_test_file.txt, which only gets shorter. What `stratagem.sdk`
hands on is compared with docs/sdk.md instead.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
CORE = TESTS.parents[1] / "core/src/stratagem"
LIST = TESTS / "modules_without_test_file.txt"


def without_tests() -> set[str]:
    modules = [path.relative_to(CORE) for path in CORE.rglob("*.py") if path.name != "__init__.py"]
    return {
        module.as_posix()
        for module in modules
        if module.parts[0] != "sdk" and not (TESTS / module.parent / f"test_{module.name}").exists()
    }


def test_a_new_module_has_a_test_file() -> None:
    new = sorted(without_tests() - set(LIST.read_text().split()))
    assert not new, f"write tests/core/FOLDER/test_NAME.py for {new}"


def test_the_list_only_gets_shorter() -> None:
    done = sorted(set(LIST.read_text().split()) - without_tests())
    assert not done, f"these have tests now, or are gone: take them out of {LIST.name}: {done}"


def test_the_list_is_sorted() -> None:
    lines = LIST.read_text().split()
    assert lines == sorted(set(lines))
