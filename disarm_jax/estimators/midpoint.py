"""Control variates from the slope of f at the midpoint of each pair of samples.

Let c = (b + b̃)/2 and ε = b − b̃ for a pair whose coordinates are independent and exchangeable. Given c, the signs ε_i of
the bits that differ, those with c_i = ½, are fair coins, independent of each other. So for any g that depends on the
pair through c alone

    ½ w_i ε_i Σ_{k≠i} g_k ε_k

has mean zero. With g = ∇f(c) it is the first-order noise that the other bits leave in bit i of a pair estimator
½ (f(b) − f(b̃)) w_i ε_i. There is none of second order to take away: b and b̃ lie opposite each other around c, and terms
of even order cancel, whatever p is. That a baseline for coordinate i may depend on the other coordinates was used by
Wu et al. (2018, arXiv 1803.07246); to condition on the midpoint is ours.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import antithetic, options
from disarm_jax.estimators.controlled import AtSamples, Controlled, check_base
from disarm_jax.estimators.estimator import Estimator, SampleEstimator, describe
from disarm_jax.estimators.first_order import detached, vary_like
from disarm_jax.formulas.arrays import row_sums
from disarm_jax.structure import Composed, Parts, moments_of, outer_of


def midpoint(base: Estimator, *, init_scale: float = 1.0) -> Controlled:
    """Subtracts from a pair estimator the first-order noise that the other bits leave in each bit.

    ½ (f(b) − f(b̃) − λ Σ_{k≠i} g_k (b_k − b̃_k)) (b_i − b̃_i) w_i, averaged over pairs, with w_i the base's weight and g
    the slope of f at (b + b̃)/2. Unbiased for every λ; terms of even order cancel in the pair. The base's evaluations of
    f, and one between the samples of each pair, where f is differentiated and so must be pure: at ½ in bits that
    differ, at 0 or 1 in the others. For an f that is `Composed` with an affine inner that one costs next to nothing but
    the product that takes the slope back to the bits; if inner knows its moments, g is the mean slope over what
    inner(b) may be given the midpoint, which follows f further than a tangent.

    `params` is `{"base": the base's, "scale": (λ,)}`, learnt by descending `variance_loss`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoint of a pair
    Advice: When f is smooth between 0 and 1, of many bits: an eighth of the variance or less, 1.2 times the time.

    Args:
      base: `disarm`, `interpolated`, or `reinforce_loo` with two samples.
      init_scale: λ at the start.

    Example:
      >>> est = dj.midpoint(dj.disarm())
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
      >>> out.grad[0]  # at p = ½ all bits differ, and the gradient of a quadratic f is exact
      Array([0.75, 0.75, 0.75], dtype=float32)
    """
    pairs = check_base(base)
    info, scales = pairs.info, (options.finite("init_scale", init_scale),)
    if info is not None and isinstance(info.evaluations, int):  # it is a text only for bases that are not made of pairs
        evaluations = info.evaluations + info.evaluations // 2
        info = describe(midpoint, evaluations, needs_grad=True)._replace(name=f"{info.name}_midpoint")
    return Controlled(base=pairs, control=_AtTheMidpoint(), init_scale=scales, info=info)


def disarm_midpoint(*, num_pairs: int = 1, init_scale: float = 1.0) -> Controlled:
    """DisARM less the first-order noise that the other bits leave in each bit: `midpoint(disarm(num_pairs=…))`.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.
      init_scale: λ at the start.

    Example:
      >>> est = dj.disarm_midpoint()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return midpoint(antithetic.disarm(num_pairs=num_pairs), init_scale=init_scale)


class _AtTheMidpoint:
    """The first-order noise of the other bits, from the slope at the midpoint."""

    random = False

    def check(self, base: SampleEstimator) -> None:
        """Raises ValueError if the base is not made of pairs."""
        if base.pair_weight is None:
            raise ValueError(
                f"base must be made of exchangeable pairs, got {base.name}; accepted: disarm, interpolated, and "
                "reinforce_loo with two samples"
            )

    def point(self, logits: jax.Array, b: jax.Array) -> jax.Array:
        """Returns the midpoint of the first pair; in a chain there is one."""
        return jnp.mean(b[:: len(b) // 2], axis=0)

    def terms(self, est: Controlled, params: Any, key: jax.Array | None, at: AtSamples) -> tuple[None, list[jax.Array]]:
        """Returns ½ w_i ε_i Σ_{k≠i} g_k ε_k, averaged over pairs."""
        f, logits, samples, parts, has_aux = at
        alpha = bernoulli.stop_and_widen(logits)
        slope = slope_between(est.name, f, parts, has_aux=has_aux).astype(alpha.dtype)
        b, b_tilde = jnp.split(samples.b.astype(alpha.dtype), 2)
        sign = b - b_tilde
        linear = jnp.where(sign == 0, 0, slope * sign)  # where the bits agree f may have no finite slope
        others = row_sums(linear)[..., None] - linear
        assert est.base.pair_weight is not None  # see check
        weight = est.base.pair_weight(params, alpha)
        return None, [jnp.mean(0.5 * others * sign * weight[None], axis=0)]


def slope_between(name: str, f: Composed, pairs: Parts, *, has_aux: bool = False) -> jax.Array:
    """Returns the slope of f between the samples of each pair, `[P, *batch, D]`; no derivative passes through it.

    It sees midpoints alone. Given these, the bits have the means c, and the variances ¼ where they differ; with moments
    it is the mean of outer's slopes at one standard deviation of inner(b) on either side.

    Args:
      name: of the estimator, for errors.
      f: outer and inner.
      pairs: inner(b) and b at the samples, `[2P, *batch, …]`, first every b, then every b̃.
      has_aux: whether f returns a pair.
    """
    b, b_tilde = jnp.split(pairs.b, 2)
    middle, variance = 0.5 * (b + b_tilde), 0.25 * (b - b_tilde) ** 2
    moments, affine = moments_of(f), f.is_affine(middle)
    if moments and not affine:
        x, pull, spread = jax.vjp(*detached(lambda c: moments(c, variance), middle), has_aux=True)
    else:
        x, pull = jax.vjp(*detached(lambda c: Parts(f.inner(c), c), middle))
        spread = moments(middle, variance)[1] if moments else None
    if affine:
        x = x._replace(a=jax.tree.map(lambda rows: 0.5 * sum(jnp.split(rows, 2)), pairs.a))
    points = lax.stop_gradient(x if spread is None else jax.tree.map(_on_either_side, x, spread))
    outer = outer_of(name, f, b.shape[1:-1], has_aux)
    found, pull_outer = jax.vjp(*detached(outer, vary_like(points, middle)))
    (slope_of_x,) = pull_outer(jnp.full_like(found, len(b) / len(found)))
    if spread is not None:
        slope_of_x = jax.tree.map(lambda leaf: sum(jnp.split(leaf, 2)), slope_of_x)
    return lax.stop_gradient(pull(slope_of_x)[0])


def _on_either_side(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Returns mean + std, then mean − std, without a concatenation: XLA does not vectorise what comes after one."""
    std = jnp.sqrt(jnp.maximum(variance, 0)).astype(mean.dtype)
    signs = jnp.array([1, -1], mean.dtype).reshape(2, *(1,) * mean.ndim)
    return (mean[None] + signs * std[None]).reshape(-1, *mean.shape[1:])
