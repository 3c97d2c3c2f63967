"""Array functions that the formulas share: checks of shapes, one dtype for all arrays, sums and covariances."""

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli


def prepare(logits: jax.Array, bits: tuple, values: tuple, name: str = "logits", event_ndim: int = 1) -> tuple:
    """Checks the shapes of a formula's arguments and converts them to one dtype, float32 or wider.

    Args:
      logits: `[*batch, D]`, or `[*batch, D, C]` for classes.
      bits: samples, or arrays of their shape, `[..., *batch, D]` or `[..., *batch, D, C]`.
      values: arrays with one number for each sample, `[..., *batch]`.
      name: the name of the first argument in error messages.
      event_ndim: 1 for bits, 2 for classes.

    Returns:
      The logits with the rank of the samples, the tuples `bits` and `values`, and the dtype of the result, which is
      that of the logits.

    Raises:
      ValueError: if shapes do not match. Broadcasting them would give a wrong gradient without an error.
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


def check_samples(name: str, b: jax.Array) -> None:
    """Raises ValueError if b has fewer than two samples on its first axis; `name` is the formula that needs them."""
    if b.shape[0] < 2:
        raise ValueError(f"{name} needs at least 2 samples on the first axis of b, got b of shape {b.shape}")


def row_sums(x: jax.Array) -> jax.Array:
    """Sums over the last axis by a product with ones.

    XLA does not vectorise a sum over the last axis on a CPU, where the product is five times as fast.
    """
    return jnp.matmul(x, jnp.ones(x.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)


def covariance(name: str, b: jax.Array, f_b: jax.Array, axis: tuple[int, ...] = (0,)) -> jax.Array:
    """Computes the sample covariance 1/(K−1) Σ_k (f_k − f̄)(b_k − b̄) of f and b.

    Args:
      name: the formula that needs it, for the error message.
      b: `[K, ...]` samples.
      f_b: f at b, with the leading axes of b.
      axis: the axes to sum over: 0, which is that of the K samples, and others to add up several covariances.

    Raises:
      ValueError: if K < 2.
    """
    check_samples(name, b)
    deviation = f_b - jnp.mean(f_b, axis=0, keepdims=True)
    deviation = jnp.expand_dims(deviation, tuple(range(f_b.ndim, b.ndim)))
    return jnp.sum(deviation * (b - jnp.mean(b, axis=0, keepdims=True)), axis=axis) / (b.shape[0] - 1)
