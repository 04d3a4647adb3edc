"""pi0.5 at its real sizes on a Jetson AGX Thor.

ros2 launch flashrt_ros pi05_thor.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/pi05_thor.yaml."""
    return policy_launch_description("pi05_thor.yaml")
