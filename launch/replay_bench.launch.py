"""A recording played into the policy node, with a report of latency, ages, misses and jumps.

ros2 launch flashrt_ros replay_bench.launch.py --show-args
"""

from flashrt_ros.replay.launching import replay_launch_description


def generate_launch_description():
    """Describe one run of ``flashrt replay``."""
    return replay_launch_description()
