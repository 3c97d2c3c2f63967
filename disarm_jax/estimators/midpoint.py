"""Control variates from what is known of f at the midpoint of each pair of samples.

Let c = (b + b̃)/2 and d = (b − b̃)/2 for a pair whose variables are independent and exchangeable. Given the unordered
pairs {b_i, b̃_i} of all variables, which of the two is b_i is decided by fair coins, independent of each other: the
signs of the d_i. So for a pair estimator with the gradient ½ (f(b) − f(b̃)) h_i,

    ½ h_i R_i

has mean zero for every R_i that depends on the unordered pairs and on the coins of the other variables. The best one is
the mean of f(b) − f(b̃) given all but coin i. To first order it is 2 Σ_{k≠i} g_k·d_k with g = ∇f(c), and there is
nothing of second order in it: b and b̃ lie opposite each other around c, and terms of even order cancel.

In a multi-sample bound, f = log w goes through φ(ℓ) = log(e^A + e^ℓ), where e^A are the summed weights of companions.
The mean is then that of φ(ℓ(b)) − φ(ℓ(b̃)). φ is kept as it is and only ℓ approximated: with the odd part of ℓ as above
and its even part m, both without coin i,

    R_i = φ(m_i + Σ_{k≠i} g_k·d_k) − φ(m_i − Σ_{k≠i} g_k·d_k),   m_i = m + ½ dᵀHd − d_i·(Hd)_i + d_i·H_ii d_i,

with m = ℓ(c) and H the curvature of ℓ at c.

That a baseline for coordinate i may depend on the other coordinates was used by Wu et al. (2018, arXiv 1803.07246); to
condition on the unordered pair is ours.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import antithetic, calling, options
from disarm_jax.estimators.controlled import AtSamples, Controlled, check_base
from disarm_jax.estimators.estimator import Estimator, SampleEstimator, describe
from disarm_jax.estimators.expansion import TWO_POINTS, averaged, tangent
from disarm_jax.estimators.first_order import detached, vary_like
from disarm_jax.estimators.pairing import Pairing
from disarm_jax.formulas.arrays import row_sums
from disarm_jax.structure import MLP, Composed, Parts, outer_of, pair_moments_of, parts_at

OWN_WEIGHT = 0.25  # of a row in its own λ, as one that nothing was predicted for; every other row counts 1


def midpoint(base: Estimator, *, init_scale: float | None = None) -> Controlled:
    """Removes from an estimator made of pairs the noise that the other variables add to each variable.

    The estimate is ½ (f(b) − f(b̃) − λ Σ_{k≠i} g_k·(b_k − b̃_k)) h_i, averaged over the pairs, where ½ (f(b) − f(b̃)) h
    is the base estimator and g is the gradient of f at the midpoint (b + b̃)/2. It is unbiased for every λ, and terms
    of even order cancel in the pair. It takes the base's evaluations of f and one at the midpoint of each pair, where f
    is differentiated and so must be pure. For an f that is `Composed` with an affine inner function, the latter costs
    little more than the product that takes the slope back to the variables. If inner knows its moments, g is the mean
    slope over the values that inner(b) may take given the midpoint, which follows f further than a tangent does.

    For a multi-sample bound, f(b) − f(b̃) and the term that is subtracted go through the log-sum-exp with the
    companions of the pair. This also needs the curvature of f at the midpoint, and so its second derivative.

    By default there is nothing to learn. The λ of a row, between 0 and 1, is computed from how well the slope predicts
    the differences of the other rows of the batch in the same draw. If there is only one row, another pair around its
    midpoint is predicted instead, for two more evaluations of f. With an `init_scale`, λ is learnt by descending
    `variance_loss`.

    Paper: disarm_jax; the linear control variate of Gu et al., MuProp, ICLR 2016, at the midpoint of a pair
    Advice: When f is smooth between 0 and 1, of many bits: a quarter of the variance or less, 1.2–1.4 times the time.

    Args:
      base: an estimator made of exchangeable pairs: `disarm`, `reinforce_loo`, `interpolated`, `arms` or
        `arms_interpolated`; for bounds `multisample_disarm` or `multisample_arms`; for classes `reinforce_loo`,
        `disarm_sb`, `disarm_tree`, `disarm_iw` or `multisample_disarm`. Of n coupled samples, all n (n − 1)/2 pairs are
        used.
      init_scale: the initial value of λ, if it is to be learnt. None computes λ from the batch; but where tunables of
        the base change the distribution of the samples, None means 1, because the loss that they are learnt by requires
        rows that do not depend on each other.

    Returns:
      An estimator whose `params` are those of the base, `()` for most; with a learnt λ, `{"base": the params of the
      base,
      "scale": (λ,)}`.

    Raises:
      TypeError: if `base` is not an estimator.
      ValueError: if `base` is not made of exchangeable pairs of independent variables.

    Example:
      >>> est = dj.midpoint(dj.arms(num_samples=3))
      >>> f = lambda b: (b.sum(-1) - 0.7) ** 2
      >>> dj.expectation(est)((), jax.random.key(0), jnp.zeros((5, 3)), f).shape
      (5,)
    """
    pairs = check_base(base)
    if init_scale is None and pairs.moves_samples:
        init_scale = 1.0
    learnt = () if init_scale is None else (options.finite("init_scale", init_scale),)
    info = pairs.info
    if info is not None and isinstance(info.evaluations, int):  # it is a text only for bases that are not made of pairs
        evaluations = info.evaluations + pairing_of(pairs).count(info.evaluations)
        found = describe(midpoint, evaluations, objective=info.objective, needs_grad=True)
        info = found._replace(name=f"{info.name}_midpoint")
    return Controlled(base=pairs, control=_AtTheMidpoint(), init_scale=learnt, info=info)


def disarm_midpoint(*, num_pairs: int = 1, init_scale: float | None = None) -> Controlled:
    """DisARM without the noise that the other bits add to each bit: `midpoint(disarm(num_pairs=…))`.

    Use it where f is smooth between 0 and 1. It is unbiased, with one differentiated evaluation of f per pair in
    addition to those of DisARM; see `midpoint`.

    Args:
      num_pairs: the number of antithetic pairs, at least 1; the pairs are independent of each other.
      init_scale: as in `midpoint`.

    Returns:
      An estimator with `params = ()`, unless an `init_scale` is given.

    Example:
      >>> f = lambda b: (b**2).sum(-1)
      >>> out = dj.disarm_midpoint().apply((), jax.random.key(1), jnp.zeros((5, 3)), f)
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return midpoint(antithetic.disarm(num_pairs=num_pairs), init_scale=init_scale)


