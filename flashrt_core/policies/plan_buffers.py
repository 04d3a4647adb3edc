"""How a policy declares its shapes and buffers, and what a precision plan makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from ..contract import BufferSpec, DType, Role, ShapeKey
from ..errors import ContractError
from ..precision import LOW_BIT, STORED, Format, Precision, Site, run_of


class Sizes(Protocol):
    """What of a policy's configuration decides about its shapes."""

    @property
    def prompt_buckets(self) -> tuple[int, ...]: ...

    @property
    def horizon(self) -> int: ...

    @property
    def steps(self) -> int: ...


def bucket_shapes(config: Sizes, views: int) -> tuple[ShapeKey, ...]:
    """One shape a prompt bucket, for that many cameras."""
    return tuple(
        ShapeKey(views, bucket, config.horizon, config.steps) for bucket in config.prompt_buckets
    )


def require_order(policy: str, views: tuple[str, ...], slots: tuple[str, ...]) -> None:
    """ContractError on no views, or such as are not in the order of the policy's slots."""
    if not views or [slot for slot in slots if slot in views] != list(views):
        raise ContractError(
            f"views of policy {policy!r}", expected=f"in the order of {slots}", got=views
        )


def static(name: str, *shape: int, dtype: DType = DType.F32, doc: str = "") -> BufferSpec:
    """Weights, or what is made of them."""
    return BufferSpec(name, shape, dtype, Role.STATIC, doc)


def affine(name: str, *shape: int) -> Iterator[BufferSpec]:
    """Gain and offset of a norm, float32."""
    for kind in ("weight", "bias"):
        yield static(f"{name}_{kind}", *shape)


def product(
    name: str, *layers: int, out: int, into: int, dtype: DType, stream: bool = False
) -> Iterator[BufferSpec]:
    """Weight and bias of a product; one that ends in a float32 stream has a bias of that format."""
    yield static(f"{name}_weight", *layers, out, into, dtype=dtype)
    yield static(f"{name}_bias", *layers, out, dtype=DType.F32 if stream else dtype)


def tower_layers(
    group: str, layers: int, width: int, ffn: int, dtype: DType
) -> Iterator[BufferSpec]:
    """Norms and products of pre-norm layers that end in a float32 stream."""
    dense = partial(product, dtype=dtype)
    for norm in ("norm1", "norm2"):
        yield from affine(f"{group}.{norm}", layers, width)
    yield from dense(f"{group}.qkv", layers, out=3 * width, into=width)
    yield from dense(f"{group}.out", layers, out=width, into=width, stream=True)
    yield from dense(f"{group}.fc1", layers, out=ffn, into=width)
    yield from dense(f"{group}.fc2", layers, out=width, into=ffn, stream=True)


class Gated(Protocol):
    """Sizes of layers with rotary attention and a gated feed-forward block, without biases."""

    @property
    def width(self) -> int: ...

    @property
    def q_width(self) -> int: ...

    @property
    def kv_width(self) -> int: ...

    @property
    def ffn(self) -> int: ...


def gated_layers(group: str, layers: int, sizes: Gated, dtype: DType) -> Iterator[BufferSpec]:
    """Their products."""
    weight, width = partial(static, dtype=dtype), sizes.width
    merged = sizes.q_width + 2 * sizes.kv_width
    yield weight(f"{group}.qkv_weight", layers, merged, width, doc="rows q|k|v")
    yield weight(f"{group}.out_weight", layers, width, sizes.q_width)
    doc = "gate and up rows alternate"
    yield weight(f"{group}.gate_up_weight", layers, 2 * sizes.ffn, width, doc=doc)
    yield weight(f"{group}.down_weight", layers, width, sizes.ffn)


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
