"""Maps names to estimators. This is the only place where a name becomes an estimator."""

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
    """Maps names to the factories of estimators."""

    def __init__(self, *factories: Callable[..., Estimator]):
        self._factories = {factory.__name__: factory for factory in factories}

    def names(self) -> tuple[str, ...]:
        """Returns all names, sorted."""
        return tuple(sorted(self._factories))

    def factory(self, name: str) -> Callable[..., Estimator]:
        """Returns the factory of an estimator. Raises ValueError if the name is unknown."""
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
        """Returns the description of the estimator of that name."""
        return info_of(self.make(name, **options))


def info_of(est: Estimator) -> EstimatorInfo:
    """Returns the description of an estimator of this package; only custom ones have none."""
    assert est.info is not None
    return est.info


def named(factory: Callable[..., Estimator], est: Estimator) -> Estimator:
    """Gives a composition the name that it has in the literature or in configs, and a description of its own."""
    info = info_of(est)
    facts = {"objective": info.objective, "needs_grad": info.needs_grad}
    return dataclasses.replace(est, info=describe(factory, info.evaluations, **facts))


def muprop(*, num_samples: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """MuProp (Gu et al., 2016), REINFORCE with an expansion of f: `taylor(reinforce(num_samples=…), order=1)`.

    Paper: Gu et al., MuProp: Unbiased backpropagation for stochastic neural networks, ICLR 2016
    Advice: To compare with earlier work; disarm_taylor has the same control variate on a better base.

    Args:
      num_samples: the number of independent samples, at least 1.
      init_scale: as in `taylor`.

    Returns:
      An estimator with the `params` of `taylor`.

    >>> dj.make_estimator("muprop").info.evaluations
    2
    """
    base = reinforce.reinforce(num_samples=num_samples)
    return named(muprop, taylor(base, order=1, init_scale=init_scale))


def disarm_taylor(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """DisARM with the first-order expansion of f as control variate: `taylor(disarm(num_pairs=…), order=1)`.

    Paper: disarm_jax; hinted at in Dong, Mnih & Tucker, NeurIPS 2020, section 6
    Advice: When f is nearly linear between 0 and 1; else disarm_quadratic.

    Args:
      num_pairs: the number of antithetic pairs, at least 1.
      init_scale: as in `taylor`.

    Returns:
      An estimator with the `params` of `taylor`.

    >>> dj.make_estimator("disarm_taylor").info.evaluations
    3
    """
    base = antithetic.disarm(num_pairs=num_pairs)
    return named(disarm_taylor, taylor(base, order=1, init_scale=init_scale))


def disarm_quadratic(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """DisARM with the second-order expansion of f as control variate: `taylor(disarm(num_pairs=…), order=2)`.

    Paper: disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on DisARM
    Advice: As disarm_midpoint, for few bits, or where all of a quadratic f is to be taken away; 1.5 times the time.

    Args:
      num_pairs: the number of antithetic pairs, at least 1.
      init_scale: as in `taylor`.
      probes: as in `taylor`.

    Returns:
      An estimator with the `params` of `taylor`.

    >>> est = dj.make_estimator("disarm_quadratic", probes=3)  # as many probes as bits: the diagonal is exact
    >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
    >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
    >>> out.grad[0]  # exact for a quadratic f
    Array([0.75, 0.75, 0.75], dtype=float32)
    """
    base = antithetic.disarm(num_pairs=num_pairs)
    return named(disarm_quadratic, taylor(base, order=2, init_scale=init_scale, probes=probes))


def arms_quadratic(*, num_samples: int = 4, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """ARMS with the second-order expansion of f as control variate: `taylor(arms(num_samples=…), order=2)`.

    Paper: disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on ARMS
    Advice: As disarm_quadratic, with more than two evaluations: the least variance per evaluation on our models.

    Args:
      num_samples: the number of coupled samples, at least 2.
      init_scale: as in `taylor`.
      probes: as in `taylor`.

    Returns:
      An estimator with the `params` of `taylor`.

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

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.
      configurations: as in `multisample_disarm`.
      init_scale: as in `taylor`.
      probes: as in `taylor`.

    Returns:
      An estimator with the `params` of `taylor`.

    >>> dj.make_estimator("multisample_disarm_quadratic", num_pairs=2).info.evaluations
    5
    """
    base = multisample.multisample_disarm(num_pairs=num_pairs, configurations=configurations)
    return named(multisample_disarm_quadratic, taylor(base, order=2, init_scale=init_scale, probes=probes))


def reinforce_loo_midpoint(*, num_samples: int = 2, init_scale: float | None = None) -> Estimator:
    """REINFORCE-LOO without the noise that the other bits add to each bit: `midpoint(reinforce_loo(num_samples=…))`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoints of all pairs
    Advice: As disarm_midpoint, where samples have to be independent; it has somewhat more variance.

    Args:
      num_samples: the number of independent samples, at least 2.
      init_scale: as in `midpoint`.

    Returns:
      An estimator with the `params` of `midpoint`.

    >>> dj.make_estimator("reinforce_loo_midpoint", num_samples=3).info.evaluations
    6
    """
    base = reinforce.reinforce_loo(num_samples=num_samples)
    return named(reinforce_loo_midpoint, midpoint.midpoint(base, init_scale=init_scale))


def arms_midpoint(*, num_samples: int = 4, init_scale: float | None = None) -> Estimator:
    """ARMS without the noise that the other bits add to each bit: `midpoint(arms(num_samples=…))`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoints of all pairs
    Advice: As disarm_midpoint, with more than two samples; every pair of them has a midpoint.

    Args:
      num_samples: the number of coupled samples, at least 2; all pairs of them are used.
      init_scale: as in `midpoint`.

    Returns:
      An estimator with the `params` of `midpoint`.

    >>> dj.make_estimator("arms_midpoint", num_samples=3).info.evaluations
    6
    """
    base = copula.arms(num_samples=num_samples)
    return named(arms_midpoint, midpoint.midpoint(base, init_scale=init_scale))


def multisample_disarm_midpoint(
    *, num_pairs: int = 1, configurations: str = "paper", init_scale: float | None = None
) -> Estimator:
    """Multi-sample DisARM without the noise that the other bits add to each bit: `midpoint(multisample_disarm(…))`.

    The term that is subtracted goes through the log-sum-exp of the bound, with the companions of the pair.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2020, section 3.2, with a control variate at each midpoint
    Advice: For a multi-sample bound of a log w that is smooth between 0 and 1: a fraction of the variance.

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.
      configurations: as in `multisample_disarm`.
      init_scale: as in `midpoint`.

    Returns:
      An estimator with the `params` of `midpoint`.

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
    """Returns the names that `make_estimator` accepts, sorted.

    >>> "disarm" in dj.estimator_names()
    True
    """
    return BITS.names()


def make_estimator(name: str, **options: Any) -> Estimator:
    """Makes the estimator of a name, as configs do.

    Args:
      name: one of `estimator_names()`.
      **options: the options of the estimator; each has a default.

    Returns:
      The estimator.

    Raises:
      ValueError: if the name is unknown, or the value of an option is not accepted.
      TypeError: if an option is unknown.

    >>> est = dj.make_estimator("disarm", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1)).grad.shape
    (5, 3)
    """
    return BITS.make(name, **options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """Returns the description of an estimator, which helps to choose one.

    Args:
      name: one of `estimator_names()`.
      **options: the options of the estimator, on which the number of evaluations may depend.

    Returns:
      A record with the fields `name`, `evaluations` (of f, per estimate and example), `paper`, `advice`, `objective`,
      `unbiased` and `needs_grad` (whether f is differentiated).

    >>> info = dj.estimator_info("disarm", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    return BITS.info(name, **options)


def hierarchical(base: Estimator | str, **options: Any) -> Estimator:
    """Makes the form of an estimator for a `Chain` of several stochastic layers.

    The result depends on the estimator:

    - For an estimator of samples, such as `disarm()`, `reinforce_loo(num_samples=4)` or `arms(num_samples=3)`, it is
      Algorithm 1 of the paper, with a branch for each sample of a layer's group but the first. It is unbiased, takes T
      (n − 1) + 1 evaluations of f, so T + 1 for pairs, and does not differentiate f.
    - For `taylor` and `midpoint` of such estimators, the noise of f's expansion is subtracted in each layer. This takes
      one more evaluation per layer, where f is differentiated. For an f that is a `LayerSum`, only the terms that
      depend on the layer are expanded.
    - For `relax` and `rebar`, f is evaluated once at the samples and twice per layer at relaxed points, where it is
      differentiated.

    Args:
      base: an estimator, or the name of one.
      **options: the options of the estimator, if it is given by name.

    Returns:
      An estimator that takes `Chain(inputs, layers)` in the place of logits and an f of the tuple (b_1, …, b_T). Its
      `Estimate.grad` is a tuple with one array for each layer, and so are its `params`, if there are any.

    Raises:
      TypeError: if `base` is neither an estimator nor a name, or if options are given for an estimator.
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
    """Returns the names that `hierarchical` accepts, sorted.

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
