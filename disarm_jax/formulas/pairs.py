"""Formulas for coupled pairs: ARM, DisARM, the interpolation of DisARM and REINFORCE-LOO, and the midpoint form."""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import prepare, row_sums


def arm(u: jax.Array, f_b: jax.Array, f_b_tilde: jax.Array) -> jax.Array:
    """ARM (Yin & Zhou, 2019), ½ (f(b) − f(b̃)) (2u − 1) with b = 1[1 − u < p] and b̃ = 1[u < p].

    This is eq. 4 of the DisARM paper.

    Args:
      u: `[..., D]`, the uniform noise that the pair was computed from.
      f_b: `[...]`, f at b.
      f_b_tilde: `[...]`, f at b̃.

    Returns:
      `[..., D]`, one estimate for each pair.

    >>> dj.formulas.arm(jnp.array([0.75, 0.5]), jnp.array(4.0), jnp.array(2.0))
    Array([0.5, 0. ], dtype=float32)
    """
    u, _, (f_b, f_b_tilde), dtype = prepare(u, (u,), (f_b, f_b_tilde), name="u")
    return (0.5 * (f_b - f_b_tilde)[..., None] * (2 * u - 1)).astype(dtype)


def disarm(logits: jax.Array, b: jax.Array, b_tilde: jax.Array, f_b: jax.Array, f_b_tilde: jax.Array) -> jax.Array:
    """DisARM (Dong, Mnih & Tucker, 2020), ½ (f(b) − f(b̃)) (−1)^b̃ 1[b ≠ b̃] σ(|α|), eq. 7 of the paper.

    It is the conditional expectation of ARM given the pair, so its variance is never larger than ARM's.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      f_b, f_b_tilde: `[..., *batch]`, f at b and b̃.

    Returns:
      `[..., *batch, D]`, one estimate for each pair.

    >>> dj.formulas.disarm(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), jnp.array(4.0), jnp.array(2.0))
    Array([ 0.5, -0.5], dtype=float32)
    """
    alpha, (b, b_tilde), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde), (f_b, f_b_tilde))
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return (0.5 * (f_b - f_b_tilde)[..., None] * (b - b_tilde) * weight).astype(dtype)


def interpolated(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    beta: jax.Array,
) -> jax.Array:
    """Interpolates between REINFORCE-LOO (β = 0) and DisARM (β = 1), appendix B of the DisARM paper.

    The estimate is ½ (f(b) − f(b̃)) (b − b̃) p(1−p)/c with c = P(b = 1, b̃ = 0) = β min(p, 1−p) + (1−β) p(1−p), which
    equals the paper's posterior-weighted sum. The ratio is computed as σ(|α|) / (β + (1−β) σ(|α|)), which is finite for
    every logit.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, pairs of `bernoulli.interpolated_pairs`.
      f_b, f_b_tilde: `[..., *batch]`, f at b and b̃.
      beta: a scalar or `[D]`; outside of [0, 1] it acts as the nearest end.

    Returns:
      `[..., *batch, D]`, one estimate for each pair; differentiable in β.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0])
    >>> dj.formulas.interpolated(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0), jnp.array(0.0))
    Array([1., 0.], dtype=float32)
    """
    alpha, (b, b_tilde), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde), (f_b, f_b_tilde))
    beta = bernoulli.mixing_weight(beta, alpha.dtype, b.ndim)
    likely = jax.nn.sigmoid(jnp.abs(alpha))
    weight = likely / (beta + (1 - beta) * likely)
    return (0.5 * (f_b - f_b_tilde)[..., None] * (b - b_tilde) * weight).astype(dtype)


def disarm_midpoint(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    slope: jax.Array,
    scale: jax.Array | float = 1.0,
) -> jax.Array:
    """DisARM without the linear part of the noise that the other bits add to each bit.

    The estimate is ½ (f(b) − f(b̃) − λ Σ_{k≠i} g_k (b_k − b̃_k)) (b_i − b̃_i) σ(|α_i|). It is unbiased for every λ if g
    depends on the pair only through b + b̃: given the midpoint, the signs of b − b̃ are independent fair coins, so that
    the sum over the other bits is independent of the sign of bit i. That a baseline for coordinate i may depend on the
    other coordinates is due to Wu et al. (2018, arXiv 1803.07246).

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      f_b, f_b_tilde: `[..., *batch]`, f at b and b̃.
      slope: `[..., *batch, D]`, g; a good choice is the gradient of f at (b + b̃)/2.
      scale: λ.

    Returns:
      `[..., *batch, D]`, one estimate for each pair; differentiable in λ.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    >>> dj.formulas.disarm_midpoint(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0), slope=jnp.array([3.0, 1.0]))
    Array([0.75, 0.25], dtype=float32)
    """
    alpha, (b, b_tilde, slope), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde, slope), (f_b, f_b_tilde))
    sign = b - b_tilde
    linear = jnp.where(sign == 0, 0, slope * sign)  # where the bits agree, the slope may be infinite or NaN
    others = jnp.asarray(scale, slope.dtype) * (row_sums(linear)[..., None] - linear)
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return (0.5 * ((f_b - f_b_tilde)[..., None] - others) * sign * weight).astype(dtype)
