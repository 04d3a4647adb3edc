"""A real node under a robot's load: what it loses, what it costs, how old its inputs are."""
