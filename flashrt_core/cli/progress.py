"""How far a command is, on stderr, where somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from ..checkpoint import Progress as Told

Decided = Callable[[int], None]
_EVERY_S = 10.0


@contextmanager
def progress_bars(done_word: str, total: int | None = None) -> Iterator[tuple[Told, Decided]]:
    """Bars on stderr, where it is a terminal, for reading a checkpoint; a line a decision. Where it
    is none, such a line every ten seconds, and one at the end.
    """
    bytes_ = (TextColumn("{task.description:>10}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*bytes_, console=console, transient=True, disable=quiet) as bars:
        tasks: dict[str, Any] = {}

        def told(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        said, made = [time.monotonic()], [0]

        def say() -> None:
            of = f" of {total}" if total else ""
            console.print(f"decision {made[0]}{of} {done_word}", style="dim", soft_wrap=True)

        def decided(done: int) -> None:
            made[0] = done
            if not quiet:
                say()
            elif time.monotonic() - said[0] >= _EVERY_S:
                said[0] = time.monotonic()
                say()

        yield told, decided
    if quiet and made[0]:
        say()
