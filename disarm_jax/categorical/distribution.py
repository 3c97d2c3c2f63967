"""Probabilities, samples and couplings of the factorial categorical distribution, computed from its logits.

Logits have the shape `[*batch, D, C]` for D variables of C classes each, and the probabilities are their softmax over
the last axis. Samples are one-hot, `[N, *batch, D, C]` with the sample axis first.

A class is drawn by binary choices along a tree of `trees`. Antithetic choices give a pair of coupled classes.
"""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.categorical import trees


def as_logits(logits: jax.Array) -> jax.Array:
    """Converts logits `[*batch, D, C]` to a JAX array.

    Raises TypeError if they are not real floating-point numbers, and ValueError if they have fewer than two axes.
    """
    return bernoulli.as_logits(logits, event_ndim=2)


def log_prob(logits: jax.Array, z: jax.Array) -> jax.Array:
    """Computes log q(z), summed over the variables.

    Args:
      logits: `[*batch, D, C]`; a logit of −∞ excludes a class.
      z: `[..., *batch, D, C]`, one-hot or relaxed, because log q is linear in z.

    Returns:
      `[..., *batch]`.

    >>> print(dj.categorical.log_prob(jnp.zeros((2, 4)), jax.nn.one_hot(jnp.array([0, 3]), 4)))
    -2.7725887
    """
    log_p = bernoulli.lift(jax.nn.log_softmax(logits, axis=-1), z.ndim)
    # For an excluded class that was not drawn, the product 0 · ∞ would be NaN.
    absent = (z == 0) & (log_p == -jnp.inf)
    return jnp.sum(z * jnp.where(absent, jnp.zeros_like(log_p), log_p), axis=(-2, -1))


def score(logits: jax.Array, z: jax.Array) -> jax.Array:
    """Computes ∂ log q(z) / ∂ logits = z − softmax, without the cancellation in 1 − p for a nearly certain class."""
    p = jax.nn.softmax(bernoulli.lift(logits, z.ndim), axis=-1)
    others = jnp.sum((1 - z) * p, axis=-1, keepdims=True)
    return z * others - (1 - z) * p


def gumbel_noise(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Draws standard Gumbel noise with the same upper tail as `bernoulli.logistic_noise`; do not reuse the key."""
    return -jnp.log(bernoulli.softplus(bernoulli.logistic_noise(key, shape, dtype)))


def argmax(perturbed: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns the position of the largest entry of `[..., C]`, logits plus noise, as a one-hot of the dtype."""
    return jax.nn.one_hot(jnp.argmax(perturbed, axis=-1), perturbed.shape[-1], dtype=dtype)


def perturb(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Adds noise `[..., C]` to the logits, in the noise's dtype.

    It subtracts the largest logit first, because noise added to a large number would be rounded away.
    """
    logits = bernoulli.lift(logits.astype(noise.dtype), noise.ndim)
    return logits - jnp.max(logits, axis=-1, keepdims=True) + noise


def sample(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Draws independent samples from the categorical distribution.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D, C]`; a logit of −∞ excludes a class.
      num_samples: the number of samples.

    Returns:
      One-hot samples `[num_samples, *batch, D, C]` in the dtype of the logits.

    >>> print(dj.categorical.distribution.sample(jax.random.key(0), jnp.array([[-40.0, 40.0, 0.0]]), 2))
    [[[0. 1. 0.]]
    <BLANKLINE>
     [[0. 1. 0.]]]
    """
    logits = as_logits(logits)
    # Of the ways to draw a class here, a balanced tree needs the least noise and has the most accurate tails.
    tree = trees.balanced_tree(logits.shape[-1])
    b = bernoulli.sample(key, trees.node_logits(tree, bernoulli.wide(logits)), num_samples)
    return tree.follow(b).astype(logits.dtype)


def antithetic_pairs(
    key: jax.Array, logits: jax.Array, tree: trees.Tree, num_pairs: int
) -> tuple[jax.Array, jax.Array]:
    """Draws pairs of samples whose binary choices at the same node of a tree are antithetic.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D, C]`.
      tree: the tree of binary choices, such as `balanced_tree(C)`.
      num_pairs: the number of pairs, which are independent of each other.

    Returns:
      z and z_tilde, each `[num_pairs, *batch, D, C]`, one-hot in the dtype of the logits.

    >>> z, z_tilde = dj.categorical.antithetic_pairs(
    ...     jax.random.key(0), jnp.zeros((3, 8)), dj.categorical.balanced_tree(8), 5)
    >>> z.shape, bool(jnp.all(z * z_tilde == 0))  # with a balanced tree of equal classes, the two always differ
    ((5, 3, 8), True)
    """
    logits = as_logits(logits)
    b, b_tilde, _ = bernoulli.antithetic_pairs(key, trees.node_logits(tree, bernoulli.wide(logits)), num_pairs)
    return tree.follow(b).astype(logits.dtype), tree.follow(b_tilde).astype(logits.dtype)
