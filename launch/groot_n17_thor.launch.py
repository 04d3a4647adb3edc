"""GR00T N1.7 at its real sizes on a Jetson AGX Thor.

ros2 launch flashrt_ros groot_n17_thor.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/groot_n17_thor.yaml."""
    return policy_launch_description("groot_n17_thor.yaml")
