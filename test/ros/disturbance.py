"""What a test tells a disturbed node (disturbed_node.py): by a file, read at every decision."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "FLASHRT_TEST_DISTURBANCE"


class Disturbance:
    """The orders of one node.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.order()
        program = Path(__file__).with_name("disturbed_node.py")
        self.process: dict[str, Any] = {
            "program": (str(program),),
            "environment": {VARIABLE: str(path)},
        }

    def order(self, **orders: Any) -> None:
        """From the next decision on: ``busy_s`` compute so long, ``fail`` raise, ``lose`` let the
        chunk get lost on its way to execution, ``nan`` make an action that is none.
        """
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(orders))
        new.replace(self._path)


def orders() -> dict[str, Any]:
    """What is asked for now; in the node."""
    found: dict[str, Any] = json.loads(Path(os.environ[VARIABLE]).read_text())
    return found
