"""The small LingBot-VA on the CPU, with random weights: a first flight on any machine.

ros2 launch flashrt_ros lingbot_va_tiny.launch.py --show-args
"""

from flashrt_ros.launching import policy_launch_description


def generate_launch_description():
    """Describe the deployment of config/lingbot_va_tiny.yaml."""
    return policy_launch_description("lingbot_va_tiny.yaml")
