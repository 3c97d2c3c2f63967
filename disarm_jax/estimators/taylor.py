"""Control variates from the expansion of f at the mean p, for any estimator that is linear in f.

h₁ and h₂ are the terms of first and second order, and ∂E h_j/∂α is known. So base(h_j) − ∂E h_j is noise of mean zero,
made of the samples that base(f) is made of and much like its noise, and base(f − f(p)) − Σ_j λ_j (base(h_j) − ∂E h_j)
is unbiased for every λ if the base is. A multi-sample bound is not linear in f, but the noise of what is linear in the
same samples serves as its control variate, too.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import antithetic, contract, copula, multisample, score_function
from disarm_jax.estimators.chain import chain_keys
from disarm_jax.estimators.composed import as_composed
from disarm_jax.estimators.estimator import Estimate, Estimator, SampleEstimator, mean_value
from disarm_jax.estimators.expansion import WHO, expand
from disarm_jax.estimators.slopes import evaluate_with_slope

ORDERS = (1, 2)


def taylor(
    base: Estimator, *, order: int = 2, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1
) -> Estimator:
    """An estimator with the expansion of f at the mean as its control variate.

    The base is applied to f(b) − f(p) − λ₁ ∇f(p)ᵀ(b − p) − ½ λ₂ (b − p)ᵀH(b − p), and the gradient of what was
    subtracted is added in closed form. Unbiased for every λ if the base is; the base's evaluations of f and one at the
    mean, where f is differentiated. The second order costs one product with the Hessian H per sample and per probe;
    of an f that is `Composed` they are products with outer's alone, and inner is computed once for f and expansion. If
    it gives the moments of inner(b), slope and curvature of the second order are means over what inner(b) may be, and
    outer is differentiated once, at three points.

    `params` is `{"base": the base's, "scale": (λ₁, λ₂)}`, λ₁ alone for the first order; learnt by descending
    `variance_loss`.

    Args:
      base: a `SampleEstimator` of bits whose formula is linear in f, such as `disarm()`; or one of a multi-sample bound
        with f = log w: what is subtracted is then the noise of the expansion of log w in DisARM, ARMS or REINFORCE-LOO
        on the bound's own samples. The more samples the bound has, the less there is to gain.
      order: 1 or 2.
      init_scale: λ₁ and λ₂ at the start; the second is not used for the first order.
      probes: number of random signs z whose z ⊙ Hz estimate the diagonal of H, where `Composed` does not give it;
        independent of b. From D of them on, the D coordinates are taken instead, and the diagonal is exact.

    Example:
      >>> est = dj.taylor(dj.reinforce_loo(num_samples=3), order=1)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: 2 * b.sum(-1))
      >>> out.grad[0]  # exact for a linear f
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    base = check_base(base)
    contract.at_least("probes", probes, 1)
    if order not in ORDERS or not isinstance(order, int | np.integer) or isinstance(order, bool):
        raise ValueError(f"order must be 1 or 2, got {order!r}")
    init_scale = check_scale(init_scale)[:order]
    is_centred = base.of_bound or base.of_differences  # so that f(p) makes no difference

    def init(key: jax.Array, logits: jax.Array) -> dict:
        return {"base": base.init(key, logits), "scale": scales(init_scale, logits)}

    def expanded(key, logits, f, has_aux):
        """The base's key, ∂E h_j/∂α, and a function of samples: f there and aux, f − f(p), and the terms h_j."""
        base_key, *probe_key = chain_keys(key, order)
        f, dtype = as_composed(f), logits.dtype
        expansion = expand(f, logits, order, probes, *probe_key, has_aux=has_aux)

        def rows(b):
            inner_b = f.inner(b.astype(dtype))
            f_b, aux = contract.evaluate(f.outer, inner_b, b.shape[:-1], has_aux)
            wide_f, _ = contract.widen(lax.stop_gradient(f_b), logits)
            centred = wide_f if is_centred else wide_f - expansion.f_p[None].astype(wide_f.dtype)
            return (f_b, aux), centred, [h.astype(wide_f.dtype) for h in expansion.terms(b, inner_b)]

        return base_key, expansion.gradients, rows

    def apply(params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False):
        logits = bernoulli.as_logits(logits)
        alpha, own = bernoulli.stop_and_widen(logits), params["base"]
        base_key, exact, rows = expanded(key, logits, f, has_aux)
        samples = base.draw(own, base_key, logits)
        (f_b, aux), centred, terms = rows(samples.b)
        noise = [base.linear_estimate(own, alpha, samples, h) - g for h, g in zip(terms, exact, strict=True)]
        grad = base.formula(own, alpha, *samples, centred) - combine(params["scale"], noise)
        estimate = base.finish(logits, f_b, grad)
        return (estimate, base.of_draws(aux)) if has_aux else estimate

    def variance_loss(params: Any, key: jax.Array, logits: jax.Array, f: Callable) -> jax.Array:
        # The base's tunables move the distribution of the samples, which its own loss accounts for; the scales do not.
        logits = bernoulli.as_logits(logits)
        scale_key, key = jax.random.split(key)
        of_scales = apply(params | {"base": lax.stop_gradient(params["base"])}, scale_key, logits, f).grad
        base_key, _, rows = expanded(key, logits, f, False)

        def residual(b):
            _, centred, terms = rows(b)
            return centred - combine(lax.stop_gradient(params["scale"]), terms)

        of_base = base.variance_loss(params["base"], base_key, bernoulli.stop_and_widen(logits), residual)
        return contract.sum_of_squares(of_scales) + of_base

    return Estimator(init, apply, None if base.variance_loss is None else variance_loss, tuned_by_logits=True)


