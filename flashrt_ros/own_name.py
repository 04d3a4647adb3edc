"""A node's name, which no other node may have: both would answer its services."""

from __future__ import annotations

import time
from typing import Any

from flashrt_core.errors import OptionError

# Another node of this name shows up in the graph within this time (measured: services in 0.25 s).
_DISCOVERY_S = 1.0


class OwnName:
    """How many nodes have the name of one, as far as it has discovered them.

    Args:
        node: asked for its graph, from now on.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._born_s = time.monotonic()

    def others(self) -> int:
        """How many other nodes of the same full name the graph shows."""
        name = self._node.get_fully_qualified_name()
        return max(0, self._node.count_services(f"{name}/get_state") - 1)

    def free(self) -> bool:
        """Whether nobody else has the name, and there was time to discover one."""
        return self.others() == 0 and time.monotonic() - self._born_s >= _DISCOVERY_S

    def require(self) -> None:
        """Wait for the discovery; OptionError while somebody else has the name."""
        while self.others() == 0 and not self.free():
            time.sleep(0.05)
        self.refuse_others()

    def refuse_others(self) -> None:
        """OptionError while somebody else has the name."""
        if (others := self.others()) == 0:
            return
        raise OptionError(
            f"node name '{self._node.get_fully_qualified_name()}'",
            expected="one node of that name",
            got=f"{others + 1}",
            remedy="stop the other node, or start this one with --ros-args -r __node:=NAME or -r"
            " __ns:=/NAMESPACE (the name of a killed process is free again after some 20 s)",
        )
