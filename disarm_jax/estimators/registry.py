"""The one place where a name becomes an estimator, and where is written what each of them is good for."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from disarm_jax.estimators import (
    antithetic,
    control_variates,
    copula,
    flips,
    interpolated,
    multisample,
    relaxation,
    score_function,
    straight_through,
    taylor,
)
from disarm_jax.estimators.types import Estimator


class EstimatorInfo(NamedTuple):
    """What a user asks before choosing an estimator.

    Attributes:
      name: as in configs.
      objective: "expectation" for E f(b), "bound" for the multi-sample bound with f = log w.
      unbiased: whether its mean is the exact gradient.
      needs_grad: whether f is differentiated with respect to b, and so must be defined between 0 and 1.
      evaluations: evaluations of f per estimate and example, relaxed ones included; "D + 1" for `leg`, where it depends
        on the number of bits.
      paper: where it comes from.
      advice: one line, when to prefer it.
    """

    name: str
    objective: str
    unbiased: bool
    needs_grad: bool
    evaluations: int | str
    paper: str
    advice: str


class _Entry(NamedTuple):
    factory: Callable[..., Estimator]
    evaluations: Callable[[dict], int | str]  # from the options
    paper: str
    advice: str
    objective: str = "expectation"
    unbiased: bool = True
    needs_grad: bool = False


def _samples(options: dict) -> int:
    return options["num_samples"] * options.get("repeats", 1) * options.get("group_size", 1)


def _pairs(options: dict) -> int:
    return 2 * options["num_pairs"]


def _samples_and_mean(options: dict) -> int:
    return _samples(options) + 1


def _pairs_and_mean(options: dict) -> int:
    return _pairs(options) + 1


def _relaxations(options: dict) -> int:
    return 3


def _always(evaluations: int | str) -> Callable[[dict], int | str]:
    return lambda options: evaluations


_ENTRIES = {
    "arm": _Entry(
        antithetic.arm,
        _pairs,
        "Yin & Zhou, ARM: Augment-REINFORCE-Merge gradient for stochastic binary networks, ICLR 2019",
        "To compare with earlier work; DisARM costs the same and never has more variance.",
    ),
    "arms": _Entry(
        copula.arms,
        _samples,
        "Dimitriev & Zhou, ARMS: Antithetic-REINFORCE-Multi-Sample gradient for binary variables, ICML 2021",
        "With more than two evaluations: any f, nothing to tune, mostly less variance than as many in DisARM pairs.",
    ),
    "arms_interpolated": _Entry(
        interpolated.arms_interpolated,
        _samples,
        "Dimitriev & Zhou, ICML 2021, with the mixture of Dong, Mnih & Tucker, NeurIPS 2020, appendix B",
        "When you cannot say whether antithetic samples suit your f: it learns how antithetic to be.",
    ),
    "bitflip": _Entry(
        flips.bitflip,
        _always(2),
        "Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023",
        "For few bits that are nearly certain; its variance grows with the number of bits.",
    ),
    "disarm": _Entry(
        antithetic.disarm,
        _pairs,
        "Dong, Mnih & Tucker, DisARM: An antithetic gradient estimator for binary latent variables, NeurIPS 2020",
        "The default: any f, two evaluations, nothing to tune.",
    ),
    "disarm_quadratic": _Entry(
        taylor.disarm_quadratic,
        _pairs_and_mean,
        "disarm_jax; the expansion of Gu et al., MuProp, ICLR 2016, to second order, on DisARM",
        "When f is smooth between 0 and 1: several times less variance for about 1.4 times the time, if f is Composed.",
        needs_grad=True,
    ),
    "disarm_taylor": _Entry(
        taylor.disarm_taylor,
        _pairs_and_mean,
        "disarm_jax; hinted at in Dong, Mnih & Tucker, NeurIPS 2020, section 6",
        "When f is nearly linear between 0 and 1; disarm_quadratic if it can be differentiated twice.",
        needs_grad=True,
    ),
    "disarm_taylor_cross": _Entry(
        taylor.disarm_taylor_cross,
        _pairs,
        "disarm_jax; DisARM with the leave-one-out slopes of Titsias & Shi, Double control variates, AISTATS 2022",
        "When f can be differentiated at bits but means nothing between them.",
        needs_grad=True,
    ),
    "double_cv": _Entry(
        control_variates.double_cv,
        _samples,
        "Titsias & Shi, Double control variates for gradient estimation in discrete latent variable models, 2022",
        "When f is differentiable and close to linear; one number to learn.",
        needs_grad=True,
    ),
    "gumbel_sigmoid": _Entry(
        straight_through.gumbel_sigmoid,
        lambda options: 1 if options["hard"] else 2,
        "Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017",
        "Biased: to compare with nets trained this way; the bias vanishes only as the temperature goes to 0.",
        unbiased=False,
        needs_grad=True,
    ),
    "interpolated": _Entry(
        interpolated.interpolated,
        _pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, appendix B",
        "When you cannot say whether antithetic pairs suit your f: it learns how antithetic to be.",
    ),
    "leg": _Entry(
        flips.leg,
        _always("D + 1"),
        "Titsias & Lázaro-Gredilla, Local expectation gradients for black box variational inference, NIPS 2015",
        "The reference of low variance, for few bits: an evaluation for each of them.",
    ),
    "multisample_arms": _Entry(
        multisample.multisample_arms,
        _samples,
        "Dimitriev & Zhou, ICML 2021, applied as in Dong, Mnih & Tucker, NeurIPS 2020, section 3.2",
        "For a multi-sample bound with more than two evaluations per sample of it.",
        objective="bound",
    ),
    "multisample_disarm": _Entry(
        multisample.multisample_disarm,
        _pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, section 3.2",
        "The default for a multi-sample bound; K pairs optimise the K-sample bound.",
        objective="bound",
    ),
    "muprop": _Entry(
        taylor.muprop,
        _samples_and_mean,
        "Gu et al., MuProp: Unbiased backpropagation for stochastic neural networks, ICLR 2016",
        "To compare with earlier work; disarm_taylor has the same control variate on a better base.",
        needs_grad=True,
    ),
    "naive_multisample_disarm": _Entry(
        multisample.naive_multisample_disarm,
        _pairs,
        "Dong, Mnih & Tucker, NeurIPS 2020, section 3.2 (their negative result)",
        "To show what the local form gains; not for use.",
        objective="bound",
    ),
    "rebar": _Entry(
        relaxation.rebar,
        _relaxations,
        "Tucker et al., REBAR: Low-variance, unbiased gradient estimates for discrete latent variable models, 2017",
        "When f is differentiable between 0 and 1 and you can learn two tunables alongside.",
        needs_grad=True,
    ),
    "reinforce": _Entry(
        score_function.reinforce,
        _samples,
        "Williams, Simple statistical gradient-following algorithms, Machine Learning 1992",
        "Only if f can be evaluated once; otherwise take reinforce_loo or disarm.",
    ),
    "reinforce_loo": _Entry(
        score_function.reinforce_loo,
        _samples,
        "Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019",
        "A strong baseline with many samples, or when antithetic pairs do not suit f.",
    ),
    "reinmax": _Entry(
        straight_through.reinmax,
        _always(1),
        "Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023",
        "Biased: instead of straight-through, which it corrects to second order at the same price.",
        unbiased=False,
        needs_grad=True,
    ),
    "relax": _Entry(
        relaxation.relax,
        _relaxations,
        "Grathwohl et al., Backpropagation through the void, ICLR 2018",
        "When f is differentiable and close to linear between 0 and 1; about twice the time of DisARM.",
        needs_grad=True,
    ),
    "rodeo": _Entry(
        control_variates.rodeo,
        _samples,
        "Shi et al., Gradient estimation with discrete Stein operators, NeurIPS 2022",
        "When f is differentiable and costs far more than a small network at every bit, which learns alongside.",
        needs_grad=True,
    ),
    "straight_through": _Entry(
        straight_through.straight_through,
        _always(1),
        "Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013",
        "Biased: exact for an f that is linear in each bit, and only there.",
        unbiased=False,
        needs_grad=True,
    ),
    "ugc": _Entry(
        flips.ugc,
        _always(3),
        "Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023",
        "When many bits are nearly certain, where DisARM would rarely see them flip.",
    ),
    "vimco": _Entry(
        multisample.vimco,
        _samples,
        "Mnih & Rezende, Variational inference for Monte Carlo objectives, ICML 2016",
        "The baseline for a multi-sample bound, or when the bound needs an odd number of samples.",
        objective="bound",
    ),
}


def estimator_names() -> tuple[str, ...]:
    """The names that `make_estimator` takes, sorted.

    >>> "disarm" in dj.estimator_names()
    True
    """
    return tuple(sorted(_ENTRIES))


def make_estimator(name: str, **options: Any) -> Estimator:
    """An estimator by the name used in configs.

    Args:
      name: one of `estimator_names()`.
      **options: of its factory; every one has a default.

    >>> est = dj.make_estimator("disarm", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1)).grad.shape
    (5, 3)
    """
    return _entry(name).factory(**options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """What an estimator needs and gives; `evaluations` is counted for the options given.

    >>> info = dj.estimator_info("disarm", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    entry = _entry(name)
    entry.factory(**options)  # refuses bad values
    defaults = {key: p.default for key, p in inspect.signature(entry.factory).parameters.items()}
    return EstimatorInfo(
        name,
        entry.objective,
        entry.unbiased,
        entry.needs_grad,
        entry.evaluations(defaults | options),
        entry.paper,
        entry.advice,
    )


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(estimator_names())}")
    return _ENTRIES[name]
