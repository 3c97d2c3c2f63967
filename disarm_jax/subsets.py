"""Subsets of exactly k of n elements: the conditional Bernoulli distribution, of independent bits given that k are one.

A subset b has a probability proportional to exp(b·logits). All functions follow from one recursion over the bits, in
O(nk). Let R_i(r) be the probability that r of the bits i, …, n are one. Given that r elements are still to be chosen
from these, bit i is one with the logit

    λ_i(r) = α_i + log R_{i+1}(r − 1) − log R_{i+1}(r),

so that a subset is drawn bit by bit, exactly. A common shift of the logits changes nothing. Here it is chosen such that
the mean number of ones is k, so that the probabilities that matter are far from zero for any n and k.

Logits have the shape `[*batch, n]`, subsets `[..., n]` are 0 and 1 as floats, and k is a Python integer. Logits of ±∞
are certain and impossible elements. If they leave no subset of size k, or if a logit is NaN, all results are NaN.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, describe
from disarm_jax.estimators.first_order import vary_like

__all__ = ["entropy", "log_prob", "marginals", "reinforce_loo", "sample", "straight_through"]

_LOG_ZERO = -1e30  # stands for log 0: sums of many are finite in float32, and no difference of two is NaN
_IMPOSSIBLE = 0.5 * _LOG_ZERO


def log_prob(logits: jax.Array, b: jax.Array, k: int) -> jax.Array:
    """Computes the log-probability of subsets. It is differentiable in the logits, with the derivative b − marginals.

    Args:
      logits: `[*batch, n]`.
      b: `[..., *batch, n]`, 0 and 1.
      k: the size of a subset.

    Returns:
      `[..., *batch]`; −∞ for a b that does not have k ones, or that contradicts an infinite logit.

    Raises:
      ValueError: if k is not an integer from 0 to n, or b does not fit the logits.

    >>> f"{jnp.exp(dj.subsets.log_prob(jnp.zeros(4), jnp.array([1.0, 0.0, 1.0, 0.0]), 2)):.4f}"
    '0.1667'
    """
    given = _check(logits, k)
    b = jnp.asarray(b).astype(given.dtype)
    if b.ndim < given.ndim or b.shape[b.ndim - given.ndim :] != given.shape:
        raise ValueError(f"subsets of shape {b.shape} do not fit logits of shape {given.shape}")
    alpha = _center(given, k)
    one, zero = (bernoulli.lift(bernoulli.log_sigmoid(x), b.ndim) for x in (alpha, -alpha))
    total = bernoulli.lift(_log_total(alpha, k), b.ndim - 1)
    value = jnp.sum(jnp.where(b == 1, one, zero), axis=-1) - total
    of_size_k = (jnp.sum(b, axis=-1) == k) & jnp.all((b == 0) | (b == 1), axis=-1)
    value = jnp.where(of_size_k & (value > _IMPOSSIBLE), value, -jnp.inf)
    return _or_nan(bernoulli.lift(_exists(given, k), b.ndim - 1), value).astype(jnp.asarray(logits).dtype)


def sample(key: jax.Array, logits: jax.Array, k: int, num_samples: int) -> jax.Array:
    """Draws independent subsets.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, n]`.
      k: the size of a subset.
      num_samples: the number of subsets.

    Returns:
      Subsets `[num_samples, *batch, n]` in the dtype of the logits.

    >>> print(dj.subsets.sample(jax.random.key(0), jnp.array([-40.0, 0.0, 40.0, 40.0]), 2, 2))
    [[0. 0. 1. 1.]
     [0. 0. 1. 1.]]
    """
    given = lax.stop_gradient(_check(logits, k))
    bernoulli.check_number("num_samples", num_samples)
    choices = _choices(_center(given, k), k)
    noise = bernoulli.logistic_noise(key, (given.shape[-1], num_samples, *given.shape[:-1]), given.dtype)
    start = vary_like(jnp.full(noise.shape[1:], k, np.int32), choices, noise)
    _, taken = lax.scan(_choose, start, (choices, noise))
    b = jnp.moveaxis(taken, 0, -1).astype(given.dtype)
    return _or_nan(_exists(given, k)[None, ..., None], b).astype(jnp.asarray(logits).dtype)


def marginals(logits: jax.Array, k: int) -> jax.Array:
    """Computes the probability that each element is in the subset, which is also the mean of b.

    Args:
      logits: `[*batch, n]`.
      k: the size of a subset.

    Returns:
      `[*batch, n]`, probabilities that sum to k; differentiable in the logits.

    >>> print(dj.subsets.marginals(jnp.array([0.0, 0.0, jnp.inf, -jnp.inf]), 2))
    [0.5 0.5 1.  0. ]
    """
    given = _check(logits, k)
    chances, _ = _walk(_choices(_center(given, k), k))
    chances = chances + lax.stop_gradient(jnp.clip(chances, 0, 1) - chances)  # a rounding error above 1
    return _or_nan(_exists(given, k)[..., None], jnp.moveaxis(chances, 0, -1)).astype(jnp.asarray(logits).dtype)


def entropy(logits: jax.Array, k: int) -> jax.Array:
    """Computes the entropy of the distribution in nats, as a sum over the choices that has no negative term.

    Args:
      logits: `[*batch, n]`.
      k: the size of a subset.

    Returns:
      `[*batch]`; differentiable in the logits.

    >>> f"{jnp.exp(dj.subsets.entropy(jnp.zeros(4), 2)):.4f}"  # there are six subsets
    '6.0000'
    """
    given = _check(logits, k)
    _, entropies = _walk(_choices(_center(given, k), k))
    return _or_nan(_exists(given, k), jnp.sum(entropies, axis=0)).astype(jnp.asarray(logits).dtype)


def straight_through(key: jax.Array, logits: jax.Array, k: int) -> jax.Array:
    """Draws one subset that is differentiable with respect to the logits; the gradient is biased.

    This is `disarm_jax.sample` for subsets. The value is 0 and 1, and the derivative is that of the marginals, which is
    the covariance of the subset. The gradient is exact for a loss that is linear in b, and biased otherwise.

    Paper: the marginals in place of the sample as in Ahmed et al., SIMPLE: A gradient estimator for k-subset sampling,
      ICLR 2023

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, n]`.
      k: the size of the subset.

    Returns:
      One subset `[*batch, n]` in the dtype of the logits.

    >>> logits, weights = jnp.zeros(4), jnp.array([3.0, 1.0, -2.0, 0.0])
    >>> loss = lambda logits: dj.subsets.straight_through(jax.random.key(0), logits, 2) @ weights
    >>> [f"{g:.4f}" for g in jax.grad(loss)(logits)]  # exact, because the loss is linear
    ['0.8333', '0.1667', '-0.8333', '-0.1667']
    """
    mean = marginals(logits, k)
    return sample(key, logits, k, 1)[0] + (mean - lax.stop_gradient(mean))


def reinforce_loo(k: int, *, num_samples: int = 2) -> SampleEstimator:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019) for subsets: 1/(K−1) Σ_j (f_j − f̄) ∂log q(b_j).

    ∂log q(b) is b minus the marginals, which cancel, so that this is the covariance of f and b, as for independent
    bits. The estimator is unbiased, takes K evaluations of f, and does not differentiate f. It works with
    `expectation`, `gradient_variance`, and its methods `draw` and `tell`, but not with control variates and chains,
    which require independent bits.

    Paper: Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019
    Advice: For any function of exactly k of n elements.

    Args:
      k: the size of a subset.
      num_samples: K, the number of independent subsets, at least 2.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.subsets.reinforce_loo(2, num_samples=4)
      >>> f = lambda b: (b @ jnp.arange(5.0)) ** 2  # two of five
      >>> jax.grad(lambda logits: dj.expectation(est)((), jax.random.key(0), logits, f))(jnp.zeros(5)).shape
      (5,)
    """
    options.at_least("k", k, 0)
    options.at_least("num_samples", num_samples, 2)

    def draw(params, key, logits):
        return sample(key, logits, k, num_samples), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.reinforce_loo(logits, b, f_b)

    info = describe(reinforce_loo, num_samples)
    return SampleEstimator(sampler=draw, formula=gradient, of_differences=True, independent=False, info=info)


