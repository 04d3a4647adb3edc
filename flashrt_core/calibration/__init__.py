"""Ranges of activations, observed in a run and kept in an artifact: what a quantised plan needs."""
