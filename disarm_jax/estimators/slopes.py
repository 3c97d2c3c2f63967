"""Estimators that look at ∇f where they evaluate f: one call of f, and one reverse pass over all samples stacked."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimate, Estimator


def evaluate_with_slope(
    who: str, f: Callable, points: jax.Array, has_aux: bool, event_ndim: int = 1
) -> tuple[jax.Array, jax.Array, Any]:
    """f at the points, ∇f there without derivatives of its own, and the auxiliary output (None without one).

    Args:
      who: the names of the estimators that ask, for the refusal of an f that returns integers.
      f: the function inside the expectation.
      points: `[N, *batch, D]`, in the dtype that f gets.
      has_aux: whether f returns a pair `(f_b, aux)`.
      event_ndim: 1 for bits, 2 for classes, as in `SampleEstimator`.
    """

    def call(points):
        f_b, aux = contract.evaluate(f, points, points.shape[:-event_ndim], has_aux)
        contract.check_differentiable(who, f_b)
        return f_b, aux

    f_b, pull, aux = jax.vjp(call, points, has_aux=True)
    (slope,) = pull(jnp.ones_like(f_b))
    return f_b, bernoulli.wide(lax.stop_gradient(slope)), aux


def from_slopes(
    who: str,
    draw: Callable,
    gradient: Callable,
    *,
    init: Callable | None = None,
    relax: Callable | None = None,
    event_ndim: int = 1,
) -> Estimator:
    """As `SampleEstimator`, with ∇f at the samples for the formula.

    Args:
      who: as in `evaluate_with_slope`.
      draw: `(params, key, logits) -> (b, noise)`, samples b `[N, *batch, D]` of the law q.
      gradient: `(params, logits, b, noise, f_b, slope) -> [*batch, D]`, with f_b `[N, *batch]`, slope `[N, *batch, D]`.
      init: as in `Estimator`.
      relax: `(logits, noise) -> [N, *batch, D]`, points between the bits where ∇f is taken instead; f is then evaluated
        at the samples in a call of its own, because `value` is a mean of f over them. None: ∇f at the samples.
      event_ndim: 1 for bits, 2 for classes, as in `SampleEstimator`.
    """

    def apply(params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False):
        logits = bernoulli.as_logits(logits, event_ndim=event_ndim)
        alpha = bernoulli.stop_and_widen(logits)
        b, noise = draw(params, key, alpha)
        samples = b.astype(logits.dtype)
        if relax is None:
            f_b, slope, aux = evaluate_with_slope(who, f, samples, has_aux, event_ndim)
        else:
            f_b, aux = contract.evaluate(f, samples, samples.shape[:-event_ndim], has_aux)
            relaxed = relax(alpha, noise).astype(logits.dtype)
            _, slope, _ = evaluate_with_slope(who, f, relaxed, has_aux, event_ndim)
        f_b, value_dtype = contract.widen(f_b, logits)
        grad = gradient(params, alpha, b, noise, lax.stop_gradient(f_b), slope)
        estimate = Estimate(jnp.mean(f_b, axis=0).astype(value_dtype), contract.finish(grad, logits, event_ndim))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init or functools.partial(contract.no_params, event_ndim=event_ndim), apply)
