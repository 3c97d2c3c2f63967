"""Formulas that compare a sample with copies in which single bits are flipped: LEG, BitFlip-1 and UGC."""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import prepare
from disarm_jax.formulas.pairs import disarm


def leg(logits: jax.Array, b: jax.Array, f_b: jax.Array, f_flipped: jax.Array) -> jax.Array:
    """Local expectation gradients (Titsias & Lázaro-Gredilla, 2015): p(1−p) (f(b_{i→1}) − f(b_{i→0})) for every bit i.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]`, samples.
      f_b: `[..., *batch]`, f at b.
      f_flipped: `[..., *batch, D]`, f at b with bit i flipped.

    Returns:
      `[..., *batch, D]`, one estimate for each sample.

    >>> dj.formulas.leg(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array(4.0), jnp.array([2.0, 3.0]))
    Array([ 0.5 , -0.25], dtype=float32)
    """
    alpha, (b, f_flipped), (f_b,), dtype = prepare(logits, (b, f_flipped), (f_b,))
    return (bernoulli.variance(alpha) * (2 * b - 1) * (f_b[..., None] - f_flipped)).astype(dtype)


def bitflip(logits: jax.Array, b: jax.Array, b_flipped: jax.Array, f_b: jax.Array, f_b_flipped: jax.Array) -> jax.Array:
    """BitFlip-1 (Kunes et al., 2023): D p(1−p) (f(b_{i→1}) − f(b_{i→0})) for one bit i drawn at random, 0 for others.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]`, samples.
      b_flipped: `[..., *batch, D]`, b with one bit flipped, which is drawn uniformly from the D bits.
      f_b, f_b_flipped: `[..., *batch]`, f at b and at b_flipped.

    Returns:
      `[..., *batch, D]`, one estimate for each sample.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0])
    >>> dj.formulas.bitflip(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0))
    Array([1., 0.], dtype=float32)
    """
    alpha, (b, b_flipped), (f_b, f_b_flipped), dtype = prepare(logits, (b, b_flipped), (f_b, f_b_flipped))
    return (b.shape[-1] * bernoulli.variance(alpha) * (b - b_flipped) * (f_b - f_b_flipped)[..., None]).astype(dtype)


def ugc(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    b_flipped: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    f_b_flipped: jax.Array,
) -> jax.Array:
    """Unbiased gradient variance clipping (Kunes et al., 2023): BitFlip-1 where min(p, 1−p) < 1/(2D), else DisARM.

    For such rare bits the variance of BitFlip-1 is below any that DisARM can have. Both use the same b, which does not
    change the distribution of any single coordinate of the estimate.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      b_flipped: `[..., *batch, D]`, b with one bit flipped, which is drawn uniformly from the D bits.
      f_b, f_b_tilde, f_b_flipped: `[..., *batch]`, f at b, b̃ and b_flipped.

    Returns:
      `[..., *batch, D]`, one estimate for each pair.

    >>> b = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), jnp.array([1.0, 1.0])
    >>> dj.formulas.ugc(jnp.zeros(2), *b, jnp.array(4.0), jnp.array(2.0), jnp.array(3.0))  # p = ½: DisARM
    Array([ 0.5, -0.5], dtype=float32)
    """
    often = disarm(logits, b, b_tilde, f_b, f_b_tilde)
    rarely = bitflip(logits, b, b_flipped, f_b, f_b_flipped)
    rare = jax.nn.sigmoid(-jnp.abs(bernoulli.wide(bernoulli.lift(bernoulli.as_logits(logits), often.ndim))))
    return jnp.where(rare < 0.5 / often.shape[-1], rarely, often)
