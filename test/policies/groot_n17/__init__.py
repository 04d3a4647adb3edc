"""Tests of π0.5."""
