"""Formulas for independent samples: REINFORCE, and REINFORCE with a leave-one-out baseline."""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import covariance, prepare


def reinforce(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """REINFORCE (Williams, 1992), the mean of f(b) ∂log q(b) over the samples, without a baseline.

    This is eq. 2 of the DisARM paper.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]`, independent samples.
      f_b: `[K, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.reinforce(jnp.zeros(2), jnp.array([[1.0, 0.0]]), jnp.array([4.0]))
    Array([ 2., -2.], dtype=float32)
    """
    alpha, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return jnp.mean(f_b[..., None] * bernoulli.score(alpha, b), axis=0).astype(dtype)


def reinforce_loo(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(b_k).

    Because the deviations f_k − f̄ sum to zero, ∂log q(b_k) = b_k − p may be replaced by b_k − b̄. The estimator is thus
    the sample covariance of f and b, and exactly zero where all samples agree, however saturated the logit is.

    Args:
      logits: `[*batch, D]`; only their shape and dtype matter.
      b: `[K, *batch, D]`, independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.reinforce_loo(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.array([4.0, 3.0]))
    Array([0.5, 0. ], dtype=float32)
    """
    _, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return covariance("reinforce_loo", b, f_b).astype(dtype)
