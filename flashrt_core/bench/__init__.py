"""Measurements of a whole policy on a device: latency, kernel counts, layer traces, roofline."""
