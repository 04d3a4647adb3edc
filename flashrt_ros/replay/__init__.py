"""Recordings in, reports out: write a synthetic bag, play any into the node, judge the run."""
