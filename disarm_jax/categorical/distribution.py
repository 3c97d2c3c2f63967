"""The factorial categorical distribution, from its logits: probabilities, samples and couplings.

Logits have the shape `[*batch, D, C]`, D variables of C classes each, of which the probabilities are the softmax over
the last axis; samples are one-hot, `[N, *batch, D, C]` with the sample axis first.

A class can be drawn by binary choices: at each node of a tree of its classes, a Bernoulli variable says into which of
the two branches to go. Antithetic choices make coupled classes. Everything here takes such a tree as a `Tree`: sticks,
from which one class is broken off at a time, and the balanced tree differ in nothing else.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax import bernoulli


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


class Tree(NamedTuple):
    """Binary choices that lead to one of C classes: which of them lie in the branch of a 0, and of a 1, at each node.

    Attributes:
      zero, one: bool `[M, C]`, M nodes, the same for all variables; or `[*batch, D, M, C]`, for each variable its own.
    """

    zero: jax.Array | np.ndarray
    one: jax.Array | np.ndarray


def sticks(num_classes: int) -> Tree:
    """Choice c, if it is reached, is between class c and all later ones."""
    return _tree([(c, c + 1, num_classes) for c in range(num_classes - 1)], num_classes)


def balanced_tree(num_classes: int) -> Tree:
    """Every choice is between two halves of the classes that are left, the first one the smaller if they differ."""

    def split(start: int, stop: int) -> list[tuple[int, int, int]]:
        if stop - start < 2:
            return []
        middle = (start + stop) // 2
        return [(start, middle, stop), *split(start, middle), *split(middle, stop)]

    return _tree(split(0, num_classes), num_classes)


def _tree(nodes: list[tuple[int, int, int]], num_classes: int) -> Tree:
    """Nodes with the branches `start ≤ c < middle` and `middle ≤ c < stop`."""
    start, middle, stop = np.array(nodes, int).reshape(-1, 3, 1).transpose(1, 0, 2)
    c = np.arange(num_classes)[None]
    return Tree((start <= c) & (c < middle), (middle <= c) & (c < stop))


def ascending_sticks(logits: jax.Array) -> Tree:
    """Sticks for each variable in the ascending order of its own logits; equal ones in the order of the classes.

    Node c, of all C, belongs to class c: a choice between it and all classes that come later in that order. The one of
    the last class is between it and nothing.
    """
    order = jnp.where(jnp.isnan(logits), jnp.inf, logits)  # NaN comes last, so that samples stay one-hot
    one, other = order[..., :, None], order[..., None, :]
    index = np.arange(logits.shape[-1])
    after = bernoulli.lift(jnp.asarray(index[None, :] > index[:, None]), one.ndim)
    later = (other > one) | ((other == one) & after)  # compared one by one: sorting takes many times as long
    return Tree(jnp.broadcast_to(jnp.eye(logits.shape[-1], dtype=bool), later.shape), later)


def node_logits(tree: Tree, logits: jax.Array) -> jax.Array:
    """The logit of going into the branch of a 1, at each node: `[*batch, D, M]` from `[*batch, D, C]`."""
    _, one, zero = branch_masses(tree, logits)
    # Both are 0 below a node that is never reached.
    return jnp.where(one == zero, jnp.zeros_like(one), jnp.log(one) - jnp.log(zero))


def branch_masses(tree: Tree, logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Probabilities up to a factor, of the classes `[*batch, D, C]` and of the two branches of each node.

    They are sums of positive numbers, so that small ones keep their digits; what underflows is never reached.

    Returns:
      e^logits over the largest of them, `[*batch, D, C]`; its sums in the branches of a 1 and of a 0, `[*batch, D, M]`.
    """
    mass = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    inside = mass[..., None, :]
    one, zero = (
        jnp.sum(jnp.where(bernoulli.lift(jnp.asarray(mask), inside.ndim), inside, 0), axis=-1)
        for mask in (tree.one, tree.zero)
    )
    return mass, one, zero


def follow(tree: Tree, b: jax.Array) -> jax.Array:
    """The class that choices lead to, a one-hot `[N, *batch, D, C]` of their dtype, from bits `[N, *batch, D, M]`."""
    bit = b[..., None] == 1
    one, zero = (bernoulli.lift(jnp.asarray(mask), bit.ndim) for mask in (tree.one, tree.zero))
    return jnp.all(jnp.where(bit, ~zero, ~one), axis=-2).astype(b.dtype)


def sample(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Independent samples `[num_samples, *batch, D, C]`, one-hot in the logits' dtype; `key` is consumed.

    >>> print(dj.categorical.sample(jax.random.key(0), jnp.array([[-40.0, 40.0, 0.0]]), 2))
    [[[0. 1. 0.]]
    <BLANKLINE>
     [[0. 1. 0.]]]
    """
    logits = as_logits(logits)
    tree = balanced_tree(logits.shape[-1])  # of all that draw a class, the one with the least noise and the best tails
    b = bernoulli.sample(key, node_logits(tree, bernoulli.wide(logits)), num_samples)
    return follow(tree, b).astype(logits.dtype)


def antithetic_pairs(key: jax.Array, logits: jax.Array, tree: Tree, num_pairs: int) -> tuple[jax.Array, jax.Array]:
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
    b, b_tilde, _ = bernoulli.antithetic_pairs(key, node_logits(tree, bernoulli.wide(logits)), num_pairs)
    return follow(tree, b).astype(logits.dtype), follow(tree, b_tilde).astype(logits.dtype)


def choices(tree: Tree, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What classes chose at each node, and whether they have reached it: bits `[..., D, M]` from `[..., D, C]`.

    For a tree that all variables share, as in `to_logits`.
    """
    b = z @ jnp.asarray(tree.one.T, z.dtype)
    return b, b + z @ jnp.asarray(tree.zero.T, z.dtype)


def to_logits(tree: Tree, logits: jax.Array, grad: jax.Array) -> jax.Array:
    """The chain rule: a gradient with respect to the nodes' logits as one with respect to the classes' logits.

    The derivative of a node's logit is a class's share of its branch, negative in the branch of a 0.

    Args:
      tree: of the choices.
      logits: `[..., D, C]`, of the rank of the gradient.
      grad: `[..., D, M]`, zero at nodes that were not reached.

    Returns:
      `[..., D, C]`.
    """
    mass, *branches = branch_masses(tree, logits)
    one, zero = (
        jnp.matmul(jnp.where(branch == 0, 0, grad / branch), jnp.asarray(mask, grad.dtype), precision="highest")
        for branch, mask in zip(branches, (tree.one, tree.zero), strict=True)
    )
    return mass * (one - zero)
