"""Appendix B of the paper: a coupling between independent and antithetic, chosen by the variance that it gives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import EstimatorInfo, Formula, SampleEstimator, Sampler, describe
from disarm_jax.estimators.pairing import Pairing, each_with_each, halves, weighted


def interpolated(*, num_pairs: int = 1, init_beta: float = 0.5, per_dimension: bool = False) -> SampleEstimator:
    """Between REINFORCE-LOO and DisARM: each coordinate of a pair is antithetic with probability β, else independent.

    The estimate is ½ (f(b) − f(b̃)) (b − b̃) σ(|α|) / (β + (1−β) σ(|α|)), averaged over the pairs: REINFORCE-LOO at β =
    0, DisARM at β = 1. It is unbiased for every β in [0, 1]. Each pair takes two evaluations of f, and f is not
    differentiated.

    β is learnt by descending `variance_loss`. It also changes the distribution of the samples, which this loss takes
    into account, and the derivative of `grad` alone does not. A β that an update has taken out of [0, 1] acts as the
    nearest end of the interval, so that the gradient stays unbiased, and is still learnt as if it were at that end. At
    exactly β = 1, the loss misses the pairs that are never drawn there, and its gradient is unbiased only from below.

    Paper: Dong, Mnih & Tucker, NeurIPS 2020, appendix B
    Advice: When you cannot say whether antithetic pairs suit your f: it learns how antithetic to be.

    Args:
      num_pairs: the number of pairs, at least 1; the pairs are independent of each other.
      init_beta: the initial value of β, in [0, 1].
      per_dimension: whether each of the D coordinates has its own β, instead of a shared one.

    Returns:
      An estimator whose `params` is `{"beta": β}`, with β a scalar or `[D]`.

    Example:
      >>> est = dj.make_estimator("interpolated", init_beta=0.3)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> params["beta"], out.grad.shape
      (Array(0.3, dtype=float32), (5, 3))
    """
    options.at_least("num_pairs", num_pairs, 1)

    def draw(params, key, logits):
        beta = lax.stop_gradient(params["beta"])
        return jnp.concatenate(bernoulli.interpolated_pairs(key, logits, beta, num_pairs)), None

    def gradient(params, logits, b, noise, f_b):
        pairs = formulas.interpolated(logits, *jnp.split(b, 2), *jnp.split(f_b, 2), beta=params["beta"])
        return jnp.mean(pairs, axis=0)

    def log_prob(params, logits, b):
        return jnp.sum(bernoulli.interpolated_log_prob(logits, *jnp.split(b, 2), beta=params["beta"]), axis=(0, -1))

    pairs = Pairing(halves, _mixed(lambda logits: jax.nn.sigmoid(jnp.abs(logits))))
    info = describe(interpolated, 2 * num_pairs)
    return _tunable_coupling(init_beta, per_dimension, draw, gradient, log_prob, pairs, info)


def arms_interpolated(*, num_samples: int = 4, init_beta: float = 0.5, per_dimension: bool = False) -> SampleEstimator:
    """Between REINFORCE-LOO and ARMS: each coordinate of n samples is coupled by the copula with probability β.

    The estimate is 1/(n−1) Σ_k (f_k − f̄)(b_k − p) · p(1−p)/c, where c = P(b_j = 1, b_k = 0) is that of the mixture:
    REINFORCE-LOO at β = 0, ARMS at β = 1. It is unbiased for every β in [0, 1], takes n evaluations of f, and does not
    differentiate f. With two samples it is `interpolated`, whose documentation also applies to the β here.

    Paper: Dimitriev & Zhou, ICML 2021, with the mixture of Dong, Mnih & Tucker, NeurIPS 2020, appendix B
    Advice: When you cannot say whether antithetic samples suit your f: it learns how antithetic to be.

    Args:
      num_samples: n, from 2 to 8. With more samples, their probabilities, from which β is learnt, would lose precision.
      init_beta: the initial value of β, in [0, 1].
      per_dimension: whether each of the D coordinates has its own β, instead of a shared one.

    Returns:
      An estimator whose `params` is `{"beta": β}`, with β a scalar or `[D]`.

    Example:
      >>> est = dj.make_estimator("arms_interpolated", num_samples=3)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> params["beta"], out.grad.shape
      (Array(0.5, dtype=float32), (5, 3))
    """
    if options.at_least("num_samples", num_samples, 2) > 8:
        raise ValueError(f"arms_interpolated takes 2 to 8 samples, got num_samples={num_samples}")

    def draw(params, key, logits):
        beta = lax.stop_gradient(params["beta"])
        return bernoulli.interpolated_copula_samples(key, logits, beta, num_samples), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.arms_interpolated(logits, b, f_b, params["beta"])

    def log_prob(params, logits, b):
        return jnp.sum(bernoulli.interpolated_copula_log_prob(logits, b, params["beta"]), axis=-1)

    pairs = Pairing(each_with_each, _mixed(lambda logits: bernoulli.copula_weight(logits, num_samples)))
    info = describe(arms_interpolated, num_samples)
    return _tunable_coupling(init_beta, per_dimension, draw, gradient, log_prob, pairs, info)


def _mixed(coupled: Callable[[jax.Array], jax.Array]) -> Callable:
    """Returns the factor (b − b̃) p(1−p)/c of pairs that are coupled with probability β, from the one for β = 1."""

    def weight(params, logits):
        at_one, beta = coupled(logits), bernoulli.mixing_weight(params["beta"], logits.dtype, logits.ndim)
        return at_one / (beta + (1 - beta) * at_one)

    return weighted(weight)


def _tunable_coupling(
    init_beta: float,
    per_dimension: bool,
    sampler: Sampler,
    formula: Formula,
    log_prob: Callable,
    pairs: Pairing,
    info: EstimatorInfo,
) -> SampleEstimator:
    """Makes an estimator whose β is a parameter of the distribution of its samples; the arguments are its parts."""
    options.number("init_beta", init_beta, lambda beta: 0 <= beta <= 1, "in [0, 1]")
    options.flag("per_dimension", per_dimension)

    def init(key: jax.Array, logits: jax.Array) -> dict:
        logits = bernoulli.as_logits(logits)
        return {"beta": jnp.full(logits.shape[-1:] if per_dimension else (), init_beta, bernoulli.wide_dtype(logits))}

    return SampleEstimator(
        init=init,
        sampler=sampler,
        formula=formula,
        log_prob=log_prob,
        of_differences=True,
        pairs=pairs,
        tunables=("beta",),
        info=info,
    )
