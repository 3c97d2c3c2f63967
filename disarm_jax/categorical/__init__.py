"""Low-variance gradients for categorical latent variables, after Dong, Mnih & Tucker (NeurIPS 2021).

The functions are those for bits. Logits have the shape `[*batch, D, C]` for D variables of C classes, whose
probabilities are their softmax. Samples are one-hot, `[N, *batch, D, C]`; f maps them to `[N, *batch]`; and grad has
the shape `[*batch, D, C]`. `expectation`, `variance_loss` and `gradient_variance` are the same functions as for bits.
`sample` is for the middle of a network; `distribution.sample` draws independent samples.
"""

from disarm_jax.categorical import distribution, formulas
from disarm_jax.categorical.biased_estimators import gumbel_softmax, reinmax, straight_through
from disarm_jax.categorical.bound_estimators import multisample_disarm, vimco
from disarm_jax.categorical.catalogue import estimator_info, estimator_names, make_estimator
from disarm_jax.categorical.coupled import disarm_iw, disarm_sb, disarm_tree, reinforce_loo
from disarm_jax.categorical.distribution import antithetic_pairs, log_prob
from disarm_jax.categorical.hard_samples import sample
from disarm_jax.categorical.midpoints import (
    disarm_iw_midpoint,
    disarm_sb_midpoint,
    disarm_tree_midpoint,
    multisample_disarm_midpoint,
    reinforce_loo_midpoint,
)
from disarm_jax.categorical.trees import Tree, ascending_sticks, balanced_tree, sticks
from disarm_jax.estimators.expectation import expectation
from disarm_jax.estimators.variance import gradient_variance, variance_loss

__all__ = [
    "Tree",
    "antithetic_pairs",
    "ascending_sticks",
    "balanced_tree",
    "disarm_iw",
    "disarm_iw_midpoint",
    "disarm_sb",
    "disarm_sb_midpoint",
    "disarm_tree",
    "disarm_tree_midpoint",
    "distribution",
    "estimator_info",
    "estimator_names",
    "expectation",
    "formulas",
    "gradient_variance",
    "gumbel_softmax",
    "log_prob",
    "make_estimator",
    "multisample_disarm",
    "multisample_disarm_midpoint",
    "reinforce_loo",
    "reinforce_loo_midpoint",
    "reinmax",
    "sample",
    "sticks",
    "straight_through",
    "variance_loss",
    "vimco",
]
