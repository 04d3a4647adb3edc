"""``python -m flashrt_core``: the commands that need no ROS."""

import sys

from .signals import leave_at_once

if __name__ == "__main__":
    leave_at_once("flashrt")  # before the imports, which take seconds
    from .cli.main import run

    sys.exit(run())
