"""A run as a table: one line a decision, for a spreadsheet or a notebook."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from .records import PARTS, ChunkRecord, RunRecord
from .report import jump, unique

COLUMNS = (
    "session",
    "sequence",
    "stamp_ns",
    *(f"{part}_ms" for part in PARTS),
    "total_ms",
    "oldest_input_age_ms",
    "newest_input_age_ms",
    "interval_ms",
)


def write_decisions(path: Path, run: RunRecord) -> None:
    """Write ``path`` (CSV, RFC 4180, UTF-8).

    One column ``jump.<action>`` an action follows :data:`COLUMNS`; a cell is empty where it has no
    meaning, as in the first decision, or where the message that holds it was lost.
    """
    chunks = {(c.session, c.sequence): c for c in unique(run.chunks)}
    names = next(iter(chunks.values())).names if chunks else ()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *(f"jump.{name}" for name in names)])
        writer.writerows(_rows(run, chunks, len(names)))


def _rows(
    run: RunRecord, chunks: dict[tuple[str, int], ChunkRecord], actions: int
) -> Iterator[list[object]]:
    timings = {(t.session, t.sequence): t for t in unique(run.timings)}
    for key in sorted(chunks.keys() | timings.keys()):
        chunk, timing = chunks.get(key), timings.get(key)
        before = chunks.get((key[0], key[1] - 1))
        stamp_ns = chunk.stamp_ns if chunk else timing.stamp_ns if timing else ""
        parts = [timing.parts_ms[part] for part in PARTS] if timing else [""] * len(PARTS)
        oldest = timing.age_ms if timing else chunk.age_ms if chunk else ""
        found = jump(before, chunk) if before and chunk else None
        interval = (chunk.received_ns - before.received_ns) / 1e6 if before and chunk else ""
        yield [
            *key,
            stamp_ns,
            *map(_cell, parts),
            _cell(timing.total_ms if timing else ""),
            _cell(oldest),
            _cell(chunk.newest_age_ms if chunk else ""),
            _cell(interval),
            *([""] * actions if found is None else [f"{each:.6g}" for each in found]),
        ]


def _cell(value: object) -> object:
    return f"{value:.4f}" if isinstance(value, float) else value
