"""LingBot-VA at its real sizes on a Jetson AGX Thor; run on an H200 only.

ros2 launch flashrt_ros lingbot_va_thor.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/lingbot_va_thor.yaml."""
    return policy_launch_description("lingbot_va_thor.yaml")
