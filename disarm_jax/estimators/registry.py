"""The one place where a name becomes an estimator, and where is written what each of them is good for."""

from typing import Any

from disarm_jax.estimators import (
    antithetic,
    control_variates,
    copula,
    flips,
    interpolated,
    midpoint,
    multisample,
    relaxation,
    score_function,
    straight_through,
    taylor,
)
from disarm_jax.estimators.estimator import Estimator
from disarm_jax.estimators.table import (
    Entry,
    EstimatorInfo,
    Table,
    always,
    and_the_mean,
    pairs,
    pairs_and_midpoints,
    relaxed,
    samples,
)

_ENTRIES = {
    "arm": Entry(
        antithetic.arm,
        pairs,
        "Yin & Zhou, ARM: Augment-REINFORCE-Merge gradient for stochastic binary networks, ICLR 2019",
        "To compare with earlier work; DisARM costs the same and never has more variance.",
    ),
    "arms": Entry(
        copula.arms,
        samples,
        "Dimitriev & Zhou, ARMS: Antithetic-REINFORCE-Multi-Sample gradient for binary variables, ICML 2021",
        "With more than two evaluations: any f, nothing to tune, mostly less variance than as many in DisARM pairs.",
    ),
    "arms_interpolated": Entry(
        interpolated.arms_interpolated,
        samples,
        "Dimitriev & Zhou, ICML 2021, with the mixture of Dong, Mnih & Tucker, NeurIPS 2020, appendix B",
        "When you cannot say whether antithetic samples suit your f: it learns how antithetic to be.",
    ),
    "arms_quadratic": Entry(
        taylor.arms_quadratic,
        and_the_mean(samples),
        "disarm_jax; the expansion of Gu et al., MuProp, ICLR 2016, to second order, on ARMS",
        "As disarm_quadratic, with more than two evaluations: the least variance per evaluation on our models.",
        needs_grad=True,
    ),
    "bitflip": Entry(
        flips.bitflip,
        always(2),
        "Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023",
        "For few bits that are nearly certain; its variance grows with the number of bits.",
    ),
    "disarm": Entry(
        antithetic.disarm,
        pairs,
        "Dong, Mnih & Tucker, DisARM: An antithetic gradient estimator for binary latent variables, NeurIPS 2020",
        "The default: any f, two evaluations, nothing to tune.",
    ),
    "disarm_midpoint": Entry(
        midpoint.disarm_midpoint,
        pairs_and_midpoints,
        "disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoint of a DisARM pair",
        "When f is smooth between 0 and 1, of many bits: an eighth of the variance or less, for 1.2 times the time.",
        needs_grad=True,
    ),
    "disarm_quadratic": Entry(
        taylor.disarm_quadratic,
        and_the_mean(pairs),
        "disarm_jax; the expansion of Gu et al., MuProp, ICLR 2016, to second order, on DisARM",
        "As disarm_midpoint, for few bits, or where all of a quadratic f is to be taken away; 1.5 times the time.",
        needs_grad=True,
    ),
    "disarm_taylor": Entry(
        taylor.disarm_taylor,
        and_the_mean(pairs),
        "disarm_jax; hinted at in Dong, Mnih & Tucker, NeurIPS 2020, section 6",
        "When f is nearly linear between 0 and 1; else disarm_quadratic.",
        needs_grad=True,
    ),
    "disarm_taylor_cross": Entry(
        taylor.disarm_taylor_cross,
        pairs,
        "disarm_jax; DisARM with the leave-one-out slopes of Titsias & Shi, Double control variates, AISTATS 2022",
        "When f can be differentiated at bits but means nothing between them.",
        needs_grad=True,
    ),
    "double_cv": Entry(
        control_variates.double_cv,
        samples,
        "Titsias & Shi, Double control variates for gradient estimation in discrete latent variable models, 2022",
        "When f is differentiable and close to linear; one number to learn.",
        needs_grad=True,
    ),
    "gumbel_sigmoid": Entry(
        straight_through.gumbel_sigmoid,
        relaxed,
        "Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017",
        "Biased: to compare with nets trained this way; the bias vanishes only as the temperature goes to 0.",
        unbiased=False,
        needs_grad=True,
    ),
    "interpolated": Entry(
        interpolated.interpolated,
        pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, appendix B",
        "When you cannot say whether antithetic pairs suit your f: it learns how antithetic to be.",
    ),
    "leg": Entry(
        flips.leg,
        always("D + 1"),
        "Titsias & Lázaro-Gredilla, Local expectation gradients for black box variational inference, NIPS 2015",
        "The reference of low variance, for few bits: an evaluation for each of them.",
    ),
    "multisample_arms": Entry(
        multisample.multisample_arms,
        samples,
        "Dimitriev & Zhou, ICML 2021, applied as in Dong, Mnih & Tucker, NeurIPS 2020, section 3.2",
        "For a multi-sample bound with more than two evaluations per sample of it.",
        objective="bound",
    ),
    "multisample_disarm": Entry(
        multisample.multisample_disarm,
        pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, section 3.2",
        "The default for a multi-sample bound; K pairs optimise the K-sample bound.",
        objective="bound",
    ),
    "multisample_disarm_quadratic": Entry(
        taylor.multisample_disarm_quadratic,
        and_the_mean(pairs),
        "disarm_jax; multi-sample DisARM with the expansion of MuProp, ICLR 2016, to second order",
        "For a multi-sample bound of few samples with a smooth log w: 0.4 of the variance at two pairs.",
        objective="bound",
        needs_grad=True,
    ),
    "muprop": Entry(
        taylor.muprop,
        and_the_mean(samples),
        "Gu et al., MuProp: Unbiased backpropagation for stochastic neural networks, ICLR 2016",
        "To compare with earlier work; disarm_taylor has the same control variate on a better base.",
        needs_grad=True,
    ),
    "naive_multisample_disarm": Entry(
        multisample.naive_multisample_disarm,
        pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, section 3.2 (their negative result)",
        "To show what the local form gains; not for use.",
        objective="bound",
    ),
    "rebar": Entry(
        relaxation.rebar,
        always(3),
        "Tucker et al., REBAR: Low-variance, unbiased gradient estimates for discrete latent variable models, 2017",
        "When f is differentiable between 0 and 1 and you can learn two tunables alongside.",
        needs_grad=True,
    ),
    "reinforce": Entry(
        score_function.reinforce,
        samples,
        "Williams, Simple statistical gradient-following algorithms, Machine Learning 1992",
        "Only if f can be evaluated once; otherwise take reinforce_loo or disarm.",
    ),
    "reinforce_loo": Entry(
        score_function.reinforce_loo,
        samples,
        "Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019",
        "A strong baseline with many samples, or when antithetic pairs do not suit f.",
    ),
    "reinmax": Entry(
        straight_through.reinmax,
        always(1),
        "Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023",
        "Biased: instead of straight-through, which it corrects to second order at the same price.",
        unbiased=False,
        needs_grad=True,
    ),
    "relax": Entry(
        relaxation.relax,
        always(3),
        "Grathwohl et al., Backpropagation through the void, ICLR 2018",
        "When f is differentiable and close to linear between 0 and 1; more than twice the time of DisARM.",
        needs_grad=True,
    ),
    "rodeo": Entry(
        control_variates.rodeo,
        samples,
        "Shi et al., Gradient estimation with discrete Stein operators, NeurIPS 2022",
        "When f is differentiable and costs far more than a small network at every bit, which learns alongside.",
        needs_grad=True,
    ),
    "straight_through": Entry(
        straight_through.straight_through,
        always(1),
        "Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013",
        "Biased: exact for an f that is linear in each bit, and only there.",
        unbiased=False,
        needs_grad=True,
    ),
    "ugc": Entry(
        flips.ugc,
        always(3),
        "Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023",
        "When many bits are nearly certain, where DisARM would rarely see them flip.",
    ),
    "vimco": Entry(
        multisample.vimco,
        samples,
        "Mnih & Rezende, Variational inference for Monte Carlo objectives, ICML 2016",
        "The baseline for a multi-sample bound, or when the bound needs an odd number of samples.",
        objective="bound",
    ),
}
_TABLE = Table(_ENTRIES)


def estimator_names() -> tuple[str, ...]:
    """The names that `make_estimator` takes, sorted.

    >>> "disarm" in dj.estimator_names()
    True
    """
    return _TABLE.names()


def make_estimator(name: str, **options: Any) -> Estimator:
    """An estimator by the name used in configs.

    Args:
      name: one of `estimator_names()`.
      **options: of its factory; every one has a default.

    >>> est = dj.make_estimator("disarm", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1)).grad.shape
    (5, 3)
    """
    return _TABLE.make(name, options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """What an estimator needs and gives; `evaluations` is counted for the options given.

    >>> info = dj.estimator_info("disarm", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    return _TABLE.info(name, options)
