"""How much there may be of what a host counts, wherever it says so: an option, a parameter, a file.

One number each, so that nothing is taken at one place that another one refuses later.
"""

from __future__ import annotations

#: Capsules that may be held in one kind of memory. Every slot has planned copies of its own.
MOST_SLOTS = 1024
#: Sessions of an engine.
MOST_SESSIONS = 64
#: Stamps of an observation in nanoseconds, and what a capsule and its file have room for.
STAMPS = range(-(1 << 63), 1 << 63)
#: Decisions of a session and epochs of its inputs: of a million a second, those of nine years.
COUNTS = range(1 << 48)
