"""REINFORCE-LOO and the three coupled estimators for classes: f as a black box."""

from collections.abc import Callable

import jax.numpy as jnp

from disarm_jax.categorical import distribution, formulas, trees
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, describe
from disarm_jax.estimators.pairing import Pairing, each_with_each, halves


def reinforce_loo(*, num_samples: int = 2) -> SampleEstimator:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(z_k).

    Unbiased; K evaluations of f; f is not differentiated.

    Paper: Kool et al., Buy 4 REINFORCE samples, get a baseline for free!, 2019
    Advice: A strong baseline with many samples, or with many classes, where coupling gains little.

    Args:
      num_samples: K, number of independent samples, at least 2.

    Example:
      >>> est = dj.categorical.reinforce_loo(num_samples=4)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    options.at_least("num_samples", num_samples, 2)

    def draw(params, key, logits):
        return distribution.sample(key, logits, num_samples), None

    def gradient(params, logits, z, noise, f_z):
        return formulas.reinforce_loo(logits, z, f_z)

    pairs = Pairing(each_with_each, lambda params, logits, z, z_tilde: z - z_tilde)
    info = describe(reinforce_loo, num_samples)
    return SampleEstimator(sampler=draw, formula=gradient, of_differences=True, pairs=pairs, event_ndim=2, info=info)


def disarm_sb(*, num_pairs: int = 1) -> SampleEstimator:
    """DisARM-SB (Dong, Mnih & Tucker, 2021): antithetic choices of which class to break off a stick.

    Unbiased; two evaluations of f per pair; f is not differentiated. The order of the classes matters to its variance.

    Paper: Dong, Mnih & Tucker, Coupled gradient estimators for discrete latent variables, NeurIPS 2021
    Advice: When the classes have an order that suits it; the first one is broken off first.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_sb()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(disarm_sb, num_pairs, lambda logits: trees.sticks(logits.shape[-1]))


def disarm_tree(*, num_pairs: int = 1) -> SampleEstimator:
    """DisARM-Tree (Dong, Mnih & Tucker, 2021): antithetic choices along a balanced tree of any number of classes.

    Unbiased; two evaluations of f per pair; f is not differentiated.

    Paper: Dong, Mnih & Tucker, Coupled gradient estimators for discrete latent variables, NeurIPS 2021
    Advice: When it measures better than disarm_iw for your f; the order of the classes matters a little.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_tree()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(disarm_tree, num_pairs, lambda logits: trees.balanced_tree(logits.shape[-1]))


def disarm_iw(*, num_pairs: int = 1) -> SampleEstimator:
    """DisARM-IW (Dong, Mnih & Tucker, 2021): a pair from sticks, with the importance weight q(z) q(z̃) / P(z, z̃).

    Unbiased; two evaluations of f per pair; f is not differentiated. That holds for sticks in ascending order of the
    logits, in which it puts them by itself, for each variable.

    Paper: Dong, Mnih & Tucker, Coupled gradient estimators for discrete latent variables, NeurIPS 2021
    Advice: The default: any f, two evaluations, nothing to tune, and the order of the classes does not matter.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.

    Example:
      >>> est = dj.categorical.disarm_iw()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    return _from_pairs(disarm_iw, num_pairs, trees.ascending_sticks)


COUPLED = {"iw": disarm_iw, "sb": disarm_sb, "tree": disarm_tree}


def _from_pairs(factory: Callable, num_pairs: int, make_tree: Callable) -> SampleEstimator:
    """Averages the formula of the factory's name over antithetic pairs along the tree that is made for the logits."""
    options.at_least("num_pairs", num_pairs, 1)
    formula = getattr(formulas, factory.__name__)

    def draw(params, key, logits):
        return jnp.concatenate(distribution.antithetic_pairs(key, logits, make_tree(logits), num_pairs)), None

    def gradient(params, logits, z, noise, f_z):
        return jnp.mean(formula(logits, *jnp.split(z, 2), *jnp.split(f_z, 2)), axis=0)

    pairs, info = Pairing(halves, _factor(formula)), describe(factory, 2 * num_pairs)
    return SampleEstimator(sampler=draw, formula=gradient, of_differences=True, pairs=pairs, event_ndim=2, info=info)


def _factor(formula: Callable) -> Callable:
    """Returns what multiplies ½ (f(z) − f(z̃)) in the formula of a pair."""

    def factor(params, logits, z, z_tilde):
        two = jnp.full(z.shape[:-2], 2, z.dtype)
        return formula(logits, z, z_tilde, two, jnp.zeros_like(two))

    return factor
