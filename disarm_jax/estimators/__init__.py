"""Gradient estimators as pure functions: one estimator or tight family per file. Nothing here needs more than jax."""
