"""What the formulas share: one dtype and fitting shapes for their arrays, and the covariance of f and the samples."""

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli


def prepare(logits: jax.Array, bits: tuple, values: tuple, name: str = "logits", event_ndim: int = 1) -> tuple:
    """All arrays in one wide dtype, logits with the rank of the samples, and the dtype of the result.

    Shapes that do not fit are refused, since broadcasting them would give a wrong gradient without a word.

    Args:
      logits: `[*batch, D]`, or `[*batch, D, C]` for classes.
      bits: samples, or what has their shape, `[..., *batch, D]` or `[..., *batch, D, C]`.
      values: one number for each sample, `[..., *batch]`.
      name: what the first argument is called in errors.
      event_ndim: 1 for bits, 2 for classes.
    """
    logits = bernoulli.as_logits(logits, name, event_ndim)
    bits, values = tuple(map(jnp.asarray, bits)), tuple(map(jnp.asarray, values))
    shape = bits[0].shape
    for array in bits:
        if array.shape != shape:
            raise ValueError(f"samples must have one shape, got {shape} and {array.shape}")
    for array in values:
        if array.shape != shape[:-event_ndim]:
            raise ValueError(f"values of samples {shape} must have the shape {shape[:-event_ndim]}, got {array.shape}")
    if logits.ndim > len(shape) or logits.shape != shape[len(shape) - logits.ndim :]:
        raise ValueError(f"samples of shape {shape} do not fit logits of shape {logits.shape}")
    wide = bernoulli.wide_dtype(logits, *values)
    alpha = bernoulli.lift(logits.astype(wide), len(shape))
    return alpha, tuple(a.astype(wide) for a in bits), tuple(a.astype(wide) for a in values), logits.dtype


def row_sums(x: jax.Array) -> jax.Array:
    """Σ over the last axis, as a product with ones: XLA does not vectorise such sums on a CPU, five times as slow."""
    return jnp.matmul(x, jnp.ones(x.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)


def covariance(name: str, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """1/(K−1) Σ_k (f_k − f̄)(b_k − b̄) over the first axis; `name` is who needs the two samples at least."""
    if b.shape[0] < 2:
        raise ValueError(f"{name} needs at least 2 samples on the first axis of b, got b of shape {b.shape}")
    deviation = f_b - jnp.mean(f_b, axis=0, keepdims=True)
    deviation = jnp.expand_dims(deviation, tuple(range(f_b.ndim, b.ndim)))
    return jnp.sum(deviation * (b - jnp.mean(b, axis=0, keepdims=True)), axis=0) / (b.shape[0] - 1)
