"""Sixty bits, where nothing can be enumerated, but the gradient of a quadratic f is known.

Without `leg`, which would need 61 evaluations of each draw, and `bitflip`, whose variance grows with their number.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import disarm_jax as dj

INFOS = {name: dj.estimator_info(name) for name in dj.estimator_names() if name not in ("bitflip", "leg")}
UNBIASED = [name for name, info in INFOS.items() if info.unbiased and info.objective == "expectation"]


@pytest.mark.parametrize("name", UNBIASED)
def test_sixty_bits(name):
    """A quadratic f of 60 bits, whose gradient is known: each coordinate, and the direction of the gradient.

    The standard error in that direction is below 1% of the gradient's norm.
    """
    rng, dim, draws = np.random.default_rng(0), 60, 200_000 if name == "reinforce" else 40_000
    weights, linear, logits = rng.normal(size=dim) / np.sqrt(dim), rng.normal(size=dim), rng.normal(size=dim)
    p = expit(logits)
    truth = p * (1 - p) * (2 * weights * (weights @ p) + weights**2 * (1 - 2 * p) + linear)
    f = lambda b: (b @ jnp.asarray(weights, b.dtype)) ** 2 + b @ jnp.asarray(linear, b.dtype)
    est, rows = dj.make_estimator(name), jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (draws, dim))
    params = est.init(jax.random.key(0), rows)
    apply = jax.jit(lambda key, rows: est.apply(params, key, rows, f).grad)  # XLA would fold logits it knows
    grads = np.asarray(apply(jax.random.key(1), rows), np.float64)
    stderr = grads.std(axis=0) / np.sqrt(draws) + 1e-6  # float32 rounding, where nothing else is left
    assert np.abs((grads.mean(axis=0) - truth) / stderr).max() < 4.8
    along = grads @ truth / np.linalg.norm(truth)
    error = along.std() / np.sqrt(draws)
    assert error < 0.01 * np.linalg.norm(truth)
    assert abs(along.mean() - np.linalg.norm(truth)) < 4.5 * error + 1e-5
