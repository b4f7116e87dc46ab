"""A real headless Chromium, driven by playwright; a test that uses it is skipped by name where either is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright isn't installed: pip install playwright"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        if chromium is None and not os.path.exists(own):
            pytest.skip("there is no Chromium: apt-get install chromium, or playwright install chromium")
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
