"""What can be done for an observation before all of it is there."""

from __future__ import annotations

from .images import Frame
from .policies.base import Array, Prepared
from .session import Session


def prepare(session: Session, view: str, image: Array | Frame) -> Array | Frame | Prepared:
    """Make one image ready for an observation of ``session``, which may come or not.

    Nothing that the session retains gets older by it, and no window changes.

    Args:
        session: that will observe.
        view: name of the camera.
        image: as in an observation; it must not change until that is observed.

    Returns:
        What stands for the image in the observation, perhaps the image itself.

    Raises:
        InputError: what is wrong with the image.
        SessionError: the session was dropped or is exported.
    """
    session.engine.check_here(f"session {session.name!r}")
    prepared = session.processor.prepare(view, image)
    if isinstance(prepared, Prepared):
        device, buffers = session.engine.device, session.buffers
        for name, value in prepared.values.items():
            device.prepare(buffers[session.contract.input(name).buffer], value)
    return prepared
