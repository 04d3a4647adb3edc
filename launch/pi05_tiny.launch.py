"""The small pi0.5 on the CPU, with random weights: a first flight on any machine.

ros2 launch flashrt_ros pi05_tiny.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/pi05_tiny.yaml."""
    return policy_launch_description("pi05_tiny.yaml")
