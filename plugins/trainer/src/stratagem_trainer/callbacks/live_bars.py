"""Progress bars on a terminal: one for the current epoch or evaluation, one for an evaluation in an epoch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress_bar import ProgressBar as RichBar
from rich.table import Table
from rich.text import Text

from stratagem_trainer.callbacks.progress_text import duration_text

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Bar:
    """The values that one bar shows."""

    title: str
    done: int
    total: int | None
    """None if unknown."""
    rate: float | None
    """Batches per second."""
    samples: int | None = None
    """Number of samples in one batch, over all ranks; None if unknown."""
    metrics: str = ""


class Rate:
    """How fast a count has been growing, measured over the last few looks."""

    def __init__(self, looks: int = 9) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=looks)

    def restart(self, now: float, count: int) -> None:
        """Discard earlier looks, after a pause that shouldn't count."""
        self._looks.clear()
        self._looks.append((now, count))

    def look(self, now: float, count: int) -> float | None:
        """Record a count, and return its growth per second; None if it hasn't grown yet."""
        self._looks.append((now, count))
        then, before = self._looks[0]
        return (count - before) / (now - then) if now > then and count > before else None


class LiveBars:
    """Draws bars on a terminal when it is called, without a thread.

    What the program prints meanwhile appears above the bars. Call `close` at the end of the run, after errors, too.
    """

    def __init__(self, console: Console) -> None:
        self._bars: dict[str, Bar] = {}
        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            get_renderable=self._render,
            vertical_overflow="crop",
            # A notebook's cell shows what the program prints in a separate place.
            redirect_stdout=not console.is_jupyter,
            redirect_stderr=not console.is_jupyter,
        )
        self._live.start()
        if not console.is_jupyter:
            # Rich hides the cursor. A killed process couldn't show it again.
            console.show_cursor(True)

    def draw(self, place: str, bar: Bar) -> None:
        """Draw `bar` in its place, below the earlier ones, and redraw all bars."""
        self._bars[place] = bar
        self._live.refresh()

    def drop(self, place: str) -> None:
        """Remove a bar. The screen changes when a bar is drawn next."""
        self._bars.pop(place, None)

    def print(self, line: str) -> None:
        """Print a line above the bars that stays."""
        if self._console.is_jupyter:
            print(line, flush=True)
        else:
            self._console.print(Text(line), soft_wrap=True)

    def close(self, stays: bool = False) -> None:
        """Stop drawing. With `stays`, the bars remain on the screen."""
        self._live.transient = not stays
        self._live.stop()

    def _render(self) -> Table:
        # On a narrow terminal, the numbers are more useful than a wide bar.
        width = min(24, max(4, self._console.width // 6))
        table = Table.grid(padding=(0, 1), expand=True)
        for _ in range(4):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for bar in self._bars.values():
            table.add_row(
                Text(bar.title),
                RichBar(bar.total, bar.done, width=width, pulse=bar.total is None),
                Text(str(bar.done) if bar.total is None else f"{bar.done}/{bar.total}", style="green"),
                Text(_rate_text(bar), style="cyan"),
                Text(bar.metrics),
            )
        return table


def _rate_text(bar: Bar) -> str:
    """Return text such as "12.3 it/s  394 samples/s  ETA 0:07"."""
    if bar.rate is None:
        return ""
    parts = [f"{_number(bar.rate)} it/s"]
    if bar.samples is not None:
        parts.append(f"{_number(bar.rate * bar.samples)} samples/s")
    if bar.total is not None:
        parts.append(f"ETA {duration_text(max(0.0, bar.total - bar.done) / bar.rate)}")
    return "  ".join(parts)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
