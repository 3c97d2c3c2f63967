"""Experiments: from a config to a run directory, and back."""
