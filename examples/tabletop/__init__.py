"""A table with coloured blocks, an arm that pushes them, and a policy that learns to."""
