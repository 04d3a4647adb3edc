"""Composition root: options in, a ready session out. The one place that knows every room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .checkpoint import Progress
from .contract import Contract, ShapeKey
from .devices import Device, open_device
from .engine import Engine, Plan
from .errors import OptionError, WeightsError
from .files import local_path
from .fingerprint import Fingerprint, fingerprint
from .kernels.maths import in_float32
from .load_checks import (
    absent_views,
    check_options_of_some,
    check_overlap,
    check_reference,
    views_in_use,
)
from .load_options import LoadOptions, calibrate_command, checked, plans_of
from .policies import find_policy
from .policies.base import Deployment, Policy, Processor, ProcessorOptions, Qualifier
from .policies.sizes import sized
from .precision import Precision
from .scales import Calibration, find_calibration, key_of
from .session import Session
from .weights import TensorSource, checkpoint_path, open_weights

__all__ = [
    "MAIN",
    "Description",
    "LoadOptions",
    "calibrate_command",
    "calibration_of",
    "check_loadable",
    "check_reference",
    "configuration",
    "describe",
    "load",
    "make_plan",
    "plans_of",
    "precision_of",
    "processor_of",
    "qualifier",
    "start",
    "views_of",
]


@dataclass(frozen=True)
class Description:
    """A plan as it would be loaded, without allocating it.

    Attributes:
        contract: what goes in, what runs, what a capsule holds.
        deployment: what the checkpoint says.
        config: the policy's, a dataclass.
        transforms: identity of the host-side transforms; empty while something is missing.
        fingerprint: of the plan; None while something is missing.
        calibration: which one, for people; "none" where the plan needs or finds none.
        missing: what :func:`load` would refuse, when the host-side transforms cannot be made of the
            options; None when they can.
    """

    contract: Contract
    deployment: Deployment
    config: Any
    transforms: Mapping[str, str]
    fingerprint: Fingerprint | None
    calibration: str
    missing: OptionError | None


@dataclass(frozen=True)
class _Choice:
    policy: Policy
    deployment: Deployment
    config: Any
    views: tuple[str, ...]
    shapes: tuple[ShapeKey, ...]
    precision: Precision
    contract: Contract
    norm_stats: Path | None


MAIN = "main"
_DIMS = 7  # of a robot that nothing is said of
#: What reading a file of any content may raise.
_FOREIGN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def load(options: LoadOptions, progress: Progress | None = None) -> Session:
    """Build the engine and its ``main`` session.

    Args:
        options: what to run and where.
        progress: told how far a checkpoint file is hashed and packed.

    Allocates, packs weights and captures every stage; nothing of that happens later. Raises
    OptionError, WeightsError, DeviceError, CaptureError or ContractError in one line each; on an
    error everything is released.
    """
    options = checked(options)
    _choose(options)  # what is wrong with the options is said before the device is opened
    # The device before the weights: it is what a machine most often lacks, and no parameter can
    # supply it.
    device = open_device(options.device, threads=options.threads, overlap=options.overlap)
    try:
        return start(make_plan(options, device, progress), device, options)
    except BaseException:
        device.close()
        raise


def make_plan(options: LoadOptions, device: Device, progress: Progress | None = None) -> Plan:
    """What :func:`load` would run on ``device``; packs no weights yet. Errors as there."""
    options, choice = checked(options), _choose(options)
    policy, config = choice.policy, choice.config
    processor = _processor(options, choice)
    source = _source(options, choice, progress)
    identity = _identity(choice, device, source, processor)
    calibration = _calibration(options, choice, identity, processor)

    def pack(buffers: dict[str, Tensor]) -> None:
        if calibration is None:
            policy.pack(config, source, buffers)
            return
        policy.pack(config, source, buffers | calibration.importances(policy.sites, buffers))
        calibration.fill(policy.sites, buffers)

    return Plan(
        contract=choice.contract,
        fingerprint=identity if calibration is None else _calibrated(identity, calibration),
        processor=processor,
        body=lambda *which: policy.body(config, choice.contract, *which),
        pack=pack,
        calibration=_told(calibration),
    )


def start(plan: Plan, device: Device, options: LoadOptions) -> Session:
    """Allocate, pack and capture ``plan`` on ``device``; its main session."""
    options = checked(options)
    engine = Engine(
        plan,
        device,
        Session,
        max_sessions=options.max_sessions,
        capsule_slots=options.capsule_slots,
        host_slots=options.host_slots,
        working_sets=options.working_sets,
    )
    return engine.create_session(MAIN, seed=options.seed, prompt=options.prompt)


def describe(options: LoadOptions) -> Description:
    """What :func:`load` would run; allocates nothing.

    Options that only the host-side transforms refuse (a tokenizer that a trained network needs,
    say) are no error here but ``missing``: whoever looks at a checkpoint wants to learn of them.
    So is a calibration that the plan lacks.
    """
    options, choice = checked(options), _choose(options)
    device = open_device(options.device, threads=options.threads)
    try:
        source = _source(options, choice)
        transforms: Mapping[str, str] = {}
        identity, missing, calibration = None, None, None
        try:
            processor = _processor(options, choice)
        except OptionError as error:
            missing = error
        else:
            transforms = processor.identity
            identity = _identity(choice, device, source, processor)
            try:
                calibration = _calibration(options, choice, identity, processor)
            except OptionError as error:
                identity, missing = None, error
            else:
                identity = identity if calibration is None else _calibrated(identity, calibration)
        return Description(
            choice.contract,
            choice.deployment,
            choice.config,
            transforms,
            identity,
            _told(calibration),
            missing,
        )
    finally:
        device.close()


def check_loadable(options: LoadOptions) -> Contract:
    """The contract of a plan, once it is known that :func:`load` finds all that it needs.

    Packs and allocates nothing; weights are read only where a calibration has to fit them. Errors
    as :func:`load`.
    """
    options = checked(options)
    choice = _choose(options)
    device = open_device(options.device, threads=options.threads)
    try:
        source = _source(options, choice)
        processor = _processor(options, choice)
        if choice.precision.calibrated or options.calibration is not None:
            identity = _identity(choice, device, source, processor)
            _calibration(options, choice, identity, processor)
        return choice.contract
    finally:
        device.close()


def configuration(options: LoadOptions) -> tuple[Deployment, Any]:
    """What the checkpoint says, and the policy's configuration that follows with ``options``.

    Opens neither weights nor device. Raises OptionError or WeightsError.
    """
    choice = _choose(options)
    return choice.deployment, choice.config


def precision_of(options: LoadOptions) -> Precision:
    """The precision plan that the options name; OptionError when there is no such plan."""
    return find_policy(checked(options).policy).precision(options.precision)


def calibration_of(options: LoadOptions, session: Session) -> Calibration | None:
    """The calibration of a plan that was loaded with ``options``; None where it needs none."""
    return _calibration(options, _choose(options), session.fingerprint, session.processor)


def qualifier(options: LoadOptions, place: str = "cpu") -> Qualifier:
    """The policy's reference on the weights that :func:`load` would run.

    Args:
        options: as for :func:`load`.
        place: where torch computes it, "cpu" or "cuda".

    Raises OptionError or WeightsError, and DeviceError when torch has no such place.
    """
    check_reference(place)
    in_float32(place)
    choice = _choose(options)
    source = _source(options, choice)
    return choice.policy.qualifier(choice.config, source, place)


def processor_of(options: LoadOptions) -> Processor:
    """The host-side transforms that :func:`load` would use; errors as there."""
    options = checked(options)
    return _processor(options, _choose(options))


def _source(
    options: LoadOptions, choice: _Choice, progress: Progress | None = None
) -> TensorSource:
    tensors = choice.policy.tensors(choice.config)
    return open_weights(options.checkpoint, tensors, progress, choice.deployment.parts)


def _processor(options: LoadOptions, choice: _Choice) -> Processor:
    deployment = choice.deployment
    trained = {"state_dim": deployment.state_dim, "action_dim": deployment.action_dim}
    dims = {
        name: next(dim for dim in (getattr(options, name), trained[name], _DIMS) if dim is not None)
        for name in trained
    }
    return choice.policy.processor(
        choice.config,
        ProcessorOptions(
            choice.views,
            **dims,
            norm_stats=choice.norm_stats,
            tokenizer=_path("tokenizer", options.tokenizer),
            deployment=deployment,
            delta_actions=options.delta_actions,
            absent_views=options.absent_views,
        ),
    )


def _calibration(
    options: LoadOptions, choice: _Choice, identity: Fingerprint, processor: Processor
) -> Calibration | None:
    if not choice.precision.observed:
        return None
    config = choice.policy.of_activations(choice.config)
    key = key_of(
        identity,
        choice.precision,
        shapes=choice.shapes,
        config=config,
        encoding=processor.encoding,
    )
    return find_calibration(options.calibration, key, choice.precision, calibrate_command(options))


def _told(calibration: Calibration | None) -> str:
    return "none" if calibration is None else str(calibration)


def _calibrated(identity: Fingerprint, calibration: Calibration) -> Fingerprint:
    return Fingerprint({**identity.parts, "calibration": calibration.digest})


def _identity(
    choice: _Choice,
    device: Device,
    source: TensorSource,
    processor: Processor,
) -> Fingerprint:
    return fingerprint(
        choice.contract,
        config=choice.config,
        precision=str(choice.precision),
        weights=source.digest,
        arch=device.arch,
        library=device.library,
        transforms=processor.identity,
        execution=device.execution,
    )


def _choose(options: LoadOptions) -> _Choice:
    options = checked(options)
    policy = find_policy(options.policy)
    views = views_in_use(options, policy)
    norm_stats = _path("norm_stats", options.norm_stats)
    deployment = _deployment(policy, options.checkpoint, norm_stats)
    given = {
        name: value
        for name in ("horizon", "steps", "prompt_buckets")
        if (value := getattr(options, name)) is not None
    }
    if options.numerics:
        given["numerics"] = options.numerics
    if options.camera_bytes:
        given["camera_bytes"] = options.camera_bytes
    if options.real_time_chunking:
        if not policy.continues_chunks:
            raise OptionError(
                "option 'real_time_chunking'",
                expected=f"false: policy {policy.name!r} cannot continue a chunk",
                got=True,
            )
        given["real_time_chunking"] = True
    check_options_of_some(policy, {**given, **options.extra})
    overrides = {**deployment.overrides, **given, **options.extra}
    config = sized(policy, options.preset, overrides, deployment, options.checkpoint)
    fewest = len(views) - absent_views(options, policy, len(views))
    shapes = tuple(
        shape for n in range(len(views), fewest - 1, -1) for shape in policy.shapes(config, n)
    )
    precision = policy.precision(options.precision)
    contract = policy.contract(config, shapes, views, precision)
    check_overlap(options.overlap, contract)
    return _Choice(policy, deployment, config, views, shapes, precision, contract, norm_stats)


def views_of(options: LoadOptions) -> tuple[str, ...]:
    """The views that the options come to, in slot order; OptionError where they are none."""
    return views_in_use(options, find_policy(checked(options).policy))


def _path(name: str, value: str | Path | None) -> Path | None:
    return None if value is None else local_path(f"option {name!r}", value, OptionError)


def _deployment(policy: Policy, uri: str | Path, norm_stats: Path | None) -> Deployment:
    path = checkpoint_path(uri)
    try:
        return policy.deployment(path, norm_stats)
    except _FOREIGN as error:
        # Files that others wrote: what a policy did not foresee in them is no defect of its user's
        # program, and must be one line as well.
        raise WeightsError(
            f"checkpoint {str(path)!r}",
            expected="readable JSON and statistics beside the weights",
            got=f"{type(error).__name__}: {error}",
            remedy="copy the folder again, with its statistics in F32",
        ) from error
