"""Draw docs/guides/report.png: the report of a real run, in Chromium. `make report-picture` runs this."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/guides/report.png"
RUN = (
    "fit examples/digits.py:Digits --strategy ddp --accelerator cpu --devices 2 --max-epochs 10 --use record"
)
SIZE = {"width": 1280, "height": 1500}


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "digits"
        stratagem(*RUN.split(), "--set", "trainer.log_every_n_steps=5", "--run-dir", str(run))
        stratagem("report", str(run))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto((run / "report.html").as_uri())
            page.screenshot(path=PICTURE)
            browser.close()


def stratagem(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "stratagem", *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
