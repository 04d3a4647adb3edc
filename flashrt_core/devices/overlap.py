"""Where kernels may start before the one in front has finished.

A boundary between two kernels has a class: the stage that it is in, and what stands in front of it,
one of our kernels or a library product. The bits are the same wherever overlap is on; a class is a
switch because it need not be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError

#: Where a plan overlaps by default. On an H200 that shortens the action stage by up to two fifths;
#: the context stage, whose products fill the GPU, gets 1 to 2 % slower (docs/benchmarks.md).
DEFAULT = "action"
#: What may stand in front of a boundary.
FRONTS = ("kernel", "product")


@dataclass(frozen=True)
class Overlap:
    """The classes of boundaries that overlap.

    Attributes:
        stages: names of stages; None means all.
        fronts: some of FRONTS.
    """

    stages: frozenset[str] | None = None
    fronts: frozenset[str] = frozenset(FRONTS)

    @classmethod
    def parse(cls, text: str | bool) -> Overlap:
        """Reads ``on``, ``off``, or stages and fronts with "+" between them.

        ``action`` is every boundary of that stage, ``kernel`` every one behind our own kernels,
        ``context+action+kernel`` those of two stages behind our own kernels. True is "on".

        Raises:
            OptionError: an empty text or part.
        """
        if text is True or text == "on":
            return cls()
        if text is False or text == "off":
            return cls(fronts=frozenset())
        parts = str(text).split("+")
        if not all(part.isidentifier() for part in parts) or {"on", "off"} & set(parts):
            raise OptionError(
                "option 'overlap'",
                expected=f"on, off, or stages and {' and '.join(FRONTS)} joined by +",
                got=repr(text),
            )
        stages = frozenset(parts) - set(FRONTS)
        return cls(stages or None, frozenset(FRONTS) & set(parts) or frozenset(FRONTS))

    def at(self, stage: str, front: str) -> bool:
        """Whether a kernel of ``stage`` may overlap with the kernel or product in front of it."""
        return front in self.fronts and (self.stages is None or stage in self.stages)
