"""The ops, one file each; see op.py."""
