"""The policy node whose decisions take longer by a time: what a slower computer would do to it.

``python -m flashrt_ros.evaluation.slow_node SECONDS --ros-args ...``
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any

from flashrt_core.session import Decision, Session
from flashrt_ros import node


def slow_down(added_s: float) -> None:
    """Let every whole decision of this process take ``added_s`` longer; other threads go on."""
    plain = Session.decide

    @wraps(plain)
    def decide(self: Session, *args: Any, **options: Any) -> Decision:
        decision = plain(self, *args, **options)
        time.sleep(added_s)
        return decision

    setattr(Session, "decide", decide)  # noqa: B010


def main() -> int:
    """Run the node; the exit status."""
    slow_down(float(sys.argv.pop(1)))
    return node.main()


if __name__ == "__main__":
    sys.exit(main())
