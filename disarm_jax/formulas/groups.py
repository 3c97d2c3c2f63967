"""Formulas for groups of n coupled samples: ARMS, and its interpolation with REINFORCE-LOO."""

import jax

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import covariance, prepare


def arms(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """ARMS (Dimitriev & Zhou, 2021): 1/(n−1) Σ_k (f_k − f̄)(b_k − p) · p(1−p)/c, c = P(b_j = 1, b_k = 0) for j ≠ k.

    This is REINFORCE-LOO on coupled samples. The weight p(1−p)/c corrects for the fact that coupled samples differ more
    often than independent ones. For two samples it is DisARM's σ(|α|).

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]`, samples of `bernoulli.copula_samples`, n ≥ 2.
      f_b: `[n, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.arms(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([4.0, 2.0]))
    Array([ 0.5, -0.5], dtype=float32)
    """
    covariance, weight, dtype = _covariance_and_weight("arms", logits, b, f_b)
    return (covariance * weight).astype(dtype)


def arms_interpolated(logits: jax.Array, b: jax.Array, f_b: jax.Array, beta: jax.Array) -> jax.Array:
    """Interpolates between REINFORCE-LOO (β = 0) and ARMS (β = 1): as `arms`, with c = β c_ARMS + (1−β) p(1−p).

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]`, samples of `bernoulli.interpolated_copula_samples`, n ≥ 2.
      f_b: `[n, *batch]`, f at b.
      beta: a scalar or `[D]`; outside of [0, 1] it acts as the nearest end.

    Returns:
      `[*batch, D]`; differentiable in β.

    >>> b = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    >>> dj.formulas.arms_interpolated(jnp.zeros(2), b, jnp.array([4.0, 2.0]), jnp.array(0.0))
    Array([1., 0.], dtype=float32)
    """
    covariance, weight, dtype = _covariance_and_weight("arms_interpolated", logits, b, f_b)
    beta = bernoulli.mixing_weight(beta, weight.dtype, weight.ndim)
    return (covariance * weight / (beta + (1 - beta) * weight)).astype(dtype)


def _covariance_and_weight(name: str, logits: jax.Array, b: jax.Array, f_b: jax.Array) -> tuple:
    """Returns the sample covariance of f and b, the weight p(1−p)/c of the copula, and the dtype of the result."""
    alpha, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return covariance(name, b, f_b), bernoulli.copula_weight(alpha[0], b.shape[0]), dtype
