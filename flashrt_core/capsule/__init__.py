"""Saved state of a session: what it is, where it is kept, and how it becomes a file."""
