"""The estimators for classes as formulas: arrays in, arrays out, like `disarm_jax.formulas` for bits.

`z` and `z_tilde` are one-hot of shape `[..., D, C]`; `f_z` and `f_z_tilde` have the shape `[...]`. A formula for a pair
accepts any leading axes. A formula for K samples expects the sample axis first and sums over it. `logits` have the
shape `[*batch, D, C]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.categorical import distribution, trees
from disarm_jax.formulas import bounds
from disarm_jax.formulas.arrays import check_samples, covariance, prepare

__all__ = [
    "disarm_iw",
    "disarm_sb",
    "disarm_tree",
    "gumbel_softmax",
    "multisample_disarm",
    "reinforce_loo",
    "reinmax",
    "straight_through",
    "vimco",
]


def reinforce_loo(logits: jax.Array, z: jax.Array, f_z: jax.Array) -> jax.Array:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(z_k).

    It is computed as the sample covariance of f and z, as for bits.

    Args:
      logits: `[*batch, D, C]`; only their shape and dtype matter.
      z: `[K, *batch, D, C]`, independent samples, K ≥ 2.
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
    """DisARM-SB (Dong, Mnih & Tucker, 2021): DisARM for the binary choices of stick-breaking.

    Let α be the logit of a choice, p its probability, and b, b̃ the choices of the two samples. The gradient with
    respect to α is ½ (f(z) − f(z̃)) times (b − b̃) σ(|α|) if both samples have reached the choice, b − p if only z has,
    p − b̃ if only z̃ has, and 0 if neither has. This is the conditional expectation, given the classes, of DisARM for all
    choices. The chain rule converts it to a gradient with respect to the logits of the classes.

    Args:
      logits: `[*batch, D, C]`.
      z, z_tilde: `[..., *batch, D, C]`, pairs of `antithetic_pairs` along `sticks`.
      f_z, f_z_tilde: `[..., *batch]`, f at z and z̃.

    Returns:
      `[..., *batch, D, C]`, one estimate for each pair.

    >>> pair = jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])
    >>> grad = dj.categorical.formulas.disarm_sb(jnp.zeros((1, 3)), *pair, jnp.array(4.0), jnp.array(2.0))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.17', '-0.83']
    """
    return _disarm_of_choices(trees.sticks, logits, z, z_tilde, f_z, f_z_tilde)


def disarm_tree(logits: jax.Array, z: jax.Array, z_tilde: jax.Array, f_z: jax.Array, f_z_tilde: jax.Array) -> jax.Array:
    """DisARM-Tree (Dong, Mnih & Tucker, 2021): the formula of `disarm_sb` for pairs along `balanced_tree`.

    Args:
      logits: `[*batch, D, C]`.
      z, z_tilde: `[..., *batch, D, C]`, pairs of `antithetic_pairs` along `balanced_tree`.
      f_z, f_z_tilde: `[..., *batch]`, f at z and z̃.

    Returns:
      `[..., *batch, D, C]`, one estimate for each pair.

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
    """DisARM-IW (Dong, Mnih & Tucker, 2021): REINFORCE-LOO of a coupled pair with an importance weight.

    The estimate is ½ (f(z) − f(z̃)) (z − z̃) w with w = q(z) q(z̃) / P(z, z̃). The pair is drawn along sticks in ascending
    order of the logits, for which every pair of different classes is possible: at all nodes but the last one with a
    choice, the probability of going on to later classes is at least ⅔, so both samples can go on. In that order,
    w = σ(|α_n|) Π_{i<n} 1 / (1 − e^{−2 α_i}) < 2, where α_i ≥ 0 is the logit of going on at class i and n is the
    earlier one of the two classes.

    Args:
      logits: `[*batch, D, C]`, in any order.
      z, z_tilde: `[..., *batch, D, C]`, pairs of `antithetic_pairs` along `ascending_sticks(logits)`.
      f_z, f_z_tilde: `[..., *batch]`, f at z and z̃.

    Returns:
      `[..., *batch, D, C]`, one estimate for each pair.

    >>> pair = jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])
    >>> grad = dj.categorical.formulas.disarm_iw(jnp.zeros((1, 3)), *pair, jnp.array(4.0), jnp.array(2.0))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.00', '-0.67']
    """
    lifted, (z, z_tilde), (f_z, f_z_tilde), dtype = prepare(logits, (z, z_tilde), (f_z, f_z_tilde), event_ndim=2)
    logits = lifted.reshape(jnp.shape(logits))  # of the sampler's shape, so that the compiler sorts them only once
    tree = trees.ascending_sticks(logits)
    rank, alpha = (bernoulli.lift(x, z.ndim) for x in (tree.rank, jnp.abs(trees.node_logits(tree, logits))))
    first = jnp.minimum(trees.at_class(z, rank), trees.at_class(z_tilde, rank))
    # The product for the last class may be infinite. It is used only if both samples are that class, and z − z̃ is zero.
    earlier = (rank < first) & (first < z.shape[-1] - 1)
    log_weight = jnp.where(earlier, -jnp.log1p(-jnp.exp(-2 * alpha)), 0)
    log_weight = jnp.where(rank == first, bernoulli.log_sigmoid(alpha), log_weight)
    weight = jnp.exp(jnp.sum(log_weight, axis=-1, keepdims=True))
    return (0.5 * (f_z - f_z_tilde)[..., None, None] * (z - z_tilde) * weight).astype(dtype)


