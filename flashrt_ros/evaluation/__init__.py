"""A policy in the loop: a simulated robot and the node as processes, in real time."""
