"""The one place where a name becomes an estimator for classes, and where is written what each of them is good for."""

from typing import Any

from disarm_jax.categorical import coupled, straight_through
from disarm_jax.estimators.estimator import Estimator
from disarm_jax.estimators.table import Entry, EstimatorInfo, Table, always, pairs, relaxed, samples

_COUPLED = "Dong, Mnih & Tucker, Coupled gradient estimators for discrete latent variables, NeurIPS 2021"

_ENTRIES = {
    "disarm_iw": Entry(
        coupled.disarm_iw,
        pairs,
        _COUPLED,
        "The default: any f, two evaluations, nothing to tune, and the order of the classes does not matter.",
    ),
    "disarm_sb": Entry(
        coupled.disarm_sb,
        pairs,
        _COUPLED,
        "When the classes have an order that suits it; the first one is broken off first.",
    ),
    "disarm_tree": Entry(
        coupled.disarm_tree,
        pairs,
        _COUPLED,
        "When it measures better than disarm_iw for your f; the order of the classes matters a little.",
    ),
    "gumbel_softmax": Entry(
        straight_through.gumbel_softmax,
        relaxed,
        "Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017",
        "Biased: to compare with nets trained this way; the bias vanishes only as the temperature goes to 0.",
        unbiased=False,
        needs_grad=True,
    ),
    "reinforce_loo": Entry(
        coupled.reinforce_loo,
        samples,
        "Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019",
        "A strong baseline with many samples, or with many classes, where coupling gains little.",
    ),
    "reinmax": Entry(
        straight_through.reinmax,
        always(1),
        "Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023",
        "Biased: instead of straight-through, which it corrects to second order at the same price.",
        unbiased=False,
        needs_grad=True,
    ),
    "straight_through": Entry(
        straight_through.straight_through,
        always(1),
        "Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013",
        "Biased: exact for an f that is linear in each variable, and only there.",
        unbiased=False,
        needs_grad=True,
    ),
}
_TABLE = Table(_ENTRIES)


def estimator_names() -> tuple[str, ...]:
    """The names that `make_estimator` takes, sorted.

    >>> "disarm_tree" in dj.categorical.estimator_names()
    True
    """
    return _TABLE.names()


def make_estimator(name: str, **options: Any) -> Estimator:
    """An estimator for classes by the name used in configs.

    Args:
      name: one of `estimator_names()`.
      **options: of its factory; every one has a default.

    >>> est = dj.categorical.make_estimator("disarm_tree", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1)).grad.shape
    (5, 3, 10)
    """
    return _TABLE.make(name, options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """What an estimator for classes needs and gives; `evaluations` is counted for the options given.

    >>> info = dj.categorical.estimator_info("disarm_tree", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    return _TABLE.info(name, options)
