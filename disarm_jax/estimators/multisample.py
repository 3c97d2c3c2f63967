"""Estimators of the derivative of the multi-sample bound log 1/K Σ_k w(b^k), where f is log w.

Their `grad` is the derivative through sampling. The bound also depends on the logits through log w = log p − log q, and
unlike for the ELBO that term does not vanish: compute log w from logits that are *not* stopped, and the ordinary
derivative of `value` contains it (as in `disarm_jax.expectation`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import antithetic, options
from disarm_jax.estimators.estimator import EstimatorInfo, SampleEstimator, describe
from disarm_jax.estimators.pairing import Pairing, each_with_each, halves, mean_over_pairs, weighted
from disarm_jax.estimators.reinforce import independent
from disarm_jax.formulas import bounds


def vimco(*, num_samples: int = 2, baseline: str = "arithmetic", repeats: int = 1) -> SampleEstimator:
    """VIMCO (Mnih & Rezende, 2016), for the bound of K independent samples: Σ_k (L̂ − L̂^{−k}) ∂log q(b^k).

    L̂ is the K-sample bound, and L̂^{−k} a baseline that does not depend on sample k. The estimator is unbiased for the
    derivative of the K-sample bound. It takes K evaluations of log w for each repeat and does not differentiate log w.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Mnih & Rezende, Variational inference for Monte Carlo objectives, ICML 2016
    Advice: The baseline for a multi-sample bound, or when the bound needs an odd number of samples.

    Args:
      num_samples: K, the number of samples of the bound, at least 2.
      baseline: "arithmetic" (that of the paper's text) or "geometric" (that of its released code): the mean of the
        other weights that replaces w_k in L̂^{−k}.
      repeats: the number of independent estimates to average. The paper does this to compare variances at equal cost: K
        pairs of `multisample_disarm` with two repeats of VIMCO.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.vimco(num_samples=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3))
    """
    options.at_least("num_samples", num_samples, 2)
    bounds.check_baseline(baseline)
    options.at_least("repeats", repeats, 1)

    def linear(params, logits, b, noise, h_b):
        return formulas.reinforce_loo(logits, b, h_b)

    formula = functools.partial(formulas.vimco, baseline=baseline)
    info = describe(vimco, num_samples * repeats, objective="bound")
    sampler = independent(num_samples * repeats)
    return bound_of_repeats(repeats, formula, sampler=sampler, linear=linear, info=info)


def multisample_disarm(*, num_pairs: int = 1, configurations: str = "paper") -> SampleEstimator:
    """DisARM for the multi-sample bound, applied locally to each of the K samples (section 3.2 of the paper).

    Each sample of the bound is an antithetic pair. The estimator is unbiased for the derivative of the K-sample bound.
    It takes 2K evaluations of log w and does not differentiate log w. `value` is the mean of the two K-sample bounds,
    of the b and of the b̃. With one pair it is DisARM on log w.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Dong, Mnih & Tucker, NeurIPS 2020, section 3.2
    Advice: The default for a multi-sample bound; K pairs optimise the K-sample bound.

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.
      configurations: the sets of companions b^{−k} among which each sample is compared with its partner; the estimate
        is the average over the sets. "paper" has two sets: all b, and all b̃. "all" has all 2^{K−1} ways to take b or
        b̃ of every other pair, which never has more variance; it requires K ≤ 12. "cyclic" has 2(K−1) of these, for any
        K. No choice takes more evaluations of log w.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.multisample_disarm(num_pairs=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3))
    """
    bounds.check_configurations(configurations, options.at_least("num_pairs", num_pairs, 1))
    info = describe(multisample_disarm, 2 * num_pairs, objective="bound")
    formula = functools.partial(formulas.multisample_disarm, configurations=configurations)
    pairs = antithetic.antithetic(num_pairs, lambda log_w: bounds.companions(*halves(log_w), configurations))
    return _local_disarm(num_pairs, formula, info, pairs)


def multisample_arms(*, num_samples: int = 1, group_size: int = 4) -> SampleEstimator:
    """ARMS for the multi-sample bound, applied locally to each of K samples: `multisample_disarm` with larger groups.

    Each of the K samples is drawn n times by the Dirichlet copula. The estimator is unbiased for the derivative of the
    K-sample bound. It takes K n evaluations of log w and does not differentiate log w. `value` is the mean of n
    K-sample bounds. With one sample it is ARMS on log w; with groups of two it is `multisample_disarm`.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Dimitriev & Zhou, ICML 2021, applied as in Dong, Mnih & Tucker, NeurIPS 2020, section 3.2
    Advice: For a multi-sample bound with more than two evaluations per sample of it.

    Args:
      num_samples: K, the number of samples of the bound, at least 1.
      group_size: n, the number of coupled samples in the place of each one, at least 2.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.make_estimator("multisample_arms", num_samples=5, group_size=3)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3))
    """
    options.at_least("num_samples", num_samples, 1)
    options.at_least("group_size", group_size, 2)

    def by_group(array):
        return array.reshape(group_size, num_samples, *array.shape[1:])

    def draw(params, key, logits):
        repeated = jnp.broadcast_to(logits, (num_samples, *logits.shape))
        b = bernoulli.copula_samples(key, repeated, group_size)
        return b.reshape(group_size * num_samples, *logits.shape), None

    def gradient(params, logits, b, noise, log_w):
        return formulas.multisample_arms(logits, by_group(b), by_group(log_w))

    def value(log_w):
        return jnp.mean(jax.vmap(formulas.bound)(by_group(log_w)), axis=0)

    def linear(params, logits, b, noise, h_b):
        of_group = jax.vmap(lambda b, h_b: formulas.arms(logits, b, h_b), in_axes=1)
        return jnp.mean(of_group(by_group(b), by_group(h_b)), axis=0)

    def split(samples):
        first, second = each_with_each(by_group(samples))
        return first.reshape(-1, *samples.shape[1:]), second.reshape(-1, *samples.shape[1:])

    def companions(log_w):
        by_set = jax.vmap(bounds.leave_one_out)(by_group(log_w))
        num_pairs = group_size * (group_size - 1) // 2  # in each group, each with the same companions
        return jnp.tile(by_set, (1, num_pairs, *(1,) * (by_set.ndim - 2)))

    weight = weighted(lambda params, logits: num_samples * bernoulli.copula_weight(logits, group_size))
    pairs = Pairing(split, weight, companions)
    info = describe(multisample_arms, num_samples * group_size, objective="bound")
    return SampleEstimator(sampler=draw, formula=gradient, value=value, linear=linear, pairs=pairs, info=info)


def naive_multisample_disarm(*, num_pairs: int = 1) -> SampleEstimator:
    """DisARM for the multi-sample bound with all K samples as one long vector of bits: the paper's negative result.

    The estimator is unbiased for the derivative of the K-sample bound. It takes 2K evaluations of log w and does not
    differentiate log w. It is meant for comparison with the local form, `multisample_disarm`, which has less variance.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Dong, Mnih & Tucker, NeurIPS 2020, section 3.2 (their negative result)
    Advice: To show what the local form gains; not for use.

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.make_estimator("naive_multisample_disarm", num_pairs=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3))
    """
    info = describe(naive_multisample_disarm, 2 * options.at_least("num_pairs", num_pairs, 1), objective="bound")
    return _local_disarm(num_pairs, formulas.naive_multisample_disarm, info)


def _local_disarm(
    num_pairs: int, formula: Callable, info: EstimatorInfo, pairs: Pairing | None = None
) -> SampleEstimator:
    sampler, linear = antithetic.stacked_pairs(num_pairs), mean_over_pairs(formulas.disarm)
    return bound_of_pairs(formula, sampler=sampler, linear=linear, pairs=pairs, info=info)


def bound_of_pairs(formula: Callable, **parts: Any) -> SampleEstimator:
    """Makes an estimator of the bound from pairs stacked as [b_1, …, b_K, b̃_1, …, b̃_K].

    Args:
      formula: `(logits, b, b_tilde, log_w, log_w_tilde) -> grad`.
      **parts: the other fields of the `SampleEstimator`.
    """

    def gradient(params, logits, b, noise, log_w):
        return formula(logits, *jnp.split(b, 2), *jnp.split(log_w, 2))

    def value(log_w):
        log_w, log_w_tilde = jnp.split(log_w, 2)
        return 0.5 * (formulas.bound(log_w) + formulas.bound(log_w_tilde))

    return SampleEstimator(formula=gradient, value=value, **parts)


def bound_of_repeats(repeats: int, formula: Callable, **parts: Any) -> SampleEstimator:
    """Makes an estimator of the bound that averages several independent estimates.

    Args:
      repeats: the number of estimates, each from the same number of samples.
      formula: `(logits, b, log_w) -> grad`.
      **parts: the other fields of the `SampleEstimator`.
    """

    def by_repeat(array):
        return array.reshape(repeats, -1, *array.shape[1:])

    def gradient(params, logits, b, noise, log_w):
        one_repeat = functools.partial(formula, logits)
        return jnp.mean(jax.vmap(one_repeat)(by_repeat(b), by_repeat(log_w)), axis=0)

    def value(log_w):
        return jnp.mean(jax.vmap(formulas.bound)(by_repeat(log_w)), axis=0)

    return SampleEstimator(formula=gradient, value=value, **parts)
