"""Push a coloured block to a side: a MuJoCo scene, its expert, and recordings of it.

``TASK`` is made without loading MuJoCo; a scene is loaded and a renderer opened at the first use.
"""

from .task import TASK, Tabletop

#: What the policy beside this file is loaded with.
PLAN = {"preset": "small", "threads": 1}

__all__ = ["PLAN", "TASK", "Tabletop"]
