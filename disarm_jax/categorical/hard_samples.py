"""Hard samples of classes for the middle of a network: one-hot values with a straight-through-type gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax import samplers
from disarm_jax.categorical import distribution, formulas


def sample(key: jax.Array, logits: jax.Array, gradient: str = "reinmax", **options: Any) -> jax.Array:
    """Draws one hard sample, a one-hot, that is differentiable with respect to the logits; the gradient is biased.

    This is `disarm_jax.sample` for classes, with the same gradients and options; with two classes the gradient is the
    same. For independent samples without a gradient, with the sample axis first, use
    `disarm_jax.categorical.distribution.sample(key, logits, num_samples)`.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[..., C]`; a logit of −∞ excludes a class and has a gradient of zero.
      gradient: the name of the gradient, as in `disarm_jax.sample`.
      **options: the options of the gradient.

    Returns:
      A sample of the shape and dtype of the logits.

    Raises:
      TypeError: if the logits are not floating-point numbers, or an option is unknown.
      ValueError: if the name of the gradient or the value of an option is not accepted.

    Example:
      >>> logits, weights = jnp.zeros((5, 3)), jnp.array([1.0, 2.0, 3.0])  # five variables of three classes
      >>> loss = lambda logits, key: jnp.sum(dj.categorical.sample(key, logits) @ weights)
      >>> jax.grad(loss)(logits, jax.random.key(0)).shape
      (5, 3)
    """
    if isinstance(gradient, int | np.integer):
        raise TypeError(
            f"categorical.sample(key, logits, gradient=…) takes the name of a gradient, got {gradient}; for "
            f"independent samples write disarm_jax.categorical.distribution.sample(key, logits, {gradient})"
        )
    return samplers.draw(_CLASSES, key, logits, gradient, options)


def _given(key: jax.Array, logits: jax.Array, z: jax.Array, num: int) -> jax.Array:
    """Draws logits plus Gumbel noise given their largest entry z, as in Paulus et al. (2021).

    With exponential noise E and the probabilities p, the largest one is −log E_i, and the others are
    −log(E_j / p_j + E_i).
    """
    log_exponential = -distribution.gumbel_noise(key, (num, *z.shape), z.dtype)
    largest = jnp.sum(log_exponential * z[None], axis=-1, keepdims=True)
    others = jnp.logaddexp(log_exponential - jax.nn.log_softmax(logits, axis=-1)[None], largest)
    return -jnp.where(z[None] == 1, largest, others)


def _apart(logits: jax.Array, z: jax.Array, gap: float) -> jax.Array:
    below = jnp.minimum(logits - jnp.max(logits, axis=-1, keepdims=True), -gap)
    return jnp.where(z == 1, jnp.zeros_like(below), below)


_CLASSES = samplers.Variables(
    event_ndim=2,
    sample=lambda key, logits: distribution.sample(key, logits, 1)[0],
    noise=distribution.gumbel_noise,
    perturb=distribution.perturb,
    harden=lambda x: distribution.argmax(x, x.dtype),
    relax=jax.nn.softmax,
    given=_given,
    apart=_apart,
    straight_through=formulas.straight_through,
    reinmax=formulas.reinmax,
    gumbel=formulas.gumbel_softmax,
)
