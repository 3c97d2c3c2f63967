"""Estimators of the derivative of the multi-sample bound log 1/K Σ_k w(z^k) for classes, where f is log w.

As for bits, compute log w from logits that are *not* stopped: the bound depends on them through log q as well, and the
ordinary derivative of `value` contains that term.
"""

import functools

from disarm_jax.categorical import coupled, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, describe
from disarm_jax.estimators.midpoint import pairing_of
from disarm_jax.estimators.multisample import bound_of_pairs, bound_of_repeats
from disarm_jax.estimators.pairing import Pairing, halves
from disarm_jax.formulas import bounds


def vimco(*, num_samples: int = 2, baseline: str = "arithmetic", repeats: int = 1) -> SampleEstimator:
    """VIMCO (Mnih & Rezende, 2016), for the bound of K independent samples of classes: Σ_k (L̂ − L̂^{−k}) ∂log q(z^k).

    The estimator is unbiased for the derivative of the K-sample bound. It takes K evaluations of log w for each repeat
    and does not differentiate log w.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Mnih & Rezende, Variational inference for Monte Carlo objectives, ICML 2016
    Advice: The baseline for a multi-sample bound, or when the bound needs an odd number of samples.

    Args:
      num_samples: K, the number of samples of the bound, at least 2.
      baseline: "arithmetic" or "geometric", as in `disarm_jax.vimco`.
      repeats: the number of independent estimates to average.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.categorical.vimco(num_samples=5)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((7, 3, 4)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3, 4))
    """
    options.at_least("num_samples", num_samples, 2)
    bounds.check_baseline(baseline)
    total = num_samples * options.at_least("repeats", repeats, 1)

    formula = functools.partial(formulas.vimco, baseline=baseline)
    info = describe(vimco, total, objective="bound")
    return bound_of_repeats(repeats, formula, sampler=coupled.independent(total), event_ndim=2, info=info)


def multisample_disarm(*, num_pairs: int = 1, coupling: str = "iw", configurations: str = "paper") -> SampleEstimator:
    """Coupled pairs of classes for the multi-sample bound, applied locally to each of the K samples.

    The estimator is unbiased for the derivative of the K-sample bound. It takes 2K evaluations of log w and does not
    differentiate log w. `value` is the mean of the two K-sample bounds, of the z and of the z̃. With one pair it is the
    estimator of the coupling on log w.

    Compute log w from the logits themselves, not from a stopped copy. The bound also depends on them through log q, and
    the ordinary derivative of `value` contains that term.

    Paper: Dong, Mnih & Tucker, NeurIPS 2020, section 3.2, with the couplings of their paper of 2021
    Advice: The default for a multi-sample bound of classes; K pairs optimise the K-sample bound.

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.
      coupling: "iw", "sb" or "tree": the pairs and the formula of `disarm_iw`, `disarm_sb` or `disarm_tree`.
      configurations: "paper", "all" or "cyclic", as in `disarm_jax.multisample_disarm`.

    Returns:
      An estimator without tunables: its `init` returns `()`.

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
