"""Tables that fit the terminal: one, or where that is too narrow one for each group of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

_ANY_WIDTH = 10_000  # columns


class Grouped:
    """Rows with a name and a cell in each column. Without room names are folded, cells never.

    Args:
        name: heading of the names.
        groups: title of a group -> its columns. The titles are shown where each is a table.
        title: of the whole.
    """

    def __init__(self, name: str, groups: Mapping[str, Sequence[str]], title: str = "") -> None:
        self._name, self._groups, self._title = name, groups, title
        self._rows: list[tuple[str, list[str]]] = []

    def add_row(self, name: str, cells: Iterable[str]) -> None:
        """A row; missing cells at its end are empty."""
        self._rows.append((name, list(cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table where its lines fit, else one a group that has any content."""
        columns = [column for group in self._groups.values() for column in group]
        whole = self._table(self._title, columns)
        wanted = Measurement.get(console, options.update(max_width=_ANY_WIDTH), whole)
        if wanted.maximum <= options.max_width:
            yield whole
            return
        first = 0
        for title, group in self._groups.items():
            if any(any(cells[first : first + len(group)]) for _, cells in self._rows):
                yield self._table(title, group, first, narrow=True)
            first += len(group)

    def _table(
        self, title: str, columns: Sequence[str], first: int = 0, *, narrow: bool = False
    ) -> Table:
        table = Table(box=SIMPLE_HEAD, header_style="dim", title=title or None)
        last = first + len(columns)
        shown = [(name, cells[first:last]) for name, cells in self._rows if any(cells[first:last])]
        words = [len(word) for name, _ in shown for word in name.split()]
        table.add_column(self._name, min_width=max(words, default=0))
        for at, column in enumerate(columns):
            wide = max((len(cell) for _, cells in shown for cell in cells[at : at + 1]), default=0)
            folded = narrow and len(column) > wide
            heading = "\n".join(column.rsplit(" ", 1)) if folded else column
            table.add_column(heading, justify="right", no_wrap=True)
        for name, cells in shown:
            table.add_row(name, *cells)
        return table
