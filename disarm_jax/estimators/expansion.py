"""The expansion of f at the mean p = σ(α), and the gradients of its expectation in closed form.

With d = b − p and v = p(1 − p), and because the bits are independent,

    h₁(b) = ∇f(p)ᵀd        has the gradient   ∂E h₁/∂α = ∇f(p) ⊙ v,
    h₂(b) = ½ dᵀH d        has the gradient   ∂E h₂/∂α = ½ diag(H) ⊙ v ⊙ (1 − 2p).

H is the Hessian of f; for a `Composed` with an inner function that is affine or is linearised, it is that of outer
alone. The closed forms hold for any slope and curvature that do not depend on b, not only for those of f. Where inner
knows its moments, slope and curvature of the second order are those of outer, averaged over a normal distribution of
inner(b): a mean slope follows a curve further than a tangent does.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.affine import is_affine
from disarm_jax.estimators.first_order import detached
from disarm_jax.formulas.arrays import row_sums
from disarm_jax.structure import MLP, Composed, Parts, moments_of, outer_of, parts_at


class Expansion(NamedTuple):
    """The expansion of f at the mean; no derivative passes through any of it.

    Attributes:
      f_p: `[*batch]`, the constant of the expansion: f at the mean, or its counterpart in an average.
      gradients: ∂E h₁/∂α and ∂E h₂/∂α, each `[*batch, D]`; for the first order only the first.
      terms: a function from inner(b) and b `[N, *batch, D]` to (h₁, h₂), each `[N, *batch]`.
    """

    f_p: jax.Array
    gradients: tuple[jax.Array, ...]
    terms: Callable[[Parts], tuple[jax.Array, ...]]


def expand(
    name: str,
    f: Composed,
    logits: jax.Array,
    order: int,
    probes: int,
    key: jax.Array | None = None,
    *,
    has_aux: bool = False,
) -> Expansion:
    """Expands f at the mean, by one call of outer, and one of inner or of its moments, or of both if inner is affine.

    Args:
      name: the name of the estimator, for error messages.
      f: outer and inner function.
      logits: `[*batch, D]`.
      order: 1 or 2.
      probes: as in `taylor`.
      key: a JAX random key for the probes; needed for the second order only.
      has_aux: whether f returns a pair.
    """
    alpha = bernoulli.stop_and_widen(logits)
    p = jax.nn.sigmoid(alpha).astype(logits.dtype)
    batch, variance = p.shape[:-1], bernoulli.variance(alpha)
    moments = moments_of(f) if order == 2 else None  # the first order is MuProp's
    affine = order == 2 and f.is_affine(p[None])
    outer = outer_of(name, f, batch, has_aux)
    x, push, spread = _linearised(f, p, variance.astype(p.dtype), affine, moments)
    x, spread, pull = *lax.stop_gradient((x, spread)), jax.linear_transpose(push, p)
    f_p, slope_of_x, curve = averaged(outer, x, spread, THREE_POINTS) if moments else tangent(outer, x, order)
    slope = lax.stop_gradient(pull(slope_of_x)[0].astype(alpha.dtype))
    gradients = (slope * variance,)
    if curve is not None:
        if moments and affine and isinstance(f.inner, MLP) and len(f.inner.layers) == 1:  # A² is known
            curvature = curve(jax.tree.map(jnp.ones_like, x))
            diagonal = f.inner.squared(curvature.a[None])[0] + curvature.b
        else:
            diagonal = _diagonal(lambda z: pull(curve(push(z)))[0], p, probes, key)
        skew = -jnp.tanh(0.5 * alpha)  # 1 − 2p
        gradients = (*gradients, diagonal.astype(alpha.dtype) * 0.5 * variance * skew)

    def terms(parts):
        b = parts.b
        d = bernoulli.score(alpha, b.astype(alpha.dtype))
        first = _dot(d, jnp.broadcast_to(slope, d.shape), b.ndim - 1)
        if curve is None:
            return (first,)
        if affine:
            delta = jax.tree.map(lambda leaf, mean: lax.stop_gradient(leaf) - mean[None], parts, x)
        else:
            delta = jax.vmap(push)(d.astype(p.dtype))
        return first, lax.stop_gradient(0.5 * _dot(delta, jax.vmap(curve)(delta), b.ndim - 1))

    return Expansion(*lax.stop_gradient((bernoulli.wide(f_p), gradients)), terms)


def _linearised(
    f: Composed, p: jax.Array, v: jax.Array, affine: bool, moments: Callable | None
) -> tuple[Parts, Callable, Parts | None]:
    """Returns the parts at the mean and their derivative, or those of their mean; with moments also their variance.

    The results have no sample axis, although the functions have to see one.
    """

    def at_mean(p):
        return _first_row(parts_at(f, p[None]))

    if moments and not affine:
        mean_and_variance = lambda p: _first_row(moments(p[None], v[None]))
        return jax.linearize(*detached(mean_and_variance, p), has_aux=True)
    x, push = jax.linearize(*detached(at_mean, p))  # the exact mean of an affine inner, also if its moments are wrong
    return x, push, _first_row(moments(p[None], v[None]))[1] if moments else None


def tangent(outer_of_rows: Callable, a: Any, order: int) -> tuple[jax.Array, Any, Callable | None]:
    """Returns value and slope of outer at a, and for the second order also the product with its Hessian."""
    outer, a = detached(lambda a: outer_of_rows(_rows(a))[0], a)

    def slope(a):
        f_p, pull = jax.vjp(outer, a)
        return pull(jnp.ones_like(f_p))[0], f_p

    if order == 1:
        slope_of_a, f_p = slope(a)
        return f_p, slope_of_a, None
    slope_of_a, curve, f_p = jax.linearize(slope, a, has_aux=True)
    return f_p, slope_of_a, curve


# Nodes, in standard deviations from the mean, and weights. The last two nodes are those of the secant.
THREE_POINTS = (0.0, math.sqrt(3), -math.sqrt(3)), (2 / 3, 1 / 6, 1 / 6)  # normal: exact up to the fifth degree
TWO_POINTS = (1.0, -1.0), (1 / 2, 1 / 2)


def averaged(outer: Callable, a: Parts, variance: Any, rule: tuple) -> tuple[jax.Array, Parts, Callable]:
    """Averages what `tangent` computes over independent variables with means a; the mean curvature is a secant.

    The value is the mean of outer minus its term of second order. Where tracing finds that outer is affine in the
    binary variables themselves, as log p(b) and log q(b) are, these stay at their mean and have no curvature.
    """
    nodes, weights = rule

    def root(leaf, v):
        return jnp.sqrt(jnp.maximum(v, 0)).astype(leaf.dtype)

    def at_nodes(leaf, std):  # no concatenation: XLA does not vectorise what comes after one
        if std is None:
            return jnp.broadcast_to(leaf[None], (len(nodes), *leaf.shape))
        return leaf[None] + jnp.asarray(nodes, leaf.dtype).reshape(-1, *(1,) * leaf.ndim) * std[None]

    def secant(rows, std):
        if std is None:
            return jnp.zeros_like(rows[0])
        return (rows[-2] - rows[-1]) / ((nodes[-2] - nodes[-1]) * jnp.where(std > 0, std, 1))

    std = jax.tree.map(root, a, variance)
    outer, points = detached(outer, jax.tree.map(at_nodes, a, std))
    if is_affine(lambda b: outer(points._replace(b=b)), points.b)[0]:
        std = std._replace(b=None)
        points = points._replace(b=at_nodes(a.b, None))
    found, pull = jax.vjp(outer, points)
    (slopes,) = pull(jnp.ones_like(found))
    mean = lambda rows: sum(weight * row for weight, row in zip(weights, rows, strict=True))
    curvature = jax.tree.map(secant, slopes, std)
    curve = functools.partial(jax.tree.map, jnp.multiply, curvature)
    moved = jax.tree.map(lambda leaf, std: jnp.zeros_like(leaf) if std is None else std, a, std)
    of_second_order = 0.5 * _dot(moved, curve(moved), found.ndim - 1)
    return mean(found) - of_second_order.astype(found.dtype), jax.tree.map(mean, slopes), curve


def _diagonal(product: Callable, p: jax.Array, probes: int, key: jax.Array | None) -> jax.Array:
    """Estimates the diagonal of a matrix `[*batch, D, D]` from products with it; with D probes or more it is exact."""
    dim = p.shape[-1]
    if probes >= dim:
        z = jnp.ones_like(p)[None] * jnp.expand_dims(jnp.eye(dim, dtype=p.dtype), tuple(range(1, p.ndim)))
        return jnp.sum(z * jax.vmap(product)(z), axis=0)
    assert key is not None  # the second order is given one
    z = jnp.ones_like(p)[None] * jax.random.rademacher(key, (probes, *p.shape), p.dtype)
    return jnp.mean(z * jax.vmap(product)(z), axis=0)


def _rows(tree: Any) -> Any:
    """Adds a sample axis of size one."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def _first_row(tree: Any) -> Any:
    """Drops the sample axis."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _dot(x: Any, y: Any, ndim: int) -> jax.Array:
    """Returns Σ x y over all leaves and all but the first `ndim` axes."""
    dtype = bernoulli.wide_dtype(*jax.tree.leaves(x))

    def summed(x, y):
        return row_sums((x.astype(dtype) * y.astype(dtype)).reshape(*x.shape[:ndim], -1))

    return jnp.asarray(sum(map(summed, jax.tree.leaves(x), jax.tree.leaves(y))))
