"""The page in a real headless Chromium: light and dark, wide and narrow, nothing over anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import row, write_rank
from stratagem_report.page.document import document
from stratagem_report.reading import read_run
from stratagem_report.summary import summarize

PROBLEMS = """
() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.textContent.trim() || node.parentElement.closest('svg')) continue;
    const scrolled = node.parentElement.closest('.wide');
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      const text = node.textContent.trim();
      if (!scrolled && (box.left < -0.5 || box.right > innerWidth + 0.5)) found.push('cut off: ' + text);
      const size = parseFloat(getComputedStyle(node.parentElement).fontSize);
      if (size < 11.5) found.push('small: ' + text);
      boxes.push([box, text, scrolled]);
    }
  }
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, one, first] = boxes[i], [b, other, second] = boxes[j];
    if (first !== second) continue;
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 5) found.push('overlap: ' + one + ' | ' + other);
  }
  return found;
}
"""
"""What a person would stumble over: text over text, cut off or too small."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one run that has everything, of several, and of one with many ranks on CPUs."""
    folder = tmp_path_factory.mktemp("pages")
    names = [folder / "20260131-120000-TransformerLanguageModel", folder / "20260131-130000-Other"]
    for index, name in enumerate(names):
        _write_run(name, 2 + 2 * index)
    many = folder / "many"
    _write_run(many, 40)
    made = {"one": names[:1], "two": names, "many": [many]}
    for title, runs in made.items():
        page = document([summarize(read_run(str(run))) for run in runs])
        (folder / f"{title}.html").write_text(page, encoding="utf-8")
    return {title: folder / f"{title}.html" for title in made}


def _write_run(path: Path, ranks: int) -> None:
    plan = [
        ["strategy", "ddp", "stratagem-ddp 0.1.0"],
        ["accelerator", "cpu", "stratagem-cpu 0.1.0 · 2 usable cores"],
    ]
    slow = {"event": "slow", "step": 16, "rank": 1, "at_step": 16, "ratio": 1.4, "phase": "forward"}
    for attempt in range(2):
        for rank in range(ranks):
            own = 1.4 if rank == 1 else 1.0
            step = row(
                data=12, forward=120 * own, backward=200 * own, communication=90 / own, optimizer=14, other=3
            )
            long = row(data=12, forward=120, backward=200, optimizer=14, validation=4000, checkpoint=1500)
            rows = [
                row(0, 0, start=9000, load=800 * attempt),
                *[step] * 60,
                long,
                *[step] * 20,
                row(0, 0, end=700),
            ]
            on_device = [row(forward=140 * own, backward=260, communication=30, optimizer=9, other=2)] * 5
            write_rank(
                path, rows, rank=rank, attempt=attempt, world_size=ranks, plan=plan, torch="2.13.0+cpu",
                device="cuda:0" if ranks < 40 else "cpu", device_steps=on_device if ranks < 40 else [],
                end="done" if attempt else None, events=[slow] if rank == 0 else [],
                began=1e6 + 100 * attempt, memory={"allocated_bytes": (40 + rank) * 2**28},
            )  # fmt: skip
    names = ["train_loss", "val_loss", "val_accuracy_of_the_whole_validation", "lr"]
    lines = [f"{n},0,{2.5 / n},{3 / n},{1 - 1 / n},{1e-5 * n}" for n in range(1, 900)]
    (path / "metrics.csv").write_text("\n".join([f"step,epoch,{','.join(names)}", *lines, ""]))


def _opened(browser: Any, page: Path, width: int, scheme: str) -> Any:
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.fetched = []
    opened.failed = []
    opened.on("request", lambda request: opened.fetched.append(request.url))
    opened.on("pageerror", lambda error: opened.failed.append(str(error)))
    opened.on("console", lambda said: opened.failed.append(said.text) if said.type == "error" else None)
    opened.goto(f"file://{page}")
    return opened


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("title", ["one", "two", "many"])
def test_nothing_is_cut_off_small_or_over_anything_else(
    browser: Any, pages: dict[str, Path], title: str, width: int
) -> None:
    page = _opened(browser, pages[title], width, "light")
    assert page.evaluate(PROBLEMS) == []
    assert [url for url in page.fetched if not url.startswith("file://")] == []
    assert len(page.fetched) == 1
    page.close()


