"""The built site: what its search finds first, and how its pages look on a desk and on a phone."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FIRST = {
    "8 GPUs": "guides/how-do-i.html#train-on-8-gpus",
    "resume": "guides/how-do-i.html#resume-a-run",
    "mixed precision": "guides/how-do-i.html#use-mixed-precision",
    "out of memory": "guides/out-of-memory.html",
    "Slurm": "places/slurm.html",
    "own loop": "guides/how-do-i.html#keep-my-own-loop",
    "write a strategy": "guides/how-do-i.html#write-a-strategy",
    "which strategy for 7B": "guides/how-do-i.html#choose-a-strategy-also-for-7b",
    "wandb": "guides/how-do-i.html#log-to-wandb",
    "why is it slow": "guides/how-do-i.html#find-out-why-it-is-slow",
}
"""What people ask → the page that the site's search shows first."""
RESULTS = ("conformance.html", "parity.html", "portability.html", "sdk.html")
PAGES = (
    "index.html", "tutorial.html", "guides/how-do-i.html", "guides/out-of-memory.html", "guides/report.html",
    "guides/trainer.html", "strategies/index.html", "places/slurm.html", "reference/cli.html", "plugins.html",
    "conformance.html", "parity.html", "portability.html",
)  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="the site's search is JavaScript: install Node.js")
def test_the_search_shows_the_right_page_first(site: Path) -> None:
    # The site's own worker, with the site's own index: ranks and boosts are those that a reader gets.
    script = Path(__file__).with_name("search.js")
    done = subprocess.run(
        ["node", script, site, *FIRST, "a rank fails"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    hits = json.loads(done.stdout)
    assert {question: hits[question][0] for question in FIRST} == FIRST
    assert not [hit for found in hits.values() for hit in found[:3] if hit.startswith(RESULTS)]


def test_each_class_of_the_reference_has_a_page_in_the_navigation(site: Path) -> None:
    lists = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    found = re.findall(r"^::: (\S+)$", lists, re.MULTILINE)
    listed = [path for path in found if path.rpartition(".")[2][0].isupper()]
    pages = {page.stem: page for page in (site / "reference").glob("*/*.html")}
    assert len(listed) > 60
    assert sorted(path for path in listed if path.rpartition(".")[2] not in pages) == []
    trainer = pages["Trainer"].read_text()
    assert '<h1 id="stratagem_trainer.trainer.Trainer"' in trainer
    assert 'id="stratagem_trainer.trainer.Trainer.fit"' in trainer
    assert 'href="../protocols/Prepared.html"' in trainer  # in the navigation
    assert "ModelCheckpoint.html" in (site / "reference" / "python.html").read_text()


@pytest.mark.parametrize("width", [1300, 390])
def test_no_page_is_wider_than_its_window(browser: Any, site: Path, tmp_path: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    wide = {}
    for name in PAGES:
        page.goto(f"file://{site / name}")
        page.screenshot(path=str(tmp_path / f"{name.replace('/', '-')}-{width}.png"))
        wide[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.close()
    assert {name: more for name, more in wide.items() if more > 0} == {}
    assert all((tmp_path / f"{name.replace('/', '-')}-{width}.png").stat().st_size > 10_000 for name in PAGES)


CUT = """() => [...document.querySelectorAll('.md-typeset__table > table')]
  .filter(table => !table.querySelector('th:nth-child(5)'))
  .filter(table => table.scrollWidth > table.closest('.md-typeset__scrollwrap').clientWidth + 1)
  .map(table => table.innerText.slice(0, 40))"""
"""Tables of up to four columns that a reader must scroll."""


def test_tables_fit_a_phone(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    cut, tables = {}, 0
    for name in (*PAGES, "places/kubernetes.html", "places/ray.html", "guides/logging.html"):
        page.goto(f"file://{site / name}")
        page.wait_for_selector(".md-typeset__table, main:not(:has(table:not([class])))", state="attached")
        tables += page.locator(".md-typeset__table > table").count()
        cut[name] = page.evaluate(CUT)
    page.close()
    assert tables > 20
    assert {name: found for name, found in cut.items() if found} == {}
