"""The policy node with decisions that are slow, fail or get lost as a test orders (disturbance.py).

A slow decision computes with torch, as a real one does: it holds a core, and not the interpreter.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from disturbance import orders  # a script: its folder is on the path

from flashrt_core.errors import NumericsError
from flashrt_core.session import Decision, Session
from flashrt_ros.execution.control import Control
from flashrt_ros.node import main

_decide, _offer = Session.decide, Control.offer


def _slow_decide(self: Session, *args: Any, **kwargs: Any) -> Decision:
    asked = orders()
    end, product = time.monotonic() + asked.get("busy_s", 0.0), torch.ones(192, 192)
    while time.monotonic() < end:
        product = product @ product * 0.0 + 1.0
    if asked.get("fail"):
        raise NumericsError("a decision", expected="an answer", got="none, by design")
    decision = _decide(self, *args, **kwargs)
    if asked.get("nan"):
        decision = replace(decision, actions=np.full_like(decision.actions, np.nan))
    return decision


def _losing_offer(self: Control, message: Any) -> None:
    if not orders().get("lose"):
        _offer(self, message)


if __name__ == "__main__":
    setattr(Session, "decide", _slow_decide)  # noqa: B010
    setattr(Control, "offer", _losing_offer)  # noqa: B010
    sys.exit(main())
