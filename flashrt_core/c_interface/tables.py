"""A contract as the records of the C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..contract import Contract, InputSpec, OutputSpec, Update
from ..devices.transfer import Transfer, pieces
from ..errors import ContractError
from ..fingerprint import Fingerprint
from . import records


def check_exportable(contract: Contract) -> None:
    """ContractError where the C interface cannot hold a contract, or cannot check its inputs."""
    for what, found, most in (
        ("stages", len(contract.stages), records.MAX_STAGES),
        ("inputs", len(contract.inputs), records.MAX_INPUTS),
        ("outputs", len(contract.outputs), 64),
        ("dimensions", max(len(spec.shape) for spec in contract.buffers), records.MAX_RANK),
    ):
        if found > most:
            raise ContractError(
                f"export of policy {contract.policy!r}",
                expected=f"at most {most} {what}",
                got=found,
            )
    if any(spec.shorter for spec in contract.inputs):
        # Their description says what a kernel reads of them, and only the processor checks it.
        raise ContractError(
            f"export of policy {contract.policy!r}",
            expected="image inputs of fixed size",
            got="bytes of cameras, whose descriptions the C interface cannot check",
            remedy="load with camera_bytes=0",
        )


def array(kind: type[Any], items: Sequence[Any]) -> Any:
    """A ctypes array of ``items``."""
    return (kind * max(1, len(items)))(*items)


def buffer_records(contract: Contract, buffers: Mapping[str, Tensor]) -> list[records.Buffer]:
    """All buffers at their addresses."""
    return [
        records.Buffer(
            role=records.ROLES[spec.role],
            dtype=records.DTYPES[spec.dtype],
            name=spec.name.encode(),
            address=buffers[spec.name].data_ptr(),
            bytes=spec.nbytes,
            rank=len(spec.shape),
            shape=_sizes(spec.shape),
        )
        for spec in contract.buffers
    ]


def input_records(contract: Contract) -> list[records.Input]:
    """All inputs."""
    stages = [stage.name for stage in contract.stages]
    return [
        records.Input(
            update=records.UPDATES[spec.update],
            rate=records.RATES[spec.rate],
            transform=records.NONE if spec.transform is None else stages.index(spec.transform),
            shorter=spec.shorter,
            **_window(contract, spec),
        )
        for spec in contract.inputs
    ]


def range_records(contract: Contract) -> list[records.RangeRecord]:
    """The whole numbers that every input may hold, in one shape behind the other."""
    everything = range(-(1 << 63), 1 << 63)
    return [
        records.RangeRecord(lowest=allowed[0], highest=allowed[-1])
        for shape in contract.shapes
        for spec in contract.inputs
        for allowed in (contract.bound(shape, spec.buffer) or everything,)
    ]


def output_records(contract: Contract) -> list[records.Output]:
    """All outputs."""
    return [records.Output(**_window(contract, spec)) for spec in contract.outputs]


def stage_records(contract: Contract) -> list[records.Stage]:
    """All stages, with what they need and make as bits."""
    return [
        records.Stage(
            rate=records.RATES[spec.rate],
            transform=spec.transform,
            name=spec.name.encode(),
            requires_stages=mask(other.name in spec.requires for other in contract.stages),
            reads_inputs=mask(each.buffer in spec.reads for each in contract.inputs),
            writes_outputs=mask(each.buffer in spec.writes for each in contract.outputs),
        )
        for spec in contract.stages
    ]


def shape_records(contract: Contract) -> list[records.Shape]:
    """All captured shapes."""
    return [
        records.Shape(
            views=key.views, prompt_tokens=key.prompt_tokens, horizon=key.horizon, steps=key.steps
        )
        for key in contract.shapes
    ]


def region_records(contract: Contract) -> list[records.Region]:
    """The regions of all shapes, each shape's in slot order."""
    buffers = [spec.name for spec in contract.buffers]
    return [
        records.Region(
            shape=contract.shapes.index(key),
            buffer=buffers.index(region.buffer),
            rows=region.rows,
            name=region.name.encode(),
            offset=region.offset,
            row_bytes=region.row_bytes,
            pitch=region.pitch,
        )
        for key in contract.shapes
        for region in contract.regions[key]
    ]


def transfer_record(executable: int, planned: Transfer) -> records.TransferRecord:
    """Planned copies, and their graph where they are one."""
    found = pieces(planned.rows)
    return records.TransferRecord(
        executable=executable or None,
        piece=array(records.PieceRecord, [records.PieceRecord(*piece) for piece in found]),
        pieces=len(found),
    )


def program_mask(contract: Contract, names: Iterable[str]) -> int:
    """Stages of a program as bits."""
    chosen = set(names)
    return mask(stage.name in chosen for stage in contract.stages)


def identity_text(identity: Fingerprint) -> str:
    """A fingerprint's parts, a line each."""
    return "".join(f"{name}: {value}\n" for name, value in sorted(identity.parts.items()))


def staged_places(contract: Contract) -> dict[str, tuple[int, int]]:
    """Where the value of every staged input lies in a staged block, by name: index and offset."""
    places, end = {}, 0
    for index, spec in enumerate(contract.inputs):
        if spec.update is Update.STAGED:
            places[spec.name] = (index, end)
            end += contract.buffer(spec.buffer).nbytes
    return places


def staged_size(contract: Contract) -> int:
    """Bytes of a staged block."""
    return sum(
        contract.buffer(spec.buffer).nbytes
        for spec in contract.inputs
        if spec.update is Update.STAGED
    )


def mask(chosen: Iterable[bool]) -> int:
    """Bit i: the one at i is chosen."""
    return sum(1 << index for index, yes in enumerate(chosen) if yes)


def bits(value: int) -> Iterable[int]:
    """The indices of the bits that are set."""
    return (index for index in range(value.bit_length()) if value >> index & 1)


def _window(contract: Contract, spec: InputSpec | OutputSpec) -> dict[str, Any]:
    return {
        "buffer": [other.name for other in contract.buffers].index(spec.buffer),
        "dtype": records.DTYPES[spec.dtype],
        "name": spec.name.encode(),
        "unit": spec.unit.encode(),
        "bytes": contract.buffer(spec.buffer).nbytes,
        "rank": len(spec.shape),
        "shape": _sizes(spec.shape),
    }


def _sizes(shape: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * records.MAX_RANK)(*shape)
