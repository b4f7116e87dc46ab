"""Each module of the core has a test file of its own, at the same place below tests/core.

What `stratagem.sdk` hands on is compared with docs/sdk.md instead.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
CORE = TESTS.parents[1] / "core/src/stratagem"


def test_every_module_has_a_test_file() -> None:
    modules = [path.relative_to(CORE) for path in CORE.rglob("*.py") if path.name != "__init__.py"]
    without = [
        module.as_posix()
        for module in modules
        if module.parts[0] != "sdk" and not (TESTS / module.parent / f"test_{module.name}").exists()
    ]
    assert not without, f"write tests/core/FOLDER/test_NAME.py for {sorted(without)}"
