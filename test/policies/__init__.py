"""Tests of the policies, one folder each."""
