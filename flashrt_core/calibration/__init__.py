"""Ranges of activations, observed in a run: what a quantised plan needs, of which scales come."""
