"""The one place where a name becomes an estimator."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from disarm_jax.estimators import (
    antithetic,
    copula,
    flipped_bits,
    interpolated,
    midpoint,
    multisample,
    other_samples,
    reinforce,
    relaxation,
    straight_through,
)
from disarm_jax.estimators.estimator import Estimator, EstimatorInfo, describe
from disarm_jax.estimators.hierarchical import of_chains
from disarm_jax.estimators.options import check_known
from disarm_jax.estimators.taylor import taylor


class Registry:
    """Factories of estimators by name."""

    def __init__(self, *factories: Callable[..., Estimator]):
        self._factories = {factory.__name__: factory for factory in factories}

    def names(self) -> tuple[str, ...]:
        """Returns all names, sorted."""
        return tuple(sorted(self._factories))

    def factory(self, name: str) -> Callable[..., Estimator]:
        """Returns the function that makes an estimator. Raises ValueError if the name is unknown."""
        if name not in self._factories:
            raise ValueError(f"unknown estimator {name!r}; known: {', '.join(self.names())}")
        return self._factories[name]

    def defaults(self, name: str) -> dict[str, Any]:
        """Returns the options of an estimator with their defaults."""
        return {key: p.default for key, p in inspect.signature(self.factory(name)).parameters.items()}

    def make(self, name: str, **options: Any) -> Estimator:
        """Returns the estimator of that name. Raises TypeError if an option is unknown."""
        check_known(name, options, self.defaults(name))
        return self._factories[name](**options)

    def info(self, name: str, **options: Any) -> EstimatorInfo:
        """Returns what the estimator of that name is."""
        return info_of(self.make(name, **options))


def info_of(est: Estimator) -> EstimatorInfo:
    """Returns what an estimator of this package is; only custom ones have no `info`."""
    assert est.info is not None
    return est.info


def named(factory: Callable[..., Estimator], est: Estimator) -> Estimator:
    """Returns a composition under the name that it has in the literature or in configs, with its own description."""
    info = info_of(est)
    facts = {"objective": info.objective, "needs_grad": info.needs_grad}
    return dataclasses.replace(est, info=describe(factory, info.evaluations, **facts))


def muprop(*, num_samples: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """MuProp (Gu et al., 2016): `taylor(reinforce(num_samples=…), order=1)`.

    Paper: Gu et al., MuProp: Unbiased backpropagation for stochastic neural networks, ICLR 2016
    Advice: To compare with earlier work; disarm_taylor has the same control variate on a better base.

    >>> dj.make_estimator("muprop").info.evaluations
    2
    """
    base = reinforce.reinforce(num_samples=num_samples)
    return named(muprop, taylor(base, order=1, init_scale=init_scale))


def disarm_taylor(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """DisARM with the first-order expansion of f: `taylor(disarm(num_pairs=…), order=1)`.

    Paper: disarm_jax; hinted at in Dong, Mnih & Tucker, NeurIPS 2020, section 6
    Advice: When f is nearly linear between 0 and 1; else disarm_quadratic.

    >>> dj.make_estimator("disarm_taylor").info.evaluations
    3
    """
    base = antithetic.disarm(num_pairs=num_pairs)
    return named(disarm_taylor, taylor(base, order=1, init_scale=init_scale))


def disarm_quadratic(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """DisARM with the second-order expansion of f: `taylor(disarm(num_pairs=…), order=2)`.

    Paper: disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on DisARM
    Advice: As disarm_midpoint, for few bits, or where all of a quadratic f is to be taken away; 1.5 times the time.

    >>> est = dj.make_estimator("disarm_quadratic", probes=3)  # as many probes as bits: the diagonal is exact
    >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
    >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
    >>> out.grad[0]  # exact for a quadratic f
    Array([0.75, 0.75, 0.75], dtype=float32)
    """
    base = antithetic.disarm(num_pairs=num_pairs)
    return named(disarm_quadratic, taylor(base, order=2, init_scale=init_scale, probes=probes))


def arms_quadratic(*, num_samples: int = 4, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """ARMS with the second-order expansion of f: `taylor(arms(num_samples=…), order=2)`.

    Paper: disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on ARMS
    Advice: As disarm_quadratic, with more than two evaluations: the least variance per evaluation on our models.

    >>> dj.make_estimator("arms_quadratic").info.evaluations
    5
    """
    base = copula.arms(num_samples=num_samples)
    return named(arms_quadratic, taylor(base, order=2, init_scale=init_scale, probes=probes))


def multisample_disarm_quadratic(
    *,
    num_pairs: int = 1,
    configurations: str = "paper",
    init_scale: tuple[float, float] = (1.0, 1.0),
    probes: int = 1,
) -> Estimator:
    """Multi-sample DisARM with the second-order expansion of log w: `taylor(multisample_disarm(…), order=2)`.

    Paper: disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, on multi-sample DisARM
    Advice: For a multi-sample bound of few samples with a smooth log w: 0.4 of the variance at two pairs.

    >>> dj.make_estimator("multisample_disarm_quadratic", num_pairs=2).info.evaluations
    5
    """
    base = multisample.multisample_disarm(num_pairs=num_pairs, configurations=configurations)
    return named(multisample_disarm_quadratic, taylor(base, order=2, init_scale=init_scale, probes=probes))


def reinforce_loo_midpoint(*, num_samples: int = 2, init_scale: float | None = None) -> Estimator:
    """REINFORCE-LOO less the noise of the other bits: `midpoint(reinforce_loo(num_samples=…))`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoints of all pairs
    Advice: As disarm_midpoint, where samples have to be independent; it has somewhat more variance.

    >>> dj.make_estimator("reinforce_loo_midpoint", num_samples=3).info.evaluations
    6
    """
    base = reinforce.reinforce_loo(num_samples=num_samples)
    return named(reinforce_loo_midpoint, midpoint.midpoint(base, init_scale=init_scale))


def arms_midpoint(*, num_samples: int = 4, init_scale: float | None = None) -> Estimator:
    """ARMS less the noise of the other bits in each of its pairs: `midpoint(arms(num_samples=…))`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoints of all pairs
    Advice: As disarm_midpoint, with more than two samples; every pair of them has a midpoint.

    >>> dj.make_estimator("arms_midpoint", num_samples=3).info.evaluations
    6
    """
    base = copula.arms(num_samples=num_samples)
    return named(arms_midpoint, midpoint.midpoint(base, init_scale=init_scale))


def multisample_disarm_midpoint(
    *, num_pairs: int = 1, configurations: str = "paper", init_scale: float | None = None
) -> Estimator:
    """Multi-sample DisARM less the noise of the other bits: `midpoint(multisample_disarm(…))`.

    What is subtracted goes through the log-sum-exp of the bound, with the pair's own companions.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2020, section 3.2, with a control variate at each midpoint
    Advice: For a multi-sample bound of a log w that is smooth between 0 and 1: a fraction of the variance.

    >>> dj.make_estimator("multisample_disarm_midpoint", num_pairs=2).info.evaluations
    6
    """
    base = multisample.multisample_disarm(num_pairs=num_pairs, configurations=configurations)
    return named(multisample_disarm_midpoint, midpoint.midpoint(base, init_scale=init_scale))


BITS = Registry(
    antithetic.arm,
    antithetic.disarm,
    arms_midpoint,
    arms_quadratic,
    copula.arms,
    disarm_quadratic,
    disarm_taylor,
    flipped_bits.bitflip,
    flipped_bits.leg,
    flipped_bits.ugc,
    interpolated.arms_interpolated,
    interpolated.interpolated,
    midpoint.disarm_midpoint,
    multisample.multisample_arms,
    multisample.multisample_disarm,
    multisample.naive_multisample_disarm,
    multisample.vimco,
    multisample_disarm_midpoint,
    multisample_disarm_quadratic,
    muprop,
    other_samples.disarm_taylor_cross,
    other_samples.double_cv,
    other_samples.rodeo,
    relaxation.rebar,
    reinforce_loo_midpoint,
    relaxation.relax,
    reinforce.reinforce,
    reinforce.reinforce_loo,
    straight_through.gumbel_sigmoid,
    straight_through.reinmax,
    straight_through.straight_through,
)


def estimator_names() -> tuple[str, ...]:
    """Returns the names that `make_estimator` takes, sorted.

    >>> "disarm" in dj.estimator_names()
    True
    """
    return BITS.names()


def make_estimator(name: str, **options: Any) -> Estimator:
    """Makes an estimator by the name used in configs.

    Args:
      name: one of `estimator_names()`.
      **options: of its factory; every one has a default.

    >>> est = dj.make_estimator("disarm", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1)).grad.shape
    (5, 3)
    """
    return BITS.make(name, **options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """Returns what an estimator needs and gives; `evaluations` is counted for the options given.

    >>> info = dj.estimator_info("disarm", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    return BITS.info(name, **options)


def hierarchical(base: Estimator | str, **options: Any) -> Estimator:
    """Makes the form of an estimator for a `Chain` of stochastic layers.

    For any estimator of samples, such as `disarm()`, `reinforce_loo(num_samples=4)` or `arms(num_samples=3)`, it is
    Algorithm 1 of the paper, with a branch for each sample of a layer's group but the first: unbiased, T (n − 1) + 1
    evaluations of f, so T + 1 for pairs; f is not differentiated. `taylor` and `midpoint` of such estimators subtract
    the noise of f's expansion in each layer, for one more evaluation per layer, where f is differentiated; for an f
    that is a `LayerSum` they expand only what depends on the layer. For `relax` and `rebar` f is evaluated once at the
    trunk and twice per layer at relaxed points, where it is differentiated.

    The estimator takes `Chain(inputs, layers)` where others take logits, f takes the tuple (b_1, …, b_T), and
    `Estimate.grad` is a tuple with one array for each layer. So are `params`, if there are any.

    Args:
      base: an estimator, or the name of one.
      **options: of the estimator, if it is given by name.

    Raises:
      TypeError: if `base` is neither, or options are given for an estimator.
      ValueError: if `base` has no form for chains.

    Example:
      >>> est = dj.hierarchical(dj.arms(num_samples=3))
      >>> chain = dj.Chain(jnp.zeros((5, 4)), [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))])
      >>> out = est.apply((), jax.random.key(0), chain, lambda b: b[0].sum(-1) * b[1].sum(-1))
      >>> out.value.shape, [g.shape for g in out.grad]
      ((5,), [(5, 3), (5, 2)])
    """
    if isinstance(base, str):
        return of_chains(BITS.make(base, **options))
    if options:
        raise TypeError(f"options go with the name of an estimator; got {options} for {base!r}")
    return of_chains(base)


def hierarchical_names() -> tuple[str, ...]:
    """Returns the names that `hierarchical` takes, sorted.

    >>> "disarm" in dj.hierarchical_names(), "vimco" in dj.hierarchical_names()
    (True, False)
    """

    def has_form(name: str) -> bool:
        try:
            of_chains(BITS.make(name))
        except ValueError:
            return False
        return True

    return tuple(name for name in BITS.names() if has_form(name))
