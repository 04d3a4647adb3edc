"""The ways into the processes: signals are answered before the imports, which take seconds."""

from __future__ import annotations

import signal
import sys

from flashrt_core.signals import leave_at_once


def command() -> int:
    """Entry point of the ``flashrt`` command; the exit status."""
    leave_at_once("flashrt")
    from flashrt_ros.cli import main as run

    return run()


def main() -> int:
    """Run the node until SIGINT or SIGTERM; its exit status.

    Until the node has handlers of its own, both signals end the process with one line: there is
    nothing yet to shut down.
    """
    leave_at_once("policy_node", (signal.SIGINT, signal.SIGTERM))
    from flashrt_ros.node import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
