"""What a precision plan makes of a policy's buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..contract import BufferSpec, DType, Role
from ..precision import LOW_BIT, STORED, Format, Precision, Site, run_of


def quantised(
    buffers: Iterable[BufferSpec], plan: Precision, sites: Mapping[str, Site]
) -> Iterator[BufferSpec]:
    """The same buffers, low-bit weights as their sites have them, with scales behind.

    A product of fp8 operands takes a bf16 bias, whatever it writes: library products know no other.
    """
    by_weight = {site.weight: (name, site) for name, site in sites.items()}
    fp8 = [sites[name].weight for name, form in plan.sites.items() if form is Format.FP8]
    biases = {weight.removesuffix("weight") + "bias" for weight in fp8}
    for spec in buffers:
        if spec.name in biases:
            spec = replace(spec, dtype=DType.BF16)
        name, site = by_weight.get(spec.name, ("", None))
        if site is None or plan.sites[name] not in LOW_BIT:
            yield spec
            continue
        form = plan.sites[name]
        *layers, width, columns = spec.shape
        shape = (*layers, width, site.stored(form, columns))
        yield replace(spec, dtype=STORED[form], shape=shape)
        count = site.scales(form, width)
        each = (columns // run_of(columns),) if form is Format.W4A16 else ()
        scale = (site.weight_scale, (*layers, count, *each), DType.F32, Role.STATIC)
        doc = "of each run of a row" if each else "of each row"
        yield BufferSpec(*scale, doc=doc if count == width else "of all rows")
        if plan.sites[name] is Format.FP8:
            yield BufferSpec(
                site.x_scale,
                tuple(layers) or (1,),
                DType.F32,
                Role.STATIC,
                doc="of its input, calibrated",
            )


def scratch(
    plan: Precision, sites: Mapping[str, Site], name: str, *shape: int, dtype: DType | None = None
) -> Iterator[BufferSpec]:
    """An activation's buffers: one for every format that products read it in; else its own."""
    readers = [(site, plan.sites[each]) for each, site in sites.items()]
    read = {site.source_of(form): form for site, form in readers if site.source == name}
    for each, form in (read or {name: plan.base}).items():
        stored = DType.F8E4M3 if form is Format.FP8 else dtype or plan.wide
        yield BufferSpec(each, shape, stored, Role.SCRATCH)
