"""Progress of long work: a live bar on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from flashrt_core.terminal import terminal_or_file


class Phase:
    """Handed out by :meth:`Reporter.phase`; call it with the fraction done and a note."""

    def __call__(self, fraction: float, note: str = "") -> None:
        """Show that ``fraction`` (0..1) is done."""


class _Bar(Phase):
    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=1.0, note="")

    def __call__(self, fraction: float, note: str = "") -> None:
        self._progress.update(self._task, completed=min(fraction, 1.0), note=note)


class _Lines(Phase):
    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._next = 0.25

    def __call__(self, fraction: float, note: str = "") -> None:
        if fraction >= self._next:
            self._next += 0.25
            line = f"  {self._title}: {100 * min(fraction, 1.0):.0f} %"
            self._console.print(line + (f", {note}" if note else ""), highlight=False)


class Reporter:
    """Says what is going on, on ``console``."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or terminal_or_file()

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    @contextmanager
    def phase(self, title: str) -> Iterator[Phase]:
        """A stretch of work called ``title``."""
        start = time.monotonic()
        if not self.console.is_terminal:
            self.say(f"{title} ...")
            yield _Lines(self.console, title)
            self.say(f"  {title}: done in {time.monotonic() - start:.1f} s")
            return
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
        )
        with Progress(*columns, console=self.console) as progress:
            bar = _Bar(progress, title)
            yield bar
            bar(1.0)