@contract.factory
def muprop(*, num_samples: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """MuProp (Gu et al., 2016): REINFORCE on f less its first-order expansion at the mean, whose gradient is added.

    (f(b) − f(p) − λ ∇f(p)ᵀ(b − p)) ∂log q(b) + λ ∇f(p) ⊙ p(1 − p). Unbiased for every λ; `num_samples` evaluations of f
    and one at the mean, where f is differentiated. It is `taylor(reinforce(), order=1)`, with its `params`.

    Args:
      num_samples: number of independent samples.
      init_scale: λ at the start is the first of the pair, the paper's is 1; the second is not used.

    Example:
      >>> est = dj.muprop()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return taylor(score_function.reinforce(num_samples=num_samples), order=1, init_scale=init_scale)


@contract.factory
def disarm_taylor(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """DisARM on f less its first-order expansion at the mean, whose gradient is added.

    Unbiased for every λ; two evaluations of f per pair and one at the mean, where f is differentiated. It is
    `taylor(disarm(), order=1)`, with its `params`.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.
      init_scale: λ at the start is the first of the pair; the second is not used.

    Example:
      >>> est = dj.disarm_taylor()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return taylor(antithetic.disarm(num_pairs=num_pairs), order=1, init_scale=init_scale)


@contract.factory
def disarm_quadratic(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """DisARM on f less its second-order expansion at the mean, whose gradient is added.

    The pair cancels terms of even order where p is near ½, the expansion those of first and second order everywhere.
    Unbiased for every λ₁ and λ₂; two evaluations of f per pair and one at the mean, where f is differentiated twice;
    cheapest for an f that is `Composed`. It is `taylor(disarm(), order=2)`, with its `params`.

    Args:
      num_pairs: number of antithetic pairs, independent of each other.
      init_scale: λ₁ and λ₂ at the start.
      probes: number of random signs that estimate the diagonal of the Hessian, see `taylor`.

    Example:
      >>> est = dj.disarm_quadratic(probes=3)  # as many probes as bits: the diagonal is exact
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
      >>> out.grad[0]  # exact for a quadratic f
      Array([0.75, 0.75, 0.75], dtype=float32)
    """
    return taylor(antithetic.disarm(num_pairs=num_pairs), order=2, init_scale=init_scale, probes=probes)


@contract.factory
def arms_quadratic(*, num_samples: int = 4, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """ARMS on f less its second-order expansion at the mean, whose gradient is added.

    As `disarm_quadratic`, with more than two evaluations of f: n of them and one at the mean. It is
    `taylor(arms(), order=2)`, with its `params`.

    Args:
      num_samples: n, number of samples from the Dirichlet copula, at least 2.
      init_scale: λ₁ and λ₂ at the start.
      probes: number of random signs that estimate the diagonal of the Hessian, see `taylor`.

    Example:
      >>> est = dj.arms_quadratic(probes=3)  # as many probes as bits: the diagonal is exact
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: b.sum(-1) ** 2)
      >>> print(out.grad[0].round(4))  # exact for a quadratic f
      [0.75 0.75 0.75]
    """
    return taylor(copula.arms(num_samples=num_samples), order=2, init_scale=init_scale, probes=probes)


@contract.factory
def multisample_disarm_quadratic(
    *,
    num_pairs: int = 1,
    configurations: str = "paper",
    init_scale: tuple[float, float] = (1.0, 1.0),
    probes: int = 1,
) -> Estimator:
    """Multi-sample DisARM with the second-order expansion of log w at the mean as its control variate.

    Unbiased for the derivative of the K-sample bound, for every λ₁ and λ₂; 2K evaluations of log w and one at the mean,
    where it is differentiated twice. For one pair it is `disarm_quadratic`; its gain shrinks as K grows. It is
    `taylor(multisample_disarm(), order=2)`, with its `params`.

    Args:
      num_pairs: K, number of antithetic pairs.
      configurations: as in `multisample_disarm`.
      init_scale: λ₁ and λ₂ at the start.
      probes: number of random signs that estimate the diagonal of the Hessian, see `taylor`.

    Example:
      >>> est = dj.multisample_disarm_quadratic(num_pairs=5)
      >>> params = est.init(jax.random.key(0), jnp.zeros((7, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((7, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((7,), (7, 3))
    """
    base = multisample.multisample_disarm(num_pairs=num_pairs, configurations=configurations)
    return taylor(base, order=2, init_scale=init_scale, probes=probes)


@contract.factory
def disarm_taylor_cross(*, num_pairs: int = 2, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """DisARM on f less a linear function, for each pair with the mean slope of f at the other pairs.

    Pair k is applied to f(b) − λ sᵀ(b − p), s the mean of ∇f over the other pairs, and λ s ⊙ p(1 − p) is added.
    Unbiased for every λ, since a pair does not see its own slope; two evaluations of f per pair and none at the mean: f
    is differentiated where it is evaluated anyway.

    `params` is `{"scale": (λ,)}`, learnt by descending `variance_loss`.

    Args:
      num_pairs: number of antithetic pairs, independent of each other, at least 2.
      init_scale: λ at the start is the first of the pair; the second is not used.

    Example:
      >>> est = dj.disarm_taylor_cross()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: 2 * b.sum(-1))
      >>> out.grad[0]  # exact for a linear f
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    contract.at_least("num_pairs", num_pairs, 2)
    init_scale = check_scale(init_scale)

    def init(key: jax.Array, logits: jax.Array) -> dict:
        return {"scale": scales(init_scale[:1], logits)}

    def apply(params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False):
        logits = bernoulli.as_logits(logits)
        alpha = bernoulli.stop_and_widen(logits)
        b, b_tilde, _ = bernoulli.antithetic_pairs(key, alpha, num_pairs)
        stack = jnp.concatenate([b, b_tilde])
        f_b, slopes, aux = evaluate_with_slope(WHO, f, stack.astype(logits.dtype), has_aux)
        slopes = sum(jnp.split(0.5 * slopes, 2))  # of each pair
        others = (jnp.sum(slopes, axis=0, keepdims=True) - slopes) / (num_pairs - 1)
        linear = jnp.sum(jnp.concatenate([others, others]) * bernoulli.score(alpha, stack), axis=-1)
        f_b, value_dtype = contract.widen(f_b, logits)

        def disarm(values):
            return jnp.mean(formulas.disarm(alpha, b, b_tilde, *jnp.split(lax.stop_gradient(values), 2)), axis=0)

        noise = disarm(linear) - jnp.mean(slopes, axis=0) * bernoulli.variance(alpha)
        grad = disarm(f_b) - combine(params["scale"], [noise])
        estimate = Estimate(mean_value(f_b).astype(value_dtype), contract.finish(grad, logits))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init, apply, tuned_by_logits=True)


def combine(weights: Any, arrays: Any) -> jax.Array:
    """Σ_j w_j x_j, in the dtype of the arrays."""
    return sum(jnp.asarray(w).astype(x.dtype) * x for w, x in zip(weights, arrays, strict=True))


def check_scale(init_scale: tuple[float, float]) -> tuple[float, float]:
    """The option `init_scale`, refused unless it is a pair of numbers."""
    if not (isinstance(init_scale, tuple | list) and len(init_scale) == 2):
        raise ValueError(f"init_scale must be a pair of numbers, got {init_scale!r}")
    return tuple(
        contract.number("init_scale", scale, math.isfinite, "a pair of finite numbers") for scale in init_scale
    )


def scales(init_scale: tuple[float, ...], logits: jax.Array) -> tuple[jax.Array, ...]:
    """The scales as tunables, float32 or wider."""
    dtype = bernoulli.wide_dtype(bernoulli.as_logits(logits))
    return tuple(jnp.asarray(scale, dtype) for scale in init_scale)


def check_base(base: Estimator) -> SampleEstimator:
    """The base of a control variate.

    Raises:
      TypeError: if it is no estimator, or one for classes.
      ValueError: if it calls f itself, or is of a bound and has no linear companion.
    """
    if not isinstance(base, Estimator):
        raise TypeError(f"base must be an Estimator, got {base!r}")
    if not isinstance(base, SampleEstimator):
        raise ValueError(
            "base must not differentiate f itself: accepted are estimators of samples, such as dj.disarm()"
        )
    if base.event_ndim != 1:
        raise TypeError("base must be an estimator for bits, got one for classes")
    if base.of_bound and base.linear is None:
        raise ValueError("base must be linear in f, or for a bound have a linear companion, got one without")
    return base
