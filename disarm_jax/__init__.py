"""Discrete gradients in JAX: low-variance gradients through binary and categorical variables, by DisARM and others.

There are two ways to begin: `sample(key, logits)` draws a hard sample with a biased gradient, for the middle of a
network; `expectation(est)` estimates E f(b) with an unbiased gradient, for any function f of bits.

This level has the estimators of the paper, those we recommend, and the functions to use them. The rest is in:

- `make_estimator(name)`, which makes any estimator; `estimator_names()` lists them, and `estimator_info(name)`
  describes each of them.
- `categorical`, with the same for classes; `subsets`, for exactly k of n elements.
- `formulas`, with the estimators as arrays in and arrays out; `bernoulli`, with samples and probabilities.
- `disarm_jax.models`, `.objectives` and `.data`, with the paper's VAEs, bounds and data sets; `.experiment` trains
  them, `.sweep` launches many runs, `.report` compares them with the paper. These need the extra `experiments`.
"""

import warnings
from typing import Any

from disarm_jax import bernoulli, categorical, formulas, subsets
from disarm_jax.checking import check
from disarm_jax.estimators.antithetic import arm, disarm
from disarm_jax.estimators.chain import Chain
from disarm_jax.estimators.copula import arms
from disarm_jax.estimators.estimator import Estimate, Estimator
from disarm_jax.estimators.expectation import expectation
from disarm_jax.estimators.midpoint import disarm_midpoint, midpoint
from disarm_jax.estimators.multisample import multisample_disarm, vimco
from disarm_jax.estimators.registry import (
    BITS,
    estimator_info,
    estimator_names,
    hierarchical,
    hierarchical_names,
    make_estimator,
)
from disarm_jax.estimators.reinforce import reinforce_loo
from disarm_jax.estimators.relaxation import relax
from disarm_jax.estimators.taylor import taylor
from disarm_jax.estimators.variance import gradient_variance, variance_loss
from disarm_jax.samplers import sample
from disarm_jax.structure import MLP, Composed, LayerSum

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Chain",
    "Composed",
    "Estimate",
    "Estimator",
    "LayerSum",
    "arm",
    "arms",
    "bernoulli",
    "categorical",
    "check",
    "disarm",
    "disarm_midpoint",
    "estimator_info",
    "estimator_names",
    "expectation",
    "formulas",
    "gradient_variance",
    "hierarchical",
    "hierarchical_names",
    "make_estimator",
    "midpoint",
    "multisample_disarm",
    "reinforce_loo",
    "relax",
    "sample",
    "subsets",
    "taylor",
    "variance_loss",
    "vimco",
]

_GONE = {
    "Chained": "a LayerSum says by itself what of it depends on a layer",
    "HierarchicalEstimate": "Estimate.grad is a tuple with one array for each layer",
    "hierarchical_expectation": "write dj.expectation(est)(params, key, dj.Chain(inputs, layers), f)",
}


def __getattr__(name: str) -> Any:
    """Returns the other estimators, with a warning, and tells what replaces names that were removed."""
    if name in _GONE:
        raise AttributeError(f"disarm_jax.{name} is gone: {_GONE[name]}")
    if name not in BITS.names():
        raise AttributeError(f"module 'disarm_jax' has no attribute {name!r}")
    message = f"disarm_jax.{name} will go: write disarm_jax.make_estimator({name!r}, …)"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return BITS.factory(name)


def __dir__() -> list[str]:
    """Returns the public names, for an editor to complete, without the names that this file imports."""
    return [*__all__, "__all__", "__doc__", "__version__"]
