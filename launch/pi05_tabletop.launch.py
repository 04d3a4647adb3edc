"""The small pi0.5 that was trained in simulation, on the CPU: examples/tabletop.

ros2 launch flashrt_ros pi05_tabletop.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/pi05_tabletop.yaml."""
    return policy_launch_description("pi05_tabletop.yaml")
