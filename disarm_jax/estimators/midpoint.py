"""DisARM with a control variate from the slope of f at the midpoint of each pair.

Let c = (b + b̃)/2 and ε = b − b̃. DisARM looks at the bits that differ, those with c_i = ½; given c, their ε_i = ±1 are
fair coins, independent of each other. So for any g that depends on the pair through c alone

    ½ σ(|α_i|) ε_i Σ_{k≠i} g_k ε_k

has mean zero. With g = ∇f(c) it is the first-order noise that the other bits leave in bit i. There is none of second
order to take away: b and b̃ lie opposite each other around c, and terms of even order cancel, whatever p is.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.composed import Composed, as_composed, check_moments, check_rows, differentiable_outer
from disarm_jax.estimators.estimator import Estimate, Estimator, mean_value
from disarm_jax.estimators.taylor import scales


@contract.factory
def disarm_midpoint(*, num_pairs: int = 1, init_scale: float = 1.0) -> Estimator:
    """DisARM less the first-order noise that the other bits leave in each bit, by the slope of f between b and b̃.

    ½ (f(b) − f(b̃) − λ Σ_{k≠i} g_k (b_k − b̃_k)) (b_i − b̃_i) σ(|α_i|), averaged over pairs, with g the slope of f at
    (b + b̃)/2. Unbiased for every λ; terms of even order cancel in the pair. Two evaluations of f per pair, and one
    between them, where f is differentiated: at ½ in bits that differ, at 0 or 1 in the others. For an f that is
    `Composed` with an affine inner that one costs next to nothing but the product that takes the slope back to the
    bits; if it gives moments, g is the mean slope over what inner(b) may be given the midpoint, which follows f further
    than a tangent.

    `params` is `{"scale": (λ,)}`, learnt by descending `variance_loss`.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.
      init_scale: λ at the start.

    Example:
      >>> est = dj.disarm_midpoint()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
      >>> out.grad[0]  # at p = ½ all bits differ, and the gradient of a quadratic f is exact
      Array([0.75, 0.75, 0.75], dtype=float32)
    """
    contract.at_least("num_pairs", num_pairs, 1)
    init_scale = contract.number("init_scale", init_scale, math.isfinite, "a finite number")

    def init(key: jax.Array, logits: jax.Array) -> dict:
        return {"scale": scales((init_scale,), logits)}

    def apply(params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False):
        logits, f = bernoulli.as_logits(logits), as_composed(f)
        alpha = bernoulli.stop_and_widen(logits)
        b, b_tilde, _ = bernoulli.antithetic_pairs(key, alpha, num_pairs)
        stack = jnp.concatenate([b, b_tilde]).astype(logits.dtype)
        inner_b = f.inner(stack)
        f_b, aux = contract.evaluate(f.outer, inner_b, stack.shape[:-1], has_aux)
        f_b, value_dtype = contract.widen(f_b, logits)
        slope, (scale,) = slope_between(f, stack, inner_b, has_aux=has_aux), params["scale"]
        values = jnp.split(lax.stop_gradient(f_b), 2)
        grad = jnp.mean(formulas.disarm_midpoint(alpha, b, b_tilde, *values, slope, scale), axis=0)
        estimate = Estimate(mean_value(f_b).astype(value_dtype), contract.finish(grad, logits))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init, apply, tuned_by_logits=True)


def slope_between(f: Composed, pairs: jax.Array, inner_b: Any, *, has_aux: bool = False) -> jax.Array:
    """The slope of f between the samples of each pair, `[N, *batch, D]`; no derivative passes through it.

    It sees midpoints alone. Given these, the bits have the means c, and the variances ¼ where they differ; with moments
    it is the mean of outer's slopes at one standard deviation of inner(b) on either side.

    Args:
      f: outer and inner.
      pairs: `[2N, *batch, D]`, first every b, then every b̃.
      inner_b: inner at the pairs.
      has_aux: whether f returns a pair.
    """
    check_rows("inner", inner_b, pairs.shape[:-1])
    b, b_tilde = jnp.split(pairs, 2)
    midpoint, variance = 0.5 * (b + b_tilde), 0.25 * (b - b_tilde) ** 2
    if f.moments is None or f.affine:
        a, pull = jax.vjp(f.inner, midpoint)
        spread = None if f.moments is None else check_moments(f, midpoint, variance)[1]
    else:
        a, pull, spread = jax.vjp(lambda c: check_moments(f, c, variance), midpoint, has_aux=True)
    if f.affine:
        a = jax.tree.map(_mean_of_halves, inner_b, a)
    points = lax.stop_gradient(a if spread is None else jax.tree.map(_on_either_side, a, spread))
    outer = differentiable_outer("control variates at the midpoint", f, b.shape[1:-1], has_aux)
    found, pull_outer = jax.vjp(outer, points)
    (slope_of_a,) = pull_outer(jnp.full_like(found, len(b) / len(found)))
    if spread is not None:
        slope_of_a = jax.tree.map(lambda leaf: sum(jnp.split(leaf, 2)), slope_of_a)
    return lax.stop_gradient(pull(slope_of_a)[0])


def _mean_of_halves(rows: jax.Array, at_midpoint: jax.Array) -> jax.Array:
    """What an affine function is at the midpoint, at no cost, unless its rounding might tell more of the pair."""
    return 0.5 * sum(jnp.split(rows, 2)) if jnp.finfo(rows.dtype).bits >= 32 else at_midpoint


def _on_either_side(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """mean + std, then mean − std; not as a concatenation, in whose loops XLA does not vectorise what comes after."""
    std = jnp.sqrt(jnp.maximum(variance, 0)).astype(mean.dtype)
    signs = jnp.array([1, -1], mean.dtype).reshape(2, *(1,) * mean.ndim)
    return (mean[None] + signs * std[None]).reshape(-1, *mean.shape[1:])
