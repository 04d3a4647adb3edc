"""Execution of action chunks: which action is due when, within which limits, and what is done when
none is.

``chunk``, ``strategies``, ``schedule``, ``delay``, ``limits`` and ``track`` are mathematics on
numpy arrays and integer nanoseconds; ``machine`` is the state that they drive. None of them knows
ROS. ``outputs`` turns what they say into messages, and ``control`` puts all of it on a node.
"""
