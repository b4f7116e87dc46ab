"""Pages that the code sends people to exist, and the site builds without a warning."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    *ROOT.glob("core/src/**/*.py"),
    *ROOT.glob("plugins/*/src/**/*.py"),
    *ROOT.glob("examples/**/*.py"),
]


def test_every_page_that_the_code_names_exists():
    named = {
        (page, path.name) for path in SOURCES for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) >= 5
    assert sorted((page, path) for page, path in named if not (ROOT / page).exists()) == []


def links() -> list[tuple[Path, str]]:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("plugins/*/README.md"), *ROOT.glob("core/*.md")]
    pages += [*ROOT.glob("examples/**/*.md"), *ROOT.glob("docs/**/*.md")]
    return [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text())
        if "://" not in target
    ]


def test_every_link_between_pages_leads_somewhere():
    assert len(links()) >= 20
    broken = [(page.name, target) for page, target in links() if not (page.parent / target).exists()]
    assert broken == []


def test_the_site_builds_without_a_warning(site):
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert {"index.html", "hooks.html", "reference/protocols.html"} <= pages
    # Nothing is fetched when a page is read: fonts and scripts come from the site itself.
    fetched = re.compile(r"""(?:src|href)=["']?https?://[^"'\s>]+\.(?:css|js|woff2?)""")
    assert [page for page in pages if fetched.search((site / page).read_text())] == []
