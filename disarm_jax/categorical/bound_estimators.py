"""Estimators of the multi-sample bound log 1/K Σ_k w(z^k) for classes; f is log w.

As for bits, log w must be built from logits that are *not* stopped: the bound depends on them through log q as well,
and that term comes with the ordinary derivative of `value`.
"""

import functools

from disarm_jax.categorical import coupled, distribution, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, describe
from disarm_jax.estimators.midpoint import pairing_of
from disarm_jax.estimators.multisample import bound_of_pairs, bound_of_repeats
from disarm_jax.estimators.pairing import Pairing, halves
from disarm_jax.formulas import bounds


def vimco(*, num_samples: int = 2, baseline: str = "arithmetic", repeats: int = 1) -> SampleEstimator:
    """VIMCO (Mnih & Rezende, 2016) for classes: Σ_k (L̂ − L̂^{−k}) ∂log q(z^k) for the bound of K independent samples.

    Unbiased for the derivative of the K-sample bound; K evaluations of log w for each repeat; not differentiated.

    Build log w from the logits themselves, not from a stopped copy: the bound depends on them through log q, too, and
    that term comes with the ordinary derivative of `value`.

    Paper: Mnih & Rezende, Variational inference for Monte Carlo objectives, ICML 2016
    Advice: The baseline for a multi-sample bound, or when the bound needs an odd number of samples.

    Args:
      num_samples: K, at least 2.
      baseline: as in `disarm_jax.vimco`.
      repeats: averages that many independent estimates.

    Example:
      >>> est = dj.categorical.vimco(num_samples=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3, 4)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3, 4))
    """
    options.at_least("num_samples", num_samples, 2)
    bounds.check_baseline(baseline)
    total = num_samples * options.at_least("repeats", repeats, 1)

    def draw(params, key, logits):
        return distribution.sample(key, logits, total), None

    formula = functools.partial(formulas.vimco, baseline=baseline)
    info = describe(vimco, total, objective="bound")
    return bound_of_repeats(repeats, formula, sampler=draw, event_ndim=2, info=info)


def multisample_disarm(*, num_pairs: int = 1, coupling: str = "iw", configurations: str = "paper") -> SampleEstimator:
    """Coupled pairs of classes for the multi-sample bound, applied locally to each of K samples.

    Unbiased for the derivative of the K-sample bound; 2K evaluations of log w; not differentiated. `value` is the mean
    of the two K-sample bounds, of the z's and of the z̃'s. One pair is the estimator of the coupling on log w.

    Build log w from the logits themselves, not from a stopped copy: the bound depends on them through log q, too, and
    that term comes with the ordinary derivative of `value`.

    Paper: Dong, Mnih & Tucker, NeurIPS 2020, section 3.2, with the couplings of their paper of 2021
    Advice: The default for a multi-sample bound of classes; K pairs optimise the K-sample bound.

    Args:
      num_pairs: K, number of antithetic pairs.
      coupling: "iw", "sb" or "tree": the pairs and the formula of `disarm_iw`, `disarm_sb` or `disarm_tree`.
      configurations: as in `disarm_jax.multisample_disarm`.

    Example:
      >>> est = dj.categorical.multisample_disarm(num_pairs=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3, 4)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3, 4))
    """
    bounds.check_configurations(configurations, options.at_least("num_pairs", num_pairs, 1))
    options.one_of("coupling", coupling, tuple(formulas.COUPLINGS))
    of_pairs = coupled.COUPLED[coupling](num_pairs=num_pairs)
    factor_of_pair = pairing_of(of_pairs).factor

    def factor(params, logits, z, z_tilde):
        return num_pairs * factor_of_pair(params, logits, z, z_tilde)

    def companions(log_w):
        return bounds.companions(*halves(log_w), configurations)

    formula = functools.partial(formulas.multisample_disarm, coupling=coupling, configurations=configurations)
    pairs, info = Pairing(halves, factor, companions), describe(multisample_disarm, 2 * num_pairs, objective="bound")
    return bound_of_pairs(formula, sampler=of_pairs.sampler, pairs=pairs, event_ndim=2, info=info)
