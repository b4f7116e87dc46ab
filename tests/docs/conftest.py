import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import browser  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def load_generator() -> Callable[[str], Any]:
    """Return what imports a script of docs/gen by its name."""

    def load(name: str) -> Any:
        folder = ROOT / "docs/gen"
        spec = importlib.util.spec_from_file_location(f"{name}_page", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Only while it is imported: docs/gen has names of libraries, such as lightning.
        sys.path.insert(0, str(folder))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(folder))
        return module

    return load


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site") / "site"
    mkdocs = Path(sys.executable).with_name("mkdocs")
    where = ["--config-file", ROOT / "docs/gen/mkdocs.yml", "--site-dir", folder]
    done = subprocess.run(
        [mkdocs, "build", "--strict", *where],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder
