"""The commands that need no ROS, one module each."""