def _check(logits: jax.Array, k: int) -> jax.Array:
    """Returns the logits in float32 or wider. Raises TypeError or ValueError if the logits or k are not accepted."""
    logits = bernoulli.wide(bernoulli.as_logits(logits))
    if options.at_least("k", k, 0) > logits.shape[-1]:
        raise ValueError(f"k must be at most the number of logits, {logits.shape[-1]}, got {k}")
    return logits


def _exists(logits: jax.Array, k: int) -> jax.Array:
    """Returns whether there is a subset of k, `[*batch]`."""
    certain, possible = jnp.sum(logits == jnp.inf, axis=-1), jnp.sum(logits > -jnp.inf, axis=-1)
    return (certain <= k) & (k <= possible) & ~jnp.any(jnp.isnan(logits), axis=-1)


def _or_nan(exists: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.where(exists, value, jnp.nan)


def _center(logits: jax.Array, k: int) -> jax.Array:
    """Shifts the logits such that the probabilities of independent bits sum to k, and makes them finite.

    The shift is found by bisection, and carries no derivative, because nothing depends on it.
    """
    still, infinite = lax.stop_gradient(logits), jnp.isinf(logits)
    margin = math.log(max(logits.shape[-1], 2)) + 1
    low = jnp.min(jnp.where(infinite, jnp.inf, still), axis=-1, keepdims=True) - margin
    high = jnp.max(jnp.where(infinite, -jnp.inf, still), axis=-1, keepdims=True) + margin
    low, high = (jnp.where(jnp.isfinite(end), end, jnp.zeros_like(end)) for end in (low, high))
    low, high, *_ = lax.fori_loop(0, 40, _halve, (low, high, still, jnp.full_like(low, k)))
    shifted = jnp.where(infinite, jnp.zeros_like(logits), logits - 0.5 * (low + high))
    return jnp.where(infinite, -_LOG_ZERO * jnp.sign(still), shifted)


def _log_total(alpha: jax.Array, k: int) -> jax.Array:
    """Computes the log-probability `[*batch]` that k independent bits are one."""
    return lax.scan(_add_total, _none_yet(alpha, k), jnp.moveaxis(alpha, -1, 0))[0][..., k]


def _choices(alpha: jax.Array, k: int) -> jax.Array:
    """Computes the logits λ_i(r) `[n, *batch, k + 1]` of taking element i."""
    return lax.scan(_add_bit, _none_yet(alpha, k), jnp.moveaxis(alpha, -1, 0), reverse=True)[1]


def _walk(choices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Follows the distribution of how many are left; returns chances and entropies of the choices, `[n, *batch]`."""
    start = jnp.zeros_like(choices[0]).at[..., -1].set(1)
    return lax.scan(_decide, start, choices)[1]


# The steps of the loops. They close over nothing, so that JAX need not trace them again at every call.


def _halve(_, ends: tuple) -> tuple:
    low, high, logits, k = ends
    middle = 0.5 * (low + high)
    too_many = jnp.sum(jax.nn.sigmoid(logits - middle), axis=-1, keepdims=True) > k
    return jnp.where(too_many, middle, low), jnp.where(too_many, high, middle), logits, k


def _none_yet(alpha: jax.Array, k: int) -> jax.Array:
    """Returns log R(r) `[*batch, k + 1]` of no bits."""
    start = jnp.where(jnp.arange(k + 1) == 0, 0.0, _LOG_ZERO).astype(alpha.dtype)
    return bernoulli.lift(start, alpha.ndim) + jnp.zeros_like(alpha[..., :1])


def _add_bit(later: jax.Array, logit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns log R_i(r) from log R_{i+1}(r), and the logit λ_i(r)."""
    fewer = jnp.concatenate([jnp.full_like(later[..., :1], _LOG_ZERO), later[..., :-1]], axis=-1)
    one, zero = (bernoulli.log_sigmoid(x)[..., None] for x in (logit, -logit))
    return jnp.maximum(jnp.logaddexp(fewer + one, later + zero), _LOG_ZERO), logit[..., None] + fewer - later


def _add_total(later: jax.Array, logit: jax.Array) -> tuple[jax.Array, None]:
    return _add_bit(later, logit)[0], None


def _choose(left: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    choice, noise = step
    logit = jnp.take_along_axis(choice[None], left[..., None], axis=-1)[..., 0]
    taken = logit + noise > 0
    return left - taken.astype(left.dtype), taken


def _decide(left: jax.Array, logit: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    taken, kept = left * jax.nn.sigmoid(logit), left * jax.nn.sigmoid(-logit)
    fewer = jnp.concatenate([taken[..., 1:], jnp.zeros_like(taken[..., :1])], axis=-1)
    surprise = taken * bernoulli.softplus(-logit) + kept * bernoulli.softplus(logit)
    return kept + fewer, (jnp.sum(taken, axis=-1), jnp.sum(surprise, axis=-1))
