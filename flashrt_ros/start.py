"""The way into the node's process: signals are answered before the imports, which take seconds."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the node until SIGINT or SIGTERM; its exit status.

    Until the node has handlers of its own, both signals end the process at once and in silence:
    there is nothing yet to shut down, and Python's KeyboardInterrupt would only show where the
    import was.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flashrt_ros.node import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
