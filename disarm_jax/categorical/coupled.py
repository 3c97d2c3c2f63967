"""REINFORCE-LOO and the three coupled estimators for classes: f as a black box."""

from collections.abc import Callable

import jax.numpy as jnp

from disarm_jax.categorical import distribution, formulas, trees
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimator, SampleEstimator


@contract.factory
def reinforce_loo(*, num_samples: int = 2) -> Estimator:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(z_k).

    Unbiased; K evaluations of f; f is not differentiated.

    Args:
      num_samples: K, number of independent samples, at least 2.

    Example:
      >>> est = dj.categorical.reinforce_loo(num_samples=4)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    contract.at_least("num_samples", num_samples, 2)

    def draw(params, key, logits):
        return distribution.sample(key, logits, num_samples), None

    def gradient(params, logits, z, noise, f_z):
        return formulas.reinforce_loo(logits, z, f_z)

    return SampleEstimator(sampler=draw, formula=gradient, event_ndim=2)


@contract.factory
def disarm_sb(*, num_pairs: int = 1) -> Estimator:
    """DisARM-SB (Dong, Mnih & Tucker, 2021): antithetic choices of which class to break off a stick.

    Unbiased; two evaluations of f per pair; f is not differentiated. The order of the classes matters to its variance.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_sb()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(num_pairs, lambda logits: trees.sticks(logits.shape[-1]), formulas.disarm_sb)


@contract.factory
def disarm_tree(*, num_pairs: int = 1) -> Estimator:
    """DisARM-Tree (Dong, Mnih & Tucker, 2021): antithetic choices along a balanced tree of any number of classes.

    Unbiased; two evaluations of f per pair; f is not differentiated.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_tree()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(num_pairs, lambda logits: trees.balanced_tree(logits.shape[-1]), formulas.disarm_tree)


@contract.factory
def disarm_iw(*, num_pairs: int = 1) -> Estimator:
    """DisARM-IW (Dong, Mnih & Tucker, 2021): a pair from sticks, with the importance weight q(z) q(z̃) / P(z, z̃).

    Unbiased; two evaluations of f per pair; f is not differentiated. That holds for sticks in ascending order of the
    logits, in which it puts them by itself, for each variable.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_iw()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(num_pairs, trees.ascending_sticks, formulas.disarm_iw)


def _from_pairs(num_pairs: int, make_tree: Callable, formula: Callable) -> Estimator:
    """The formula, averaged over antithetic pairs along the tree that is made for the logits."""
    contract.at_least("num_pairs", num_pairs, 1)

    def draw(params, key, logits):
        return jnp.concatenate(distribution.antithetic_pairs(key, logits, make_tree(logits), num_pairs)), None

    def gradient(params, logits, z, noise, f_z):
        return jnp.mean(formula(logits, *jnp.split(z, 2), *jnp.split(f_z, 2)), axis=0)

    return SampleEstimator(sampler=draw, formula=gradient, event_ndim=2)
