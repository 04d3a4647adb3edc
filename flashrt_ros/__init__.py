"""The ROS 2 side of FlashRT: node, parameters, services, bag replay. Holds no CUDA and no maths."""

from pkgutil import extend_path

# msg and srv are generated at build time and exist only in the installed copy of this package;
# a source tree that comes first on the path has to look there too.
__path__ = extend_path(__path__, __name__)
__version__ = "0.1.0"
