"""``python -m flashrt_core``: the commands that need no ROS."""

import sys

from .cli.main import run

if __name__ == "__main__":
    sys.exit(run())
