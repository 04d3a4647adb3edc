"""Robot policies at batch one: fixed-address buffers, captured stages, capsules. No ROS imports."""

from pkgutil import extend_path

# An installed copy may hold compiled parts that a source tree lacks; see both.
__path__ = extend_path(__path__, __name__)
