"""The estimators as formulas: arrays in, arrays out; no key, no f.

Every function estimates ∂/∂logits of E f(b), or of a multi-sample bound, from samples b and the values of f at
them. Sums are made in float32 or wider and the result has the dtype of the logits. The term of f's own dependence
on the logits is never included: it is the ordinary derivative of the value.

`b`, `b_tilde` are `[..., D]` with bits in {0, 1}; `f_b`, `f_b_tilde` are `[...]`. The functions of a pair work on any
leading axes; those of K samples take the sample axis first and sum it out. `logits` are `[*batch, D]`.
"""

from disarm_jax.formulas.configurations import CONFIGURATIONS, check_configurations
from disarm_jax.formulas.later import (
    arms,
    arms_interpolated,
    bitflip,
    disarm_midpoint,
    double_cv,
    gumbel_sigmoid,
    leg,
    multisample_arms,
    reinmax,
    rodeo,
    straight_through,
    ugc,
)
from disarm_jax.formulas.paper import (
    BASELINES,
    arm,
    bound,
    check_baseline,
    disarm,
    interpolated,
    multisample_disarm,
    naive_multisample_disarm,
    reinforce,
    reinforce_loo,
    relax,
    vimco,
)

__all__ = [
    "BASELINES",
    "CONFIGURATIONS",
    "arm",
    "arms",
    "arms_interpolated",
    "bitflip",
    "bound",
    "check_baseline",
    "check_configurations",
    "disarm",
    "disarm_midpoint",
    "double_cv",
    "gumbel_sigmoid",
    "interpolated",
    "leg",
    "multisample_arms",
    "multisample_disarm",
    "naive_multisample_disarm",
    "reinforce",
    "reinforce_loo",
    "reinmax",
    "relax",
    "rodeo",
    "straight_through",
    "ugc",
    "vimco",
]