def pairing_of(base: SampleEstimator) -> Pairing:
    """Returns how the samples of an estimator form pairs. Raises ValueError if they do not."""
    if base.pairs is None:
        raise ValueError(
            f"base must be made of exchangeable pairs, got {base.name}; accepted: disarm, reinforce_loo, interpolated, "
            "arms, arms_interpolated, multisample_disarm, multisample_arms; of dj.categorical: reinforce_loo, "
            "disarm_sb, disarm_tree, disarm_iw, multisample_disarm"
        )
    return base.pairs


class _AtTheMidpoint:
    """The control variate from f at the midpoint: the noise of the other variables."""

    random = False

    def check(self, base: SampleEstimator) -> None:
        """Raises ValueError if the base is not made of pairs."""
        pairing_of(base)

    def point(self, logits: jax.Array, b: jax.Array) -> jax.Array:
        """Returns the mean of the samples of a layer, which does not depend on the order of any two of them."""
        return jnp.mean(b, axis=0)

    def terms(self, est: Controlled, params: Any, key: jax.Array | None, at: AtSamples) -> tuple[None, list[jax.Array]]:
        """Returns ½ h_i R_i, averaged over the pairs, and multiplied by λ unless λ is learnt."""
        base, alpha = est.base, bernoulli.stop_and_widen(at.logits)
        pairs, event_ndim = pairing_of(base), base.event_ndim
        first, second = (jax.tree.map(lambda x, n=n: pairs.split(x)[n], at.parts) for n in (0, 1))
        sets = None if pairs.companions is None else pairs.companions(at.f_b).astype(alpha.dtype)
        order = 1 if sets is None else 2
        value, odd, even, own = around_midpoints(est.name, at.f, first, second, order, event_ndim, has_aux=at.has_aux)
        total, middle = row_sums(odd), value + 0.5 * row_sums(even)
        others = total[..., None] - odd
        without_own = middle[..., None] - even + own
        noise = difference(None if sets is None else sets[..., None], without_own, others)
        if not est.init_scale:
            steepness = 2 if sets is None else 2 * jnp.mean(jax.nn.sigmoid(value[None] - sets), axis=0)
            typical = steepness**2 * jnp.sum(odd**2, axis=-1)  # of what is predicted, whatever the coins are
            if math.prod(total.shape[1:]) > 1:
                f_b, f_b_tilde = (x.astype(alpha.dtype) for x in pairs.split(at.f_b))
                found = difference(sets, 0.5 * (f_b + f_b_tilde), 0.5 * (f_b - f_b_tilde))
                scale = scale_of_rows(difference(sets, middle, total), found, typical)
            else:
                half, middle, total = _another_pair(at.f, first.b, second.b, odd, event_ndim, at.has_aux)
                found, predicted = difference(sets, middle, half), difference(sets, middle, total)
                scale = shrunk_slope(predicted * found, predicted**2, typical)
            noise = noise * scale[..., None]
        factor = pairs.factor(params, alpha, first.b.astype(alpha.dtype), second.b.astype(alpha.dtype))
        noise = noise[..., None] if event_ndim == 2 else noise
        return None, [_mean_of_pairs(0.5 * noise * factor)]


