"""The estimators for classes as formulas: arrays in, arrays out; no key, no f. As `disarm_jax.formulas` for bits.

`z`, `z_tilde` are one-hot `[..., D, C]`; `f_z`, `f_z_tilde` are `[...]`. The functions of a pair work on any leading
axes; those of K samples take the sample axis first and sum it out. `logits` are `[*batch, D, C]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.categorical import distribution, trees
from disarm_jax.formulas.arrays import covariance, prepare


def reinforce_loo(logits: jax.Array, z: jax.Array, f_z: jax.Array) -> jax.Array:
    """REINFORCE with a leave-one-out baseline: 1/(K−1) Σ_k (f_k − f̄) ∂log q(z_k), where z_k − z̄ may stand for ∂log q.

    Args:
      logits: `[*batch, D, C]`; only their dtype matters.
      z: `[K, *batch, D, C]` independent samples, K ≥ 2.
      f_z: `[K, *batch]`, f at z.

    Returns:
      `[*batch, D, C]`.

    >>> z = jnp.array([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]])
    >>> dj.categorical.formulas.reinforce_loo(jnp.zeros((1, 3)), z, jnp.array([4.0, 3.0]))
    Array([[ 0.5,  0. , -0.5]], dtype=float32)
    """
    _, (z,), (f_z,), dtype = prepare(logits, (z,), (f_z,), event_ndim=2)
    return covariance("reinforce_loo", z, f_z).astype(dtype)


def disarm_sb(logits: jax.Array, z: jax.Array, z_tilde: jax.Array, f_z: jax.Array, f_z_tilde: jax.Array) -> jax.Array:
    """DisARM for the binary choices that break classes off a stick, one by one.

    With α the logit of a choice and b, b̃ what the two samples chose, its gradient is ½ (f(z) − f(z̃)) times
    (b − b̃) σ(|α|) if both have reached it, b − p if only z has, p − b̃ if only z̃ has, and 0 if none has. It is the
    conditional expectation, given the classes, of DisARM for all the choices. The chain rule takes it to the logits.

    Args:
      logits: `[*batch, D, C]`.
      z, z_tilde: `[..., *batch, D, C]`, pairs of `antithetic_pairs` along `sticks`.
      f_z, f_z_tilde: `[..., *batch]`, f at them.

    Returns:
      `[..., *batch, D, C]`, one estimate for each pair.

    >>> pair = jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])
    >>> grad = dj.categorical.formulas.disarm_sb(jnp.zeros((1, 3)), *pair, jnp.array(4.0), jnp.array(2.0))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.17', '-0.83']
    """
    return _disarm_of_choices(trees.sticks, logits, z, z_tilde, f_z, f_z_tilde)


def disarm_tree(logits: jax.Array, z: jax.Array, z_tilde: jax.Array, f_z: jax.Array, f_z_tilde: jax.Array) -> jax.Array:
    """DisARM for the binary choices of a balanced tree; as `disarm_sb`, with pairs along `balanced_tree`.

    >>> pair = jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])
    >>> grad = dj.categorical.formulas.disarm_tree(jnp.zeros((1, 3)), *pair, jnp.array(4.0), jnp.array(2.0))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.17', '-0.83']
    """
    return _disarm_of_choices(trees.balanced_tree, logits, z, z_tilde, f_z, f_z_tilde)


def _disarm_of_choices(make_tree: Callable[[int], trees.SharedTree], logits, z, z_tilde, f_z, f_z_tilde) -> jax.Array:
    logits, (z, z_tilde), (f_z, f_z_tilde), dtype = prepare(logits, (z, z_tilde), (f_z, f_z_tilde), event_ndim=2)
    tree = make_tree(logits.shape[-1])
    alpha = trees.node_logits(tree, logits)
    b, reached = tree.choices(z)
    b_tilde, reached_tilde = tree.choices(z_tilde)
    both = reached * reached_tilde * (b - b_tilde) * jax.nn.sigmoid(jnp.abs(alpha))
    one = reached * (1 - reached_tilde) * bernoulli.score(alpha, b)
    other = reached_tilde * (1 - reached) * bernoulli.score(alpha, b_tilde)
    grad = 0.5 * (f_z - f_z_tilde)[..., None, None] * (both + one - other)
    return trees.to_logits(tree, logits, grad).astype(dtype)


def disarm_iw(logits: jax.Array, z: jax.Array, z_tilde: jax.Array, f_z: jax.Array, f_z_tilde: jax.Array) -> jax.Array:
    """REINFORCE-LOO of a coupled pair, ½ (f(z) − f(z̃)) (z − z̃) w, with the importance weight w = q(z) q(z̃) / P(z, z̃).

    The pair comes from sticks in ascending order of the logits, where every pair of different classes is possible: all
    choices but the last are for going on with a probability of ⅔ at least, so that both samples can do it. In that
    order, w = σ(|α_n|) Π_{i<n} 1 / (1 − e^{−2 α_i}), with α_i ≥ 0 the logit of going on and n the first class of the
    two. It is less than 2.

    Args:
      logits: `[*batch, D, C]`, in any order.
      z, z_tilde: `[..., *batch, D, C]`, pairs of `antithetic_pairs` along `ascending_sticks(logits)`.
      f_z, f_z_tilde: `[..., *batch]`, f at them.

    Returns:
      `[..., *batch, D, C]`, one estimate for each pair.

    >>> pair = jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])
    >>> grad = dj.categorical.formulas.disarm_iw(jnp.zeros((1, 3)), *pair, jnp.array(4.0), jnp.array(2.0))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.00', '-0.67']
    """
    lifted, (z, z_tilde), (f_z, f_z_tilde), dtype = prepare(logits, (z, z_tilde), (f_z, f_z_tilde), event_ndim=2)
    logits = lifted.reshape(jnp.shape(logits))  # as the sampler has them, so that the compiler sorts them only once
    tree = trees.ascending_sticks(logits)
    rank, alpha = (bernoulli.lift(x, z.ndim) for x in (tree.rank, jnp.abs(trees.node_logits(tree, logits))))
    first = jnp.minimum(trees.at_class(z, rank), trees.at_class(z_tilde, rank))
    # The last class, whose product may be infinite, is the first of two only if both are it: then any weight will do.
    earlier = (rank < first) & (first < z.shape[-1] - 1)
    log_weight = jnp.where(earlier, -jnp.log1p(-jnp.exp(-2 * alpha)), 0)
    log_weight = jnp.where(rank == first, bernoulli.log_sigmoid(alpha), log_weight)
    weight = jnp.exp(jnp.sum(log_weight, axis=-1, keepdims=True))
    return (0.5 * (f_z - f_z_tilde)[..., None, None] * (z - z_tilde) * weight).astype(dtype)


def straight_through(logits: jax.Array, slope: jax.Array) -> jax.Array:
    """Straight-through (Bengio et al., 2013), ∇f(z) · ∂softmax: biased unless f is linear in each variable.

    Args:
      logits: `[*batch, D, C]`.
      slope: `[..., *batch, D, C]`, ∇f at a sample.

    Returns:
      `[..., *batch, D, C]`.

    >>> dj.categorical.formulas.straight_through(jnp.zeros((1, 2)), jnp.array([[4.0, 2.0]]))
    Array([[ 0.5, -0.5]], dtype=float32)
    """
    logits, (slope,), _, dtype = prepare(logits, (slope,), (), event_ndim=2)
    return _through_softmax(logits, slope).astype(dtype)


def gumbel_softmax(perturbed: jax.Array, slope: jax.Array, temperature: float) -> jax.Array:
    """Gumbel-softmax (Jang et al.; Maddison et al., 2017), ∇f · ∂softmax(x/τ)/∂x: biased, the less the smaller τ is.

    Args:
      perturbed: x, `[..., D, C]`, logits plus Gumbel noise.
      slope: `[..., D, C]`, ∇f at the largest of them as a sample, or at softmax(x/τ).
      temperature: τ.

    Returns:
      `[..., D, C]`.

    >>> dj.categorical.formulas.gumbel_softmax(jnp.zeros((1, 2)), jnp.array([[4.0, 2.0]]), 0.5)
    Array([[ 1., -1.]], dtype=float32)
    """
    perturbed, (slope,), _, dtype = prepare(perturbed, (slope,), (), name="perturbed", event_ndim=2)
    return (_through_softmax(perturbed / temperature, slope) / temperature).astype(dtype)


def reinmax(logits: jax.Array, z: jax.Array, slope: jax.Array) -> jax.Array:
    """ReinMax (Liu et al., 2023): biased unless f is at most quadratic in each variable.

    Half of straight-through and half of ∂log q(z) (z − softmax) · ∇f(z): the trapezoidal rule for the differences of f,
    where straight-through has Euler's. The same as the paper's 2 ∂softmax at (softmax + z)/2 less ½ ∂softmax.

    Args:
      logits: `[*batch, D, C]`.
      z: `[..., *batch, D, C]` samples.
      slope: `[..., *batch, D, C]`, ∇f at z.

    Returns:
      `[..., *batch, D, C]`.

    >>> dj.categorical.formulas.reinmax(jnp.zeros((1, 2)), jnp.array([[1.0, 0.0]]), jnp.array([[4.0, 2.0]]))
    Array([[ 0.5, -0.5]], dtype=float32)
    """
    logits, (z, slope), _, dtype = prepare(logits, (z, slope), (), event_ndim=2)
    score = distribution.score(logits, z)
    correction = score * jnp.sum(score * slope, axis=-1, keepdims=True)
    return (0.5 * (_through_softmax(logits, slope) + correction)).astype(dtype)


def _through_softmax(logits: jax.Array, slope: jax.Array) -> jax.Array:
    """The slope times the derivative of the softmax."""
    p = jax.nn.softmax(logits, axis=-1)
    return p * (slope - jnp.sum(p * slope, axis=-1, keepdims=True))