def test_light_and_dark_differ_and_text_is_readable_in_both(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page = _opened(browser, pages["one"], 1280, scheme)
        page.screenshot(path=str(tmp_path / f"{scheme}.png"), full_page=True)
        assert (tmp_path / f"{scheme}.png").stat().st_size > 50_000
        colors = page.evaluate(
            "() => ['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
        )
        text, ground = (sum(map(int, color[4:-1].split(","))) / 3 for color in colors)
        assert abs(text - ground) > 150, colors
        seen[scheme] = ground
        page.close()
    assert seen["light"] > 200 > 60 > seen["dark"]


def test_the_summary_comes_first_and_lanes_have_colours(browser: Any, pages: dict[str, Path]) -> None:
    page = _opened(browser, pages["one"], 1280, "light")
    first = page.evaluate("() => document.querySelector('main').innerText.split('\\n').slice(0, 4).join(' ')")
    assert "162 steps on 2 ranks" in first
    assert "Slow ranks" in page.inner_text("main")
    lanes = page.locator(".timeline .lane")
    assert lanes.count() == 4
    colors = page.evaluate(
        "() => new Set([...document.querySelectorAll('.timeline i')].map(i => i.style.background)).size"
    )
    assert colors >= 7
    page.close()


def test_each_rank_has_a_bar_on_the_device_below_its_own(browser: Any, pages: dict[str, Path]) -> None:
    page = _opened(browser, pages["one"], 1280, "light")
    bars = page.evaluate(
        """() => [...document.querySelectorAll('.lanes')].filter(l => !l.closest('.timeline')).flatMap(lanes =>
          [...lanes.querySelectorAll('.lane')].map(lane => {
            const label = lane.previousElementSibling, parts = [...lane.querySelectorAll('i')];
            const drawn = parts.map(part => part.getBoundingClientRect().width).filter(width => width > 0);
            return [label.innerText, drawn.length, drawn.reduce((a, b) => a + b, 0), lane.clientWidth];
          }))"""
    )
    assert [label for label, *_ in bars] == ["rank 0", "on the device", "rank 1", "on the device"]
    assert [count for _, count, *_ in bars] == [6, 5, 6, 5]
    widths = [drawn / lane for _, _, drawn, lane in bars]
    assert widths[3] / widths[1] == pytest.approx(497 / 441, rel=0.01)
    heads = page.locator("th[colspan='2']")
    assert heads.count() == 6
    page.close()


PAINTED = """
key => {
  const boxes = [...document.querySelectorAll('[data-chart]')];
  const canvas = boxes.find(box => box.dataset.chart === key).querySelector('canvas');
  const color = getComputedStyle(document.documentElement).getPropertyValue('--run0').trim();
  const [r, g, b] = [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const off = Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b);
    if (off < 12 && data[at + 3] > 200) count++;
  }
  return count;
}
"""
"""How many pixels of a chart have the first run's colour."""


def _report(folder: Path, metrics: str, name: str = "run", **rank: Any) -> Path:
    write_rank(folder / name, [row(forward=5)] * 20, **rank)
    (folder / name / "metrics.csv").write_text(metrics)
    path = folder / "page.html"
    path.write_text(document([summarize(read_run(str(folder / name)))]), encoding="utf-8")
    return path


def test_one_point_and_very_large_values_are_drawn(browser: Any, tmp_path: Path) -> None:
    huge = "\n".join(
        f"{step},0,,{sign}9e299,{step / 2},1e-290" for step, sign in ((2, ""), (3, "-"), (4, ""))
    )
    path = _report(tmp_path, f"step,epoch,once,huge,usual,tiny\n1,0,0.5,,,\n{huge}\n5,0,,1e308,nan,inf\n")
    page = _opened(browser, path, 1280, "light")
    painted = {name: page.evaluate(PAINTED, f"metric {name}") for name in ("once", "huge", "usual", "tiny")}
    assert 8 < painted["once"] < 200, painted
    assert all(painted[name] > 200 for name in ("huge", "usual", "tiny")), painted
    assert page.failed == []
    page.close()


def test_hover_shows_values_and_dragging_zooms(browser: Any, pages: dict[str, Path]) -> None:
    page = _opened(browser, pages["two"], 1280, "light")
    plot = page.locator("[data-chart='metric train_loss']")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    said = plot.locator(".u-legend").inner_text()
    assert "step" in said
    assert all(name in said for name in ("TransformerLanguageModel", "130000-Other"))
    at = int(plot.locator(".u-series .u-value").first.inner_text())
    assert 400 < at < 500
    assert plot.locator(".u-series .u-value").nth(1).inner_text() == f"{2.5 / at:.4g}"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 3 / 4, box["y"] + 30, steps=5)
    page.mouse.up()
    scale = "() => (scale => [scale.min, scale.max])(stratagemReport.drawn.get('metric train_loss').plot.scales.x)"
    low, high = page.evaluate(scale)
    assert 400 < low < 500
    assert 600 < high < 750
    page.mouse.dblclick(box["x"] + 30, box["y"] + 30)
    assert page.evaluate(scale) == [1, 899]
    page.close()


def test_nothing_of_a_run_is_run(browser: Any, tmp_path: Path) -> None:
    bad = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
    name = "</script><script>document.title=1<⁄script><b>".replace("/", "⁄")
    plan = [["strategy", bad, bad], [bad, "</main>", "'\""]]
    path = _report(
        tmp_path, f"step,epoch,{bad},</script><script>document.title='run'</script>\n1,0,1,2\n2,0,2,3\n", name,
        plan=plan, host=bad, device=bad, torch=bad,
        events=[{"event": "untimed", "step": 1, "why": bad}],
    )  # fmt: skip
    (tmp_path / name / "config.yaml").write_text(f"model:\n  {bad!r}: {bad!r}\n".replace("'", '"'))
    path.write_text(document([summarize(read_run(str(tmp_path / name)))]), encoding="utf-8")
    page = _opened(browser, path, 1280, "light")
    page.wait_for_timeout(100)
    assert page.title() == f"{name} · Stratagem report"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("main b", has_text="document").count() == 0
    assert page.failed == []
    assert len(page.fetched) == 1
    page.close()


def test_the_check_sees_what_it_is_for(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<p style='margin:0'>one</p><p style='margin:-18px 0 0'>other</p><p style='font-size:8px'>tiny</p>"
        "<p style='margin-left:390px;white-space:nowrap'>far too long for it</p>"
    )
    page = _opened(browser, tmp_path / "bad.html", 400, "light")
    found = " ".join(page.evaluate(PROBLEMS))
    for problem in ("wider than the window", "overlap: one | other", "small: tiny", "cut off: far"):
        assert problem in found
    page.close()
