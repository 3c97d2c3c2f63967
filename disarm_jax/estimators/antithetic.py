"""ARM and DisARM: estimators from antithetic pairs of samples, which do not differentiate f."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, Sampler, describe
from disarm_jax.estimators.pairing import Pairing, halves, mean_over_pairs, weighted


def arm(*, num_pairs: int = 1) -> SampleEstimator:
    """ARM (Yin & Zhou, 2019), from antithetic pairs: ½ (f(b) − f(b̃)) (2u − 1), averaged over the pairs.

    This is eq. 4 of the DisARM paper, where u is the uniform noise that both samples of a pair are computed from. The
    estimator is unbiased. Each pair takes two evaluations of f, and f is not differentiated. DisARM costs the same and
    never has more variance.

    Paper: Yin & Zhou, ARM: Augment-REINFORCE-Merge gradient for stochastic binary networks, ICLR 2019
    Advice: To compare with earlier work; DisARM costs the same and never has more variance.

    Args:
      num_pairs: the number of antithetic pairs, at least 1; the pairs are independent of each other.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.arm()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    options.at_least("num_pairs", num_pairs, 1)

    def gradient(params, logits, b, noise, f_b):
        return jnp.mean(formulas.arm(jax.nn.sigmoid(noise), *jnp.split(f_b, 2)), axis=0)

    info = describe(arm, 2 * num_pairs)
    return SampleEstimator(sampler=stacked_pairs(num_pairs), formula=gradient, of_differences=True, info=info)


def disarm(*, num_pairs: int = 1) -> SampleEstimator:
    """DisARM (Dong, Mnih & Tucker, 2020), from antithetic pairs: ½ (f(b) − f(b̃)) (−1)^b̃ 1[b ≠ b̃] σ(|α|).

    This is eq. 7 of the paper, averaged over the pairs: ARM with its continuous noise integrated out. The estimator is
    unbiased. Each pair takes two evaluations of f, and f is not differentiated.

    Paper: Dong, Mnih & Tucker, DisARM: An antithetic gradient estimator for binary latent variables, NeurIPS 2020
    Advice: The default: any f, two evaluations, nothing to tune.

    Args:
      num_pairs: the number of antithetic pairs, at least 1; the pairs are independent of each other.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.disarm()
      >>> logits = jnp.zeros(2)
      >>> out = est.apply((), jax.random.key(0), logits, lambda b: b[..., 0])
      >>> out.value, out.grad[0]  # for this f one pair gives the exact gradient of the first logit
      (Array(0.5, dtype=float32), Array(0.25, dtype=float32))
    """
    options.at_least("num_pairs", num_pairs, 1)

    info, formula = describe(disarm, 2 * num_pairs), mean_over_pairs(formulas.disarm)
    return SampleEstimator(
        sampler=stacked_pairs(num_pairs), formula=formula, of_differences=True, pairs=antithetic(), info=info
    )


def antithetic(num_averaged: int = 1, companions: Callable | None = None) -> Pairing:
    """Returns the pairing of the samples of `stacked_pairs`.

    Args:
      num_averaged: a factor of the weight: the number of pairs whose estimates are added up.
      companions: as in `Pairing`, for a bound.
    """
    weight = weighted(lambda params, logits: num_averaged * jax.nn.sigmoid(jnp.abs(logits)))
    return Pairing(halves, weight, companions)


def stacked_pairs(num_pairs: int) -> Sampler:
    """Returns a sampler of antithetic pairs `[2 · num_pairs, *batch, D]`: first all b, then all b̃."""

    def draw(params, key, logits):
        b, b_tilde, noise = bernoulli.antithetic_pairs(key, logits, num_pairs)
        return jnp.concatenate([b, b_tilde]), noise

    return draw
