"""The factorial categorical distribution, from its logits: probabilities, samples and couplings.

Logits have the shape `[*batch, D, C]`, D variables of C classes each, of which the probabilities are the softmax over
the last axis; samples are one-hot, `[N, *batch, D, C]` with the sample axis first.

A class can be drawn by the binary choices along a tree of `trees`; antithetic choices make coupled classes.
"""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.categorical import trees


def as_logits(logits: jax.Array) -> jax.Array:
    """The logits as a JAX array, refused unless they are real floating numbers `[*batch, D, C]`."""
    return bernoulli.as_logits(logits, event_ndim=2)


def log_prob(logits: jax.Array, z: jax.Array) -> jax.Array:
    """log q(z), summed over the variables.

    Args:
      logits: `[*batch, D, C]`, of which −∞ is a class that does not occur.
      z: `[..., *batch, D, C]`, one-hot or relaxed; log q is linear in it.

    Returns:
      `[..., *batch]`.

    >>> print(dj.categorical.log_prob(jnp.zeros((2, 4)), jax.nn.one_hot(jnp.array([0, 3]), 4)))
    -2.7725887
    """
    log_p = bernoulli.lift(jax.nn.log_softmax(logits, axis=-1), z.ndim)
    # A plain product would be NaN where a class that does not occur was not drawn.
    absent = (z == 0) & (log_p == -jnp.inf)
    return jnp.sum(z * jnp.where(absent, jnp.zeros_like(log_p), log_p), axis=(-2, -1))


def score(logits: jax.Array, z: jax.Array) -> jax.Array:
    """∂ log q(z) / ∂ logits = z − softmax, without the cancellation of 1 − p for a class that is nearly certain."""
    p = jax.nn.softmax(bernoulli.lift(logits, z.ndim), axis=-1)
    others = jnp.sum((1 - z) * p, axis=-1, keepdims=True)
    return z * others - (1 - z) * p


def gumbel_noise(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Standard Gumbel noise, whose upper tail is as long as that of `bernoulli.logistic_noise`; `key` is consumed."""
    return -jnp.log(bernoulli.softplus(bernoulli.logistic_noise(key, shape, dtype)))


def argmax(perturbed: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The largest of the logits plus noise, `[..., C]`, as a one-hot of the dtype."""
    return jax.nn.one_hot(jnp.argmax(perturbed, axis=-1), perturbed.shape[-1], dtype=dtype)


def perturb(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Logits plus noise `[..., C]` in the noise's dtype, less the largest logit, beside which noise may round to 0."""
    logits = bernoulli.lift(logits.astype(noise.dtype), noise.ndim)
    return logits - jnp.max(logits, axis=-1, keepdims=True) + noise


def sample(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Independent samples `[num_samples, *batch, D, C]`, one-hot in the logits' dtype; `key` is consumed.

    >>> print(dj.categorical.sample(jax.random.key(0), jnp.array([[-40.0, 40.0, 0.0]]), 2))
    [[[0. 1. 0.]]
    <BLANKLINE>
     [[0. 1. 0.]]]
    """
    logits = as_logits(logits)
    tree = trees.balanced_tree(
        logits.shape[-1]
    )  # of all that draw a class, the one with the least noise and the best tails
    b = bernoulli.sample(key, trees.node_logits(tree, bernoulli.wide(logits)), num_samples)
    return tree.follow(b).astype(logits.dtype)


def antithetic_pairs(
    key: jax.Array, logits: jax.Array, tree: trees.Tree, num_pairs: int
) -> tuple[jax.Array, jax.Array]:
    """Pairs of samples, each made of choices of which one is antithetic to the other's at the same node.

    Args:
      key: consumed.
      logits: `[*batch, D, C]`.
      tree: of the choices.
      num_pairs: number of pairs, independent of each other.

    Returns:
      z and z_tilde, each `[num_pairs, *batch, D, C]`, one-hot in the logits' dtype.
    """
    logits = as_logits(logits)
    b, b_tilde, _ = bernoulli.antithetic_pairs(key, trees.node_logits(tree, bernoulli.wide(logits)), num_pairs)
    return tree.follow(b).astype(logits.dtype), tree.follow(b_tilde).astype(logits.dtype)
