"""Maps names to estimators for classes. This is the only place where a name becomes one."""

from typing import Any

from disarm_jax.categorical import biased_estimators, bound_estimators, coupled, midpoints
from disarm_jax.estimators.estimator import Estimator, EstimatorInfo
from disarm_jax.estimators.registry import Registry

CLASSES = Registry(
    biased_estimators.gumbel_softmax,
    biased_estimators.reinmax,
    biased_estimators.straight_through,
    bound_estimators.multisample_disarm,
    bound_estimators.vimco,
    coupled.disarm_iw,
    coupled.disarm_sb,
    coupled.disarm_tree,
    coupled.reinforce_loo,
    midpoints.disarm_iw_midpoint,
    midpoints.disarm_sb_midpoint,
    midpoints.disarm_tree_midpoint,
    midpoints.multisample_disarm_midpoint,
    midpoints.reinforce_loo_midpoint,
)


def estimator_names() -> tuple[str, ...]:
    """Returns the names that `make_estimator` accepts, sorted.

    >>> "disarm_tree" in dj.categorical.estimator_names()
    True
    """
    return CLASSES.names()


def make_estimator(name: str, **options: Any) -> Estimator:
    """Makes the estimator for classes of a name, as configs do.

    Args:
      name: one of `estimator_names()`.
      **options: the options of the estimator; each has a default.

    Returns:
      The estimator.

    Raises:
      ValueError: if the name is unknown, or the value of an option is not accepted.
      TypeError: if an option is unknown.

    >>> est = dj.categorical.make_estimator("disarm_tree", num_pairs=2)
    >>> est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1)).grad.shape
    (5, 3, 10)
    """
    return CLASSES.make(name, **options)


def estimator_info(name: str, **options: Any) -> EstimatorInfo:
    """Returns the description of an estimator for classes, as `disarm_jax.estimator_info` does for bits.

    Args:
      name: one of `estimator_names()`.
      **options: the options of the estimator, on which the number of evaluations may depend.

    >>> info = dj.categorical.estimator_info("disarm_tree", num_pairs=3)
    >>> info.objective, info.unbiased, info.needs_grad, info.evaluations
    ('expectation', True, False, 6)
    """
    return CLASSES.info(name, **options)
