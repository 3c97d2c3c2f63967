"""The one place where a name becomes an estimator."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from disarm_jax.estimators import (
    antithetic,
    copula,
    flips,
    interpolated,
    midpoint,
    multisample,
    other_samples,
    relaxation,
    score_function,
    straight_through,
)
from disarm_jax.estimators.chains import of_chains
from disarm_jax.estimators.estimator import Estimator, EstimatorInfo
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
        accepted = self.defaults(name)
        for option in options:
            if option not in accepted:
                raise TypeError(f"{name} has no option {option!r}; accepted: {', '.join(accepted) or 'none'}")
        return self._factories[name](**options)


def _named(est: Estimator, name: str, paper: str, advice: str) -> Estimator:
    """Returns a composition under the name of its own that it has in the literature or in configs."""
    return dataclasses.replace(est, info=est.info._replace(name=name, paper=paper, advice=advice))


def muprop(*, num_samples: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """MuProp (Gu et al., 2016): `taylor(reinforce(num_samples=…), order=1)`."""
    return _named(
        taylor(score_function.reinforce(num_samples=num_samples), order=1, init_scale=init_scale),
        "muprop",
        "Gu et al., MuProp: Unbiased backpropagation for stochastic neural networks, ICLR 2016",
        "To compare with earlier work; disarm_taylor has the same control variate on a better base.",
    )


def disarm_taylor(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """DisARM with the first-order expansion of f: `taylor(disarm(num_pairs=…), order=1)`."""
    return _named(
        taylor(antithetic.disarm(num_pairs=num_pairs), order=1, init_scale=init_scale),
        "disarm_taylor",
        "disarm_jax; hinted at in Dong, Mnih & Tucker, NeurIPS 2020, section 6",
        "When f is nearly linear between 0 and 1; else disarm_quadratic.",
    )


def disarm_quadratic(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """DisARM with the second-order expansion of f: `taylor(disarm(num_pairs=…), order=2)`."""
    return _named(
        taylor(antithetic.disarm(num_pairs=num_pairs), order=2, init_scale=init_scale, probes=probes),
        "disarm_quadratic",
        "disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on DisARM",
        "As disarm_midpoint, for few bits, or where all of a quadratic f is to be taken away; 1.5 times the time.",
    )


def arms_quadratic(*, num_samples: int = 4, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """ARMS with the second-order expansion of f: `taylor(arms(num_samples=…), order=2)`."""
    return _named(
        taylor(copula.arms(num_samples=num_samples), order=2, init_scale=init_scale, probes=probes),
        "arms_quadratic",
        "disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, for bits, on ARMS",
        "As disarm_quadratic, with more than two evaluations: the least variance per evaluation on our models.",
    )


def multisample_disarm_quadratic(
    *,
    num_pairs: int = 1,
    configurations: str = "paper",
    init_scale: tuple[float, float] = (1.0, 1.0),
    probes: int = 1,
) -> Estimator:
    """Multi-sample DisARM with the second-order expansion of log w: `taylor(multisample_disarm(…), order=2)`."""
    base = multisample.multisample_disarm(num_pairs=num_pairs, configurations=configurations)
    return _named(
        taylor(base, order=2, init_scale=init_scale, probes=probes),
        "multisample_disarm_quadratic",
        "disarm_jax; the delta-method control variate of Paisley, Blei & Jordan, ICML 2012, on multi-sample DisARM",
        "For a multi-sample bound of few samples with a smooth log w: 0.4 of the variance at two pairs.",
    )


BITS = Registry(
    antithetic.arm,
    antithetic.disarm,
    arms_quadratic,
    copula.arms,
    disarm_quadratic,
    disarm_taylor,
    flips.bitflip,
    flips.leg,
    flips.ugc,
    interpolated.arms_interpolated,
    interpolated.interpolated,
    midpoint.disarm_midpoint,
    multisample.multisample_arms,
    multisample.multisample_disarm,
    multisample.naive_multisample_disarm,
    multisample.vimco,
    multisample_disarm_quadratic,
    muprop,
    other_samples.disarm_taylor_cross,
    other_samples.double_cv,
    other_samples.rodeo,
    relaxation.rebar,
    relaxation.relax,
    score_function.reinforce,
    score_function.reinforce_loo,
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
    return BITS.make(name, **options).info


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
