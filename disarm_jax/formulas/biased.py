"""Formulas of biased estimators that use the gradient of f: straight-through, Gumbel-sigmoid and ReinMax.

`slope` is ∇f, the gradient of f with respect to the bits as if they were real numbers.
"""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import prepare


def straight_through(logits: jax.Array, slope: jax.Array) -> jax.Array:
    """Straight-through (Bengio et al., 2013), p(1−p) ∇f(b): biased unless f is linear in each bit.

    Args:
      logits: `[*batch, D]`.
      slope: `[..., *batch, D]`, ∇f at a sample.

    Returns:
      `[..., *batch, D]`.

    >>> dj.formulas.straight_through(jnp.zeros(2), jnp.array([4.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    alpha, (slope,), _, dtype = prepare(logits, (slope,), ())
    return (bernoulli.variance(alpha) * slope).astype(dtype)


def gumbel_sigmoid(z: jax.Array, slope: jax.Array, temperature: float) -> jax.Array:
    """Gumbel-sigmoid (Jang et al.; Maddison et al., 2017), ∇f · ∂σ(z/τ)/∂z: biased.

    The bias vanishes as τ → 0 if ∇f is taken at σ(z/τ).

    Args:
      z: `[..., D]`, logits plus logistic noise.
      slope: `[..., D]`, ∇f at the sample 1[z > 0], or at σ(z/τ).
      temperature: τ.

    Returns:
      `[..., D]`.

    >>> dj.formulas.gumbel_sigmoid(jnp.zeros(2), jnp.array([4.0, 2.0]), 0.5)
    Array([2., 1.], dtype=float32)
    """
    z, (slope,), _, dtype = prepare(z, (slope,), (), name="z")
    return (bernoulli.variance(z / temperature) / temperature * slope).astype(dtype)


def reinmax(logits: jax.Array, b: jax.Array, slope: jax.Array, temperature: float = 1.0) -> jax.Array:
    """ReinMax (Liu et al., 2023) for bits, ½ (1 − q(b_i)) ∂_i f(b): biased unless f is at most quadratic in each bit.

    At another temperature, with q_τ and p_τ from logits / τ, it is ½ (1 − q_τ(b_i) + p_τ(1−p_τ) − p(1−p)) ∂_i f(b),
    and biased for a quadratic f too.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]`, samples.
      slope: `[..., *batch, D]`, ∇f at b.
      temperature: τ.

    Returns:
      `[..., *batch, D]`.

    >>> dj.formulas.reinmax(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array([4.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    alpha, (b, slope), _, dtype = prepare(logits, (b, slope), ())
    tempered = alpha / temperature
    correction = bernoulli.variance(tempered) - bernoulli.variance(alpha)  # exactly 0 at temperature 1
    return (0.5 * (jnp.abs(bernoulli.score(tempered, b)) + correction) * slope).astype(dtype)
