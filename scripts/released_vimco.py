"""VIMCO with the arithmetic that the paper's released code had, in float32, to show what it does to the numbers.

    python -m main --config configs/multisample.py:vimco,20 --config.estimator.name=scripts.released_vimco:vimco

The released code takes the geometric baseline from `log_soomean_exp` of TensorFlow Probability, which has the sum of
all weights but one from the sum of all. Where one weight dominates, the difference is lost: see docs/released-code.md.
The formula is that of `dj.vimco(baseline="geometric")`; in exact arithmetic both are the same.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import disarm_jax as dj
from disarm_jax import bernoulli, formulas
from disarm_jax.estimators.estimator import SampleEstimator

VERSIONS = ("0.10", "0.25")  # of TensorFlow Probability; 0.11 and 0.12 are as 0.10


def vimco(*, num_samples: int = 20, version: str = "0.10") -> SampleEstimator:
    """Makes VIMCO with the geometric baseline as a version of TensorFlow Probability computes it.

    Args:
      num_samples: K.
      version: one of `VERSIONS`.
    """
    if version not in VERSIONS:
        raise ValueError(f"version is {version!r}; accepted: {', '.join(VERSIONS)}")

    def gradient(params, logits, b, noise, log_w):
        signals = released_signals(log_w, version)
        return jnp.sum(signals[..., None] * bernoulli.score(logits, b), axis=0).astype(logits.dtype)

    return dataclasses.replace(dj.vimco(num_samples=num_samples, baseline="geometric"), formula=gradient)


def released_signals(log_w: jax.Array, version: str) -> jax.Array:
    """L̂ − L̂^{−k} of every sample, `[K, *batch]`, from log-weights of that shape, in their own precision."""
    num, total = len(log_w), jax.nn.logsumexp(log_w, axis=0, keepdims=True)
    above = total - log_w  # 0 once all other weights are below the precision
    others = log_w + _inverse_softplus(jnp.where(above == 0, 1, above))
    largest = log_w == jnp.max(log_w, axis=0, keepdims=True)
    if version == "0.10":
        largest &= log_w > 0  # and so never for log-weights of images
    without_largest = jax.nn.logsumexp(jnp.where(largest, -jnp.inf, log_w), axis=0, keepdims=True)
    others = jnp.where(above == 0, jnp.where(largest, without_largest, -jnp.inf), others)
    geometric_mean = (jnp.sum(log_w, axis=0, keepdims=True) - log_w) / (num - 1)
    return formulas.bound(log_w)[None] - (jnp.logaddexp(others, geometric_mean) - np.log(num))


def _inverse_softplus(x: jax.Array) -> jax.Array:
    """log(eˣ − 1) for x > 0."""
    end = np.log(np.finfo(x.dtype).eps) + 2  # beyond, it is log x or x
    small, large = x < np.exp(end), x > -end
    middle = jnp.where(small | large, 1, x)
    return jnp.where(small, jnp.log(x), jnp.where(large, x, middle + jnp.log(-jnp.expm1(-middle))))
