"""The estimators for classes with the control variate of `disarm_jax.midpoint`, under the names used in configs."""

from disarm_jax.categorical import bound_estimators, coupled
from disarm_jax.estimators.estimator import Estimator
from disarm_jax.estimators.midpoint import midpoint
from disarm_jax.estimators.registry import named


def reinforce_loo_midpoint(*, num_samples: int = 2, init_scale: float | None = None) -> Estimator:
    """REINFORCE-LOO without the noise that the other variables add: `midpoint(reinforce_loo(num_samples=…))`.

    Paper: disarm_jax; Kool et al., 2019, with a control variate at the midpoints of all pairs
    Advice: As disarm_iw_midpoint, where samples have to be independent; it has somewhat more variance.

    Args:
      num_samples: the number of independent samples, at least 2.
      init_scale: as in `disarm_jax.midpoint`.

    Returns:
      An estimator with the `params` of `disarm_jax.midpoint`.

    >>> dj.categorical.make_estimator("reinforce_loo_midpoint", num_samples=3).info.evaluations
    6
    """
    base = coupled.reinforce_loo(num_samples=num_samples)
    return named(reinforce_loo_midpoint, midpoint(base, init_scale=init_scale))


def disarm_iw_midpoint(*, num_pairs: int = 1, init_scale: float | None = None) -> Estimator:
    """DisARM-IW without the noise that the other variables add: `midpoint(disarm_iw(num_pairs=…))`.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2021, with a control variate at the midpoint of each pair
    Advice: When f is smooth between the one-hots, of many variables: a third of the variance or less, and unbiased.

    Args:
      num_pairs: the number of antithetic pairs, at least 1.
      init_scale: as in `disarm_jax.midpoint`.

    Returns:
      An estimator with the `params` of `disarm_jax.midpoint`.

    >>> est, f = dj.categorical.disarm_iw_midpoint(), lambda z: z[..., 0].sum(-1) ** 2
    >>> dj.categorical.expectation(est)((), jax.random.key(0), jnp.zeros((5, 3, 10)), f).shape
    (5,)
    """
    return named(disarm_iw_midpoint, midpoint(coupled.disarm_iw(num_pairs=num_pairs), init_scale=init_scale))


def disarm_sb_midpoint(*, num_pairs: int = 1, init_scale: float | None = None) -> Estimator:
    """DisARM-SB without the noise that the other variables add: `midpoint(disarm_sb(num_pairs=…))`.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2021, with a control variate at the midpoint of each pair
    Advice: As disarm_iw_midpoint, when the classes have an order that suits it.

    Args:
      num_pairs: the number of antithetic pairs, at least 1.
      init_scale: as in `disarm_jax.midpoint`.

    Returns:
      An estimator with the `params` of `disarm_jax.midpoint`.

    >>> dj.categorical.make_estimator("disarm_sb_midpoint", num_pairs=2).info.evaluations
    6
    """
    return named(disarm_sb_midpoint, midpoint(coupled.disarm_sb(num_pairs=num_pairs), init_scale=init_scale))


def disarm_tree_midpoint(*, num_pairs: int = 1, init_scale: float | None = None) -> Estimator:
    """DisARM-Tree without the noise that the other variables add: `midpoint(disarm_tree(num_pairs=…))`.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2021, with a control variate at the midpoint of each pair
    Advice: When it measures better than disarm_iw_midpoint for your f.

    Args:
      num_pairs: the number of antithetic pairs, at least 1.
      init_scale: as in `disarm_jax.midpoint`.

    Returns:
      An estimator with the `params` of `disarm_jax.midpoint`.

    >>> dj.categorical.make_estimator("disarm_tree_midpoint", num_pairs=2).info.evaluations
    6
    """
    return named(disarm_tree_midpoint, midpoint(coupled.disarm_tree(num_pairs=num_pairs), init_scale=init_scale))


def multisample_disarm_midpoint(
    *, num_pairs: int = 1, coupling: str = "iw", configurations: str = "paper", init_scale: float | None = None
) -> Estimator:
    """Coupled pairs for the bound without the noise that the other variables add: `midpoint(multisample_disarm(…))`.

    Paper: disarm_jax; Dong, Mnih & Tucker, NeurIPS 2020 and 2021, with a control variate at each midpoint
    Advice: For a multi-sample bound of a log w that is smooth between the one-hots: a fraction of the variance.

    Args:
      num_pairs: K, the number of antithetic pairs, at least 1.
      coupling: as in `multisample_disarm`.
      configurations: as in `multisample_disarm`.
      init_scale: as in `disarm_jax.midpoint`.

    Returns:
      An estimator with the `params` of `disarm_jax.midpoint`.

    >>> dj.categorical.make_estimator("multisample_disarm_midpoint", num_pairs=2).info.evaluations
    6
    """
    base = bound_estimators.multisample_disarm(num_pairs=num_pairs, coupling=coupling, configurations=configurations)
    return named(multisample_disarm_midpoint, midpoint(base, init_scale=init_scale))
