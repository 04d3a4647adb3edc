"""Imported first by a tool: Ctrl-C in the imports behind it, which take seconds, is one line."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from flashrt_core.signals import leave_at_once  # noqa: E402

_PROGRAM = Path(getattr(sys.modules["__main__"], "__file__", None) or "")

if _PROGRAM.parent.resolve() == ROOT / "tools":  # and not a test that imports a tool
    leave_at_once(_PROGRAM.stem)
