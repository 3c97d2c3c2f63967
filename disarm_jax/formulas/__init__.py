"""The estimators as formulas: arrays in, arrays out, without a random key and without f.

Every function estimates ∂/∂logits of E f(b), or of a multi-sample bound, from samples b and the values of f at them.
Sums are computed in float32 or wider, and the result has the dtype of the logits. It never contains the pathwise term,
which comes from f's own dependence on the logits: that term is the ordinary derivative of the value.

`b` and `b_tilde` are bits in {0, 1} of shape `[..., D]`; `f_b` and `f_b_tilde` have the shape `[...]`. A formula for a
pair accepts any leading axes. A formula for K samples expects the sample axis first and sums over it. `logits` have the
shape `[*batch, D]`.
"""

from disarm_jax.formulas.biased import gumbel_sigmoid, reinmax, straight_through
from disarm_jax.formulas.bounds import bound, multisample_arms, multisample_disarm, naive_multisample_disarm, vimco
from disarm_jax.formulas.control_variates import double_cv, relax, rodeo
from disarm_jax.formulas.flips import bitflip, leg, ugc
from disarm_jax.formulas.groups import arms, arms_interpolated
from disarm_jax.formulas.pairs import arm, disarm, disarm_midpoint, interpolated
from disarm_jax.formulas.score_function import reinforce, reinforce_loo

__all__ = [
    "arm",
    "arms",
    "arms_interpolated",
    "bitflip",
    "bound",
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