def vimco(logits: jax.Array, z: jax.Array, log_w: jax.Array, *, baseline: str = "arithmetic") -> jax.Array:
    """VIMCO (Mnih & Rezende, 2016): Σ_k (L̂ − L̂^{−k}) ∂log q(z^k), as `disarm_jax.formulas.vimco` for bits.

    Args:
      logits: `[*batch, D, C]`.
      z: `[K, *batch, D, C]`, independent samples, K ≥ 2.
      log_w: `[K, *batch]`, log-weights of the samples.
      baseline: "arithmetic" or "geometric".

    Returns:
      `[*batch, D, C]`, for the K-sample bound, without the pathwise term.

    >>> z = jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> dj.categorical.formulas.vimco(jnp.zeros((1, 2)), z, jnp.array([2.0, 2.0]))
    Array([[0., 0.]], dtype=float32)
    """
    bounds.check_baseline(baseline)
    lifted, (z,), (log_w,), dtype = prepare(logits, (z,), (log_w,), event_ndim=2)
    check_samples("vimco", z)
    signal = bounds.vimco_signal(log_w, baseline)
    return jnp.sum(signal[..., None, None] * distribution.score(lifted, z), axis=0).astype(dtype)


def multisample_disarm(
    logits: jax.Array,
    z: jax.Array,
    z_tilde: jax.Array,
    log_w: jax.Array,
    log_w_tilde: jax.Array,
    *,
    coupling: str = "iw",
    configurations: str = "paper",
) -> jax.Array:
    """Coupled pairs applied locally to each sample of the bound, as `disarm_jax.formulas.multisample_disarm` for bits.

    The estimate is the sum over the pairs of `disarm_iw`, `disarm_sb` or `disarm_tree` with the bounds that z^k and z̃^k
    have among their companions in the place of f.

    Args:
      logits: `[*batch, D, C]`.
      z, z_tilde: `[K, *batch, D, C]`, K pairs of the coupling.
      log_w, log_w_tilde: `[K, *batch]`, their log-weights.
      coupling: "iw", "sb" or "tree".
      configurations: the choices of companions: "paper", "cyclic" or "all".

    Returns:
      `[*batch, D, C]`, for the K-sample bound, without the pathwise term.

    >>> pair = jnp.array([[[1.0, 0.0, 0.0]]]), jnp.array([[[0.0, 0.0, 1.0]]])
    >>> grad = dj.categorical.formulas.multisample_disarm(jnp.zeros((1, 3)), *pair, jnp.array([4.0]), jnp.array([2.0]))
    >>> [f"{g:.2f}" for g in grad[0]]
    ['0.67', '0.00', '-0.67']
    """
    if coupling not in COUPLINGS:
        raise ValueError(f"unknown coupling {coupling!r}; accepted: {', '.join(COUPLINGS)}")
    _, _, (wide, wide_tilde), _ = prepare(logits, (z, z_tilde), (log_w, log_w_tilde), event_ndim=2)
    signal = bounds.pair_signal(wide, wide_tilde, configurations)
    grads = COUPLINGS[coupling](logits, z, z_tilde, signal, -signal)
    return jnp.sum(bernoulli.wide(grads), axis=0).astype(jnp.asarray(logits).dtype)


COUPLINGS = {"iw": disarm_iw, "sb": disarm_sb, "tree": disarm_tree}


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
    """Gumbel-softmax (Jang et al.; Maddison et al., 2017), ∇f · ∂softmax(x/τ)/∂x: biased.

    The bias vanishes as τ → 0 if ∇f is taken at softmax(x/τ).

    Args:
      perturbed: x, `[..., D, C]`, logits plus Gumbel noise.
      slope: `[..., D, C]`, ∇f at the sample, which is the class of the largest x, or at softmax(x/τ).
      temperature: τ.

    Returns:
      `[..., D, C]`.

    >>> dj.categorical.formulas.gumbel_softmax(jnp.zeros((1, 2)), jnp.array([[4.0, 2.0]]), 0.5)
    Array([[ 1., -1.]], dtype=float32)
    """
    perturbed, (slope,), _, dtype = prepare(perturbed, (slope,), (), name="perturbed", event_ndim=2)
    return (_through_softmax(perturbed / temperature, slope) / temperature).astype(dtype)


def reinmax(logits: jax.Array, z: jax.Array, slope: jax.Array, temperature: float = 1.0) -> jax.Array:
    """ReinMax (Liu et al., 2023): biased unless f is at most quadratic in each variable.

    The estimate is the mean of straight-through and ∂log q(z) (z − softmax) · ∇f(z). It approximates differences of f
    by the trapezoidal rule, where straight-through uses Euler's method. It equals the form of the ReinMax paper,
    2 ∂softmax at (softmax + z)/2 minus ½ ∂softmax, in which a temperature divides the logits of the first term; it is
    then biased for a quadratic f too.

    Args:
      logits: `[*batch, D, C]`.
      z: `[..., *batch, D, C]`, samples.
      slope: `[..., *batch, D, C]`, ∇f at z.
      temperature: that of the first term.

    Returns:
      `[..., *batch, D, C]`.

    >>> dj.categorical.formulas.reinmax(jnp.zeros((1, 2)), jnp.array([[1.0, 0.0]]), jnp.array([[4.0, 2.0]]))
    Array([[ 0.5, -0.5]], dtype=float32)
    """
    logits, (z, slope), _, dtype = prepare(logits, (z, slope), (), event_ndim=2)
    tempered = logits / temperature
    score = distribution.score(tempered, z)
    correction = score * jnp.sum(score * slope, axis=-1, keepdims=True)
    through = _through_softmax(tempered, slope) - 0.5 * _through_softmax(logits, slope)
    return (through + 0.5 * correction).astype(dtype)


def _through_softmax(logits: jax.Array, slope: jax.Array) -> jax.Array:
    """Multiplies the slope by the derivative of the softmax."""
    p = jax.nn.softmax(logits, axis=-1)
    return p * (slope - jnp.sum(p * slope, axis=-1, keepdims=True))
