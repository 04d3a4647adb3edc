"""The small GR00T N1.7 on the CPU, with random weights: a first flight on any machine.

ros2 launch flashrt_ros groot_n17_tiny.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/groot_n17_tiny.yaml."""
    return policy_launch_description("groot_n17_tiny.yaml")
