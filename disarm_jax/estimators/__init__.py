"""Gradient estimators as pure functions, one estimator or family per file. They need JAX alone."""
