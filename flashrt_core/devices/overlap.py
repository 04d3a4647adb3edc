"""Where kernels may start before the one in front has finished.

A boundary between two kernels has a class: the stage that it is in, and what stands in front of it,
one of our kernels or a library product. The bits are the same wherever overlap is on; a class is a
switch because it need not be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError

#: Where a plan overlaps by default: the whole action stage, which gets shorter by up to two fifths
#: (docs/benchmarks.md), and elsewhere behind our own kernels, where a video's blocks get shorter
#: and context stages hardly change, so that one rule does for all. Behind library products, which
#: fill the GPU, those would get longer.
DEFAULT = "action,kernel"
#: What may stand in front of a boundary.
FRONTS = ("kernel", "product")


@dataclass(frozen=True)
class Overlap:
    """The classes of boundaries that overlap.

    Attributes:
        classes: names of stages, None for any, and which of FRONTS.
    """

    classes: frozenset[tuple[str | None, str]] = frozenset((None, front) for front in FRONTS)

    @classmethod
    def parse(cls, text: str | bool) -> Overlap:
        """Reads ``on``, ``off``, or stages and fronts with "+" between them; several such with ","
        between them.

        ``action`` is every boundary of that stage, ``kernel`` every one behind our own kernels,
        ``context+action+kernel`` those of two stages behind our own kernels, ``action,kernel`` all
        of one stage and of the others those behind our own kernels. True is "on".

        Raises:
            OptionError: an empty text or part.
        """
        if text is True or text == "on":
            return cls()
        if text is False or text == "off":
            return cls(frozenset())
        classes: set[tuple[str | None, str]] = set()
        for group in str(text).split(","):
            parts = group.split("+")
            if not all(part.isidentifier() for part in parts) or {"on", "off"} & set(parts):
                raise OptionError(
                    "option 'overlap'",
                    expected=f"on, off, or stages and {' and '.join(FRONTS)} joined by + and ,",
                    got=repr(text),
                )
            fronts = [part for part in parts if part in FRONTS] or FRONTS
            stages = [part for part in parts if part not in FRONTS]
            for front in fronts:
                classes |= {(stage, front) for stage in stages} or {(None, front)}
        return cls(frozenset(classes))

    @property
    def stages(self) -> frozenset[str]:
        """Those that are named."""
        return frozenset(stage for stage, _ in self.classes if stage is not None)

    def at(self, stage: str, front: str) -> bool:
        """Whether a kernel of ``stage`` may overlap with the kernel or product in front of it."""
        return (stage, front) in self.classes or (None, front) in self.classes
