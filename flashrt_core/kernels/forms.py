"""Which kernel an op takes where several were built for its shape: data of a device, one table.

An op chooses its kernel as ever; a :class:`Forms` then says what stands in its place. The default
has nothing in anyone's place. Forms give the same sums, not always the same bits, so a device with
others than the default says so in the identity of its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .skinny import SkinnyPlan


@dataclass(frozen=True)
class Forms:
    """One choice of kernels.

    Attributes:
        name: of the choice; empty for the default.
        plans: the kernel that an op has chosen -> those in its place, of which the one that keeps
            most multiprocessors busy at once is taken, if any takes the shape.
        kernels: the same for kernels without a plan: another entry of the same parameters.
    """

    name: str = ""
    plans: Mapping[str, tuple[SkinnyPlan, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


_DEFAULT = Forms()
_CHOICES = (
    _DEFAULT,
)
#: By name.
FORMS: Mapping[str, Forms] = MappingProxyType({forms.name: forms for forms in _CHOICES})


def find_forms(name: str) -> Forms:
    """A choice by name.

    Raises:
        KeyError: there is none of this name.
    """
    return FORMS[name]
