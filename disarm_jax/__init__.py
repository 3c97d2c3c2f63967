"""Low-variance gradients for binary and categorical latent variables: DisARM and relatives as pure JAX functions."""

from disarm_jax import bernoulli, categorical, formulas
from disarm_jax.checking import check
from disarm_jax.estimators.antithetic import arm, disarm
from disarm_jax.estimators.composed import Chained, Composed
from disarm_jax.estimators.control_variates import double_cv, rodeo
from disarm_jax.estimators.copula import arms
from disarm_jax.estimators.estimator import Estimate, Estimator, HierarchicalEstimate, SampleEstimator, Samples
from disarm_jax.estimators.flips import bitflip, leg, ugc
from disarm_jax.estimators.gradients import GradientVariance, expectation, gradient_variance, variance_loss
from disarm_jax.estimators.hierarchical import hierarchical, hierarchical_expectation, hierarchical_names
from disarm_jax.estimators.interpolated import arms_interpolated, interpolated
from disarm_jax.estimators.layer_sum import LayerSum
from disarm_jax.estimators.midpoint import disarm_midpoint
from disarm_jax.estimators.multisample import multisample_arms, multisample_disarm, naive_multisample_disarm, vimco
from disarm_jax.estimators.registry import estimator_info, estimator_names, make_estimator
from disarm_jax.estimators.relaxation import rebar, relax
from disarm_jax.estimators.score_function import reinforce, reinforce_loo
from disarm_jax.estimators.straight_through import gumbel_sigmoid, reinmax, straight_through
from disarm_jax.estimators.table import EstimatorInfo
from disarm_jax.estimators.taylor import (
    arms_quadratic,
    disarm_quadratic,
    disarm_taylor,
    disarm_taylor_cross,
    multisample_disarm_quadratic,
    muprop,
    taylor,
)

__version__ = "0.1.0"

__all__ = [
    "Chained",
    "Composed",
    "Estimate",
    "Estimator",
    "EstimatorInfo",
    "GradientVariance",
    "HierarchicalEstimate",
    "LayerSum",
    "SampleEstimator",
    "Samples",
    "arm",
    "arms",
    "arms_interpolated",
    "arms_quadratic",
    "bernoulli",
    "bitflip",
    "categorical",
    "check",
    "disarm",
    "disarm_midpoint",
    "disarm_quadratic",
    "disarm_taylor",
    "disarm_taylor_cross",
    "double_cv",
    "estimator_info",
    "estimator_names",
    "expectation",
    "formulas",
    "gradient_variance",
    "gumbel_sigmoid",
    "hierarchical",
    "hierarchical_expectation",
    "hierarchical_names",
    "interpolated",
    "leg",
    "make_estimator",
    "multisample_arms",
    "multisample_disarm",
    "multisample_disarm_quadratic",
    "muprop",
    "naive_multisample_disarm",
    "rebar",
    "reinforce",
    "reinforce_loo",
    "reinmax",
    "relax",
    "rodeo",
    "straight_through",
    "taylor",
    "ugc",
    "variance_loss",
    "vimco",
]
