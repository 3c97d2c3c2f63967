"""Finds out what kind of estimator was given, from its record if possible, otherwise from its behaviour."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from disarm_jax.estimators.estimator import Estimator

_DROP = 1000.0  # nats: far enough that the rest vanishes, and log K still has its digits in float32


class Facts(NamedTuple):
    """What the checks need to know about an estimator.

    Attributes:
      name: the registered name; None for a custom estimator.
      event_ndim: 1 for bits `[*batch, D]`, 2 for classes `[*batch, D, C]`.
      objective: "expectation" or "bound".
      bound_samples: K of the K-sample bound; 1 for an expectation.
      unbiased: whether the estimator is unbiased; None if unknown.
      needs_grad: whether f is differentiated with respect to b.
      independent: whether the bits (or variables) of a sample are independent of each other.
    """

    name: str | None
    event_ndim: int
    objective: str
    bound_samples: int
    unbiased: bool | None
    needs_grad: bool
    independent: bool = True


class _DifferentiatedError(Exception):
    """Raised by the derivative rule of a probe."""


def find_facts(est: Estimator, params: Any, key: jax.Array, logits: jax.Array) -> Facts:
    """Reads `est.info` if there is one, and traces the estimator with test functions in the place of f.

    Raises:
      Exception: whatever `est.apply` raises for a simple f.
    """
    info = getattr(est, "info", None)
    event_ndim = _event_ndim(est, params, key, logits)
    num = _bound_samples(est, params, key, logits, event_ndim)
    objective = info.objective if info else ("bound" if num > 1 else "expectation")
    needs_grad = info.needs_grad if info else _differentiates(est, params, key, logits, event_ndim)
    independent = getattr(est, "independent", True)
    return Facts(info and info.name, event_ndim, objective, num, info and info.unbiased, needs_grad, independent)


def _sum_of_event(event_ndim: int) -> Callable:
    return lambda b: jnp.sum(b, axis=tuple(range(-event_ndim, 0)))


def _event_ndim(est: Estimator, params: Any, key: jax.Array, logits: jax.Array) -> int:
    """Returns the number of axes that f removes, which is found by trying."""
    known = getattr(est, "event_ndim", None)
    if known:
        return known
    errors = []
    for event_ndim in range(1, min(logits.ndim, 2) + 1):
        try:
            out = jax.eval_shape(lambda n=event_ndim: est.apply(params, key, logits, _sum_of_event(n)))
        except Exception as error:
            errors.append(error)
        else:
            if out.value.shape == logits.shape[:-event_ndim]:
                return event_ndim
            errors.append(ValueError(f"est.apply returns a value of shape {out.value.shape} for logits {logits.shape}"))
    raise errors[0]


def _differentiates(est: Estimator, params: Any, key: jax.Array, logits: jax.Array, event_ndim: int) -> bool:
    """Returns whether the estimator differentiates f, found by an f whose derivative raises."""
    probe = jax.custom_jvp(_sum_of_event(event_ndim))

    @probe.defjvp
    def _raise(primals, tangents):
        raise _DifferentiatedError

    try:
        jax.eval_shape(lambda: est.apply(params, key, logits, probe))
    except _DifferentiatedError:
        return True
    return False


def _bound_samples(est: Estimator, params: Any, key: jax.Array, logits: jax.Array, event_ndim: int) -> int:
    """Returns K, found from the value for an f that is 0 at the first sample and very negative at the others.

    Of G groups of K samples, one has the bound −log K, and the others that of all their samples. A mean of f over its
    samples is the case K = 1.
    """

    def probe(b: jax.Array) -> jax.Array:
        rows = b.shape[: b.ndim - event_ndim]
        return jnp.where(jax.lax.broadcasted_iota(jnp.int32, rows, 0) == 0, 0.0, -_DROP)

    estimate = jax.jit(lambda logits: est.apply(params, key, logits, probe).value)
    value = float(jnp.ravel(estimate(logits.astype(jnp.float32)))[0])
    groups = round(1 / (1 + value / _DROP)) if value > -_DROP else 1
    return max(1, round(math.exp(min(-groups * (value + _DROP * (1 - 1 / groups)), 20.0))))
