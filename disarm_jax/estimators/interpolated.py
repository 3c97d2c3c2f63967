"""The paper's appendix B: a coupling between independent and antithetic, chosen by the variance it gives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimator, SampleEstimator


@contract.factory
def interpolated(*, num_pairs: int = 1, init_beta: float = 0.5, per_dimension: bool = False) -> Estimator:
    """The interpolated estimator: each coordinate of a pair is antithetic with probability β, else independent.

    ½ (f(b) − f(b̃)) (b − b̃) σ(|α|) / (β + (1−β) σ(|α|)), averaged over pairs: REINFORCE-LOO at β = 0, DisARM at β = 1.
    Unbiased for every β in [0, 1]; two evaluations of f per pair; f is not differentiated.

    `params` is `{"beta": β}`, learnt by descending `variance_loss`. β also changes the distribution of the samples,
    which that loss accounts for and the derivative of `grad` alone does not. A β that an update has taken out of [0, 1]
    acts as the nearest end of it, so that the gradient stays unbiased, and is still learnt as if it were there. At
    β = 1 exactly, the loss misses the pairs that are never drawn there, and its gradient is unbiased only from below.

    Args:
      num_pairs: number of pairs, independent of each other.
      init_beta: β at the start, in [0, 1].
      per_dimension: one β for each of the D coordinates instead of a shared one.

    Example:
      >>> est = dj.interpolated(init_beta=0.3)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> params["beta"], out.grad.shape
      (Array(0.3, dtype=float32), (5, 3))
    """
    contract.at_least("num_pairs", num_pairs, 1)

    def draw(params, key, logits):
        beta = lax.stop_gradient(beta_of(params))
        return jnp.concatenate(bernoulli.interpolated_pairs(key, logits, beta, num_pairs)), None

    def per_pair(params, logits, b, f_b):
        return formulas.interpolated(logits, *jnp.split(b, 2), *jnp.split(f_b, 2), beta_of(params))

    def log_prob(params, logits, b):
        return bernoulli.interpolated_log_prob(logits, *jnp.split(b, 2), beta_of(params))

    return _tunable_coupling(init_beta, per_dimension, draw, per_pair, log_prob)


@contract.factory
def arms_interpolated(*, num_samples: int = 4, init_beta: float = 0.5, per_dimension: bool = False) -> Estimator:
    """Between REINFORCE-LOO and ARMS: n samples, each coordinate coupled by the copula with probability β.

    1/(n−1) Σ_k (f_k − f̄)(b_k − p) · p(1−p)/c, with c = P(b_j = 1, b_k = 0) of the mixture: REINFORCE-LOO at β = 0, ARMS
    at β = 1. Unbiased for every β in [0, 1]; n evaluations of f; f is not differentiated. With two samples it is
    `interpolated`, and what is said of β there holds here.

    Args:
      num_samples: n, from 2 to 8: the law of more samples loses its digits in float32, which the learning of β needs.
      init_beta: β at the start, in [0, 1].
      per_dimension: one β for each of the D coordinates instead of a shared one.

    Example:
      >>> est = dj.arms_interpolated(num_samples=3)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> params["beta"], out.grad.shape
      (Array(0.5, dtype=float32), (5, 3))
    """
    if contract.at_least("num_samples", num_samples, 2) > 8:
        raise ValueError(f"arms_interpolated takes 2 to 8 samples, got num_samples={num_samples}")

    def draw(params, key, logits):
        beta = lax.stop_gradient(beta_of(params))
        return bernoulli.interpolated_copula_samples(key, logits, beta, num_samples), None

    def of_the_group(params, logits, b, f_b):
        return formulas.arms_interpolated(logits, b, f_b, beta_of(params))[None]

    def log_prob(params, logits, b):
        return bernoulli.interpolated_copula_log_prob(logits, b, beta_of(params))[None]

    return _tunable_coupling(init_beta, per_dimension, draw, of_the_group, log_prob)


def beta_of(params: Any) -> jax.Array:
    """β in [0, 1]; its derivative passes as if it had not been clipped."""
    beta = jnp.asarray(params["beta"])
    return lax.stop_gradient(jnp.clip(beta, 0, 1)) + (beta - lax.stop_gradient(beta))


def _tunable_coupling(
    init_beta: float, per_dimension: bool, draw: Callable, estimates: Callable, log_prob: Callable
) -> Estimator:
    """An estimator whose β is part of the law of its samples.

    Args:
      init_beta: β at the start.
      per_dimension: whether there is one for each coordinate.
      draw: the sampler, as in `SampleEstimator`.
      estimates: `(params, logits, b, f_b) -> [G, *batch, D]`, of G independent groups of samples.
      log_prob: `(params, logits, b) -> [G, *batch, D]`, log P_β of each coordinate of a group.
    """
    contract.number("init_beta", init_beta, lambda beta: 0 <= beta <= 1, "in [0, 1]")
    if not isinstance(per_dimension, bool):
        raise ValueError(f"per_dimension must be True or False, got {per_dimension!r}")

    def init(key, logits):
        logits = bernoulli.as_logits(logits)
        return {"beta": jnp.full(logits.shape[-1:] if per_dimension else (), init_beta, bernoulli.wide_dtype(logits))}

    def gradient(params, logits, b, noise, f_b):
        return jnp.mean(estimates(params, logits, b, f_b), axis=0)

    def variance_loss(params: Any, key: jax.Array, logits: jax.Array, f: Callable) -> jax.Array:
        # The groups are independent, so the variance of their mean is the sum of theirs over G². Of each, E g² is
        # differentiated in β through g and through the law of the group: g² + stop(g²) log P_β(group).
        logits = bernoulli.as_logits(logits)
        alpha = bernoulli.stop_and_widen(logits)
        b, _ = draw(params, key, alpha)
        f_b, _ = contract.evaluate(f, b.astype(logits.dtype), b.shape[:-1])
        f_b, _ = contract.widen(lax.stop_gradient(f_b), alpha)
        squares = jnp.sum(estimates(params, alpha, b, f_b) ** 2, axis=-1)
        log_p = jnp.sum(log_prob(params, alpha, b), axis=-1)
        log_p = jnp.where(jnp.isfinite(log_p), log_p, 0)  # noise on the threshold can make an impossible group
        return jnp.sum(squares + lax.stop_gradient(squares) * log_p.astype(squares.dtype)) / squares.shape[0] ** 2

    return SampleEstimator(sampler=draw, formula=gradient, init=init, variance_loss=variance_loss, of_differences=True)
