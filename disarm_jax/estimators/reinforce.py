"""REINFORCE, alone and with a leave-one-out baseline, from independent samples; they do not differentiate f."""

import jax.numpy as jnp

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, Sampler, describe
from disarm_jax.estimators.pairing import Pairing, each_with_each, weighted


def reinforce(*, num_samples: int = 1) -> SampleEstimator:
    """REINFORCE (Williams, 1992), without a baseline: f(b) ∂log q(b), averaged over independent samples.

    This is eq. 2 of the paper. The estimator is unbiased, takes one evaluation of f per sample, and does not
    differentiate f. Its variance is high, because an offset of f multiplies the noise. It is the reference that all
    others improve on.

    Paper: Williams, Simple statistical gradient-following algorithms, Machine Learning 1992
    Advice: Only if f can be evaluated once; otherwise take reinforce_loo or disarm.

    Args:
      num_samples: the number of independent samples, at least 1.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.make_estimator("reinforce")
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    options.at_least("num_samples", num_samples, 1)

    def gradient(params, logits, b, noise, f_b):
        return formulas.reinforce(logits, b, f_b)

    info = describe(reinforce, num_samples)
    return SampleEstimator(sampler=independent(num_samples), formula=gradient, info=info)


def reinforce_loo(*, num_samples: int = 2) -> SampleEstimator:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(b_k).

    The estimator is unbiased, takes K evaluations of f, and does not differentiate f. With K = 2 it is the strong
    baseline of the DisARM paper.

    Paper: Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019
    Advice: A strong baseline with many samples, or when antithetic pairs do not suit f.

    Args:
      num_samples: K, the number of independent samples, at least 2.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.reinforce_loo(num_samples=4)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    options.at_least("num_samples", num_samples, 2)

    def gradient(params, logits, b, noise, f_b):
        return formulas.reinforce_loo(logits, b, f_b)

    pairs = Pairing(each_with_each, weighted(lambda params, logits: jnp.ones_like(logits)))
    sampler, info = independent(num_samples), describe(reinforce_loo, num_samples)
    return SampleEstimator(sampler=sampler, formula=gradient, of_differences=True, pairs=pairs, info=info)


def independent(num_samples: int) -> Sampler:
    """Returns a sampler of independent samples `[num_samples, *batch, D]`."""

    def draw(params, key, logits):
        return bernoulli.sample(key, logits, num_samples), None

    return draw