def _mean_of_pairs(x: jax.Array) -> jax.Array:
    """Returns the mean over the first axis.

    It adds up halves. From a reduction XLA would make one kernel together with all that leads to it, which on a CPU
    takes twice as long as a loop over pairs and variables.
    """
    num, odd = len(x), []
    while len(x) > 1:
        odd += [x[-1]] * (len(x) % 2)
        x = x[: len(x) // 2] + x[len(x) // 2 : len(x) // 2 * 2]
    return sum(odd, x[0]) / num


def difference(sets: jax.Array | None, middle: jax.Array, half: jax.Array) -> jax.Array:
    """Returns the mean over A of φ(m + h) − φ(m − h), where φ(ℓ) = log(e^A + e^ℓ).

    Args:
      sets: A, `[sets, P, …]`, which may be −∞. None means φ(ℓ) = ℓ.
      middle: m, `[P, …]`.
      half: h, `[P, …]`.
    """
    if sets is None:
        return 2 * half

    def among(*sets):  # the sum over some sets of softplus(u) − softplus(v), with one division and one logarithm
        total, above, below = 0, 1, 1
        for companions in sets:
            u, v = companions + (-middle - half), companions + (half - middle)
            total = total + jnp.maximum(u, 0) - jnp.maximum(v, 0)
            above, below = above * (1 + jnp.exp(-jnp.abs(u))), below * (1 + jnp.exp(-jnp.abs(v)))
        return total + jnp.log(above / below)

    if len(sets) > 2:  # one after the other: there may be thousands
        step = lambda total, companions: (total + among(companions), None)
        total, _ = lax.scan(step, among(sets[0]), sets[1:])
    else:
        total = among(*sets)
    return 2 * half + total / len(sets)


def scale_of_rows(predicted: jax.Array, found: jax.Array, typical: jax.Array) -> jax.Array:
    """Returns λ, `[P, *batch]`, from all other rows, so that it is independent of the row's own coins.

    Rows that are not finite are left out. From its own row a pair uses only what is typical for itself: the midpoint of
    another pair may share a sample with it, and that of a bound its companions.

    Args:
      predicted: `[P, *batch]`, the differences that were predicted.
      found: `[P, *batch]`, the differences that were found.
      typical: `[P, *batch]`, the mean square of the prediction, given the midpoint.
    """

    def of_others(x):
        by_row = jnp.sum(x, axis=0, keepdims=True)
        by_row = jnp.where(jnp.isfinite(by_row), by_row, 0)
        return jnp.sum(by_row) - by_row  # where one row dominates digits are lost, but there its own weight does, too

    return shrunk_slope(of_others(predicted * found), of_others(predicted**2), len(typical) * typical)


def shrunk_slope(product: jax.Array, square: jax.Array, typical: jax.Array) -> jax.Array:
    """Returns λ between 0 and 1: the least-squares slope of the differences found on those predicted, shrunk towards 0.

    It is shrunk where the prediction for a pair is larger than for the pairs that the slope is estimated from: the
    slope may suit a few pairs badly, and a large λ would then do harm.

    Args:
      product: Σ predicted · found.
      square: Σ predicted².
      typical: predicted² of the pairs that λ is for.
    """
    square = square + OWN_WEIGHT * typical
    return jnp.clip(product / jnp.where(square > 0, square, 1), 0, 1)


def _another_pair(
    f: Composed, b: jax.Array, b_tilde: jax.Array, odd: jax.Array, event_ndim: int, has_aux: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Evaluates f at another pair around each midpoint.

    The order of the two values of each variable in this pair is fixed, so that it does not depend on the coins. Returns
    half the difference of f, the mean of f, and the predicted half of the difference.
    """
    middle, half = 0.5 * (b + b_tilde), 0.5 * (b - b_tilde)
    order = bernoulli.lift(jnp.arange(b.shape[-1], 0, -1, dtype=half.dtype), half.ndim)
    upwards = jnp.sign(jnp.sum(half * order, axis=-1) if event_ndim == 2 else half)
    fixed = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], upwards.shape[-1]), half.dtype)
    coin = upwards * bernoulli.lift(fixed, upwards.ndim)
    half = half * (coin[..., None] if event_ndim == 2 else coin)
    points = parts_at(f, jnp.concatenate([middle + half, middle - half]), event_ndim)
    f_b, _ = calling.evaluate(lambda parts: f.outer(*parts), points, (2 * len(b), *odd.shape[1:-1]), has_aux)
    above, below = jnp.split(lax.stop_gradient(f_b).astype(odd.dtype), 2)
    return 0.5 * (above - below), 0.5 * (above + below), row_sums(odd * coin.astype(odd.dtype))


class Around(NamedTuple):
    """The expansion of f at the midpoints of pairs, in float32 or wider; no derivative passes through any of it.

    Attributes:
      value: `[P, *batch]`, m: f at the midpoint.
      odd: `[P, *batch, D]`, g_i·d_i.
      even: `[P, *batch, D]`, d_i·(Hd)_i; 0 for the first order.
      own: `[P, *batch, D]`, d_i·H_ii d_i where it is cheap to compute, else 0.
    """

    value: jax.Array
    odd: jax.Array
    even: jax.Array
    own: jax.Array


def around_midpoints(
    name: str, f: Composed, first: Parts, second: Parts, order: int, event_ndim: int, *, has_aux: bool = False
) -> Around:
    """Expands f at the midpoint of each pair, by one call of outer, and one of inner or of its moments.

    With moments, slope and curvature are the mean and the secant of the slopes of outer at one standard deviation of
    inner(b) on either side, given the midpoint.

    Args:
      name: the name of the estimator, for error messages.
      f: outer and inner function.
      first, second: inner(b) and b of the two samples of each pair, `[P, *batch, …]`.
      order: 1, or 2 for the curvature.
      event_ndim: 1 for bits, 2 for classes.
      has_aux: whether f returns a pair.
    """
    first, second = lax.stop_gradient((first, second))
    middle, half = 0.5 * (first.b + second.b), 0.5 * (first.b - second.b)
    moments, affine = pair_moments_of(f, event_ndim), f.is_affine(middle)

    def expand(c):
        return moments(c, half) if moments and not affine else (Parts(f.inner(c), c), None)

    mean, _ = detached(expand, middle)
    x, pull, spread = jax.vjp(mean, middle, has_aux=True)
    if affine:
        x = x._replace(a=jax.tree.map(lambda a, a_tilde: 0.5 * (a + a_tilde), first.a, second.a))
        spread = moments(middle, half)[1] if moments else None
    x, spread = lax.stop_gradient(vary_like((x, spread), middle))
    rows = middle.shape[: middle.ndim - event_ndim]
    outer_of_rows = outer_of(name, f, rows[1:], has_aux)

    def outer(parts):
        return outer_of_rows(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), parts)).reshape(-1, *rows)

    def along(slope):
        inner = bernoulli.wide(jnp.where(half == 0, 0, slope * half))  # f may have no finite slope where b and b̃ agree
        return jnp.sum(inner, axis=-1) if event_ndim == 2 else inner

    if spread is None:
        value, slope, curve = tangent(outer, x, order)
    else:
        value, slope, curve = averaged(outer, x, spread, TWO_POINTS)
        if order == 2:  # the average would serve no better and cost more; the first order makes no use of the value
            value, *_ = tangent(outer, x, 1)
    odd = along(pull(slope)[0])
    value = value.astype(odd.dtype)
    if curve is None:
        return lax.stop_gradient(Around(value, odd, jnp.zeros_like(odd), jnp.zeros_like(odd)))
    if affine:
        delta = Parts(jax.tree.map(lambda a, a_tilde: 0.5 * (a - a_tilde), first.a, second.a), half)
    else:
        _, delta, _ = jax.jvp(mean, (middle,), (half,), has_aux=True)
    even, own = along(pull(curve(delta))[0]), jnp.zeros_like(odd)
    if spread is not None and affine and isinstance(f.inner, MLP) and len(f.inner.layers) == 1:
        curvature = curve(jax.tree.map(jnp.ones_like, x))
        own = along(curvature.b * half) + bernoulli.wide(f.inner.own_curvature(curvature.a, half)).astype(odd.dtype)
    return lax.stop_gradient(Around(value, odd, even, own))
