"""Calls f, checks what it returns, and turns a gradient into the derivative of a value."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import first_order


def evaluate(f: Callable, points: Any, shape: tuple[int, ...], has_aux: bool = False) -> tuple[jax.Array, Any]:
    """Calls f once, on all points stacked.

    Args:
      f: the function inside the expectation.
      points: the argument of f: samples `[N, *batch, D]`, or a tuple of them for a chain.
      shape: `(N, *batch)`, the shape that f must return.
      has_aux: whether f returns a pair `(f_b, aux)`.

    Returns:
      f at the points and the auxiliary output, which is None without `has_aux`.

    Raises:
      TypeError: if f does not return an array of real numbers, or, with `has_aux`, does not return a pair.
      ValueError: if f does not return one number for each point.
    """
    out, aux = f(points), None
    if has_aux:
        if not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(f"with has_aux=True f must return a pair (values, aux), got {type(out).__name__}")
        out, aux = out
        for leaf in jax.tree.leaves(aux):
            if jnp.shape(leaf)[:1] != shape[:1]:
                raise ValueError(
                    f"auxiliary outputs of f need the sample axis of size {shape[0]} first, got shape {jnp.shape(leaf)}"
                )
    elif isinstance(out, tuple | list | dict) or out is None:
        raise TypeError(f"f must return one array (or a pair, with has_aux=True), got {type(out).__name__}")
    return check_values(out, shape), aux


def check_values(f_b: Any, shape: tuple[int, ...]) -> jax.Array:
    """Returns the values of f as an array.

    Raises:
      TypeError: if the values are complex.
      ValueError: if there is not one value for each sample.
    """
    f_b = jnp.asarray(f_b)
    if f_b.shape != shape:
        hint = ""
        if len(shape) > 2 and f_b.shape == shape[:-1]:
            hint = (
                ". Every axis of the logits but the last is a batch axis: flatten the bits of one example, "
                "logits.reshape(*batch, -1), and reshape b inside f; for classes use the estimators of dj.categorical"
            )
        raise ValueError(f"f must return one number per sample, shape {shape}, got shape {f_b.shape}{hint}")
    if jnp.issubdtype(f_b.dtype, jnp.complexfloating):
        raise TypeError(f"f must return real numbers, got dtype {f_b.dtype}")
    return f_b


def evaluate_floats(
    name: str, f: Callable, points: Any, shape: tuple[int, ...], has_aux: bool = False
) -> tuple[jax.Array, Any]:
    """Calls f like `evaluate`, for an estimator that differentiates f. Raises TypeError if f does not return floats."""
    f_b, aux = evaluate(f, points, shape, has_aux)
    if not jnp.issubdtype(f_b.dtype, jnp.floating):
        raise TypeError(f"{name} differentiates f, which must return floats, got dtype {f_b.dtype}")
    return f_b, aux


def evaluate_with_slope(
    name: str, f: Callable, points: jax.Array, shape: tuple[int, ...], has_aux: bool = False
) -> tuple[jax.Array, jax.Array, Any]:
    """Returns f at the points, its gradient ∇f there, and the auxiliary output. No derivative passes through ∇f."""
    call = functools.partial(evaluate_floats, name, f, shape=shape, has_aux=has_aux)
    f_b, pull, aux = first_order.vjp(call, points, has_aux=True)
    return f_b, bernoulli.wide(lax.stop_gradient(pull(jnp.ones_like(f_b))[0])), aux


def widen(f_b: jax.Array, logits: jax.Array) -> tuple[jax.Array, jnp.dtype]:
    """Converts f to float32 or wider; also returns the dtype of its mean, that of the logits if f is an integer."""
    floating = jnp.issubdtype(f_b.dtype, jnp.floating)
    return f_b.astype(bernoulli.wide_dtype(f_b, logits)), f_b.dtype if floating else logits.dtype


def finish(grad: jax.Array, logits: jax.Array, event_ndim: int = 1) -> jax.Array:
    """Converts a gradient to the dtype of the logits, and makes it NaN where they are NaN.

    A comparison turns a NaN logit into the bit 0, and not every formula looks at the logits again. Without this
    function, a broken network would train on as if nothing had happened. For classes, one NaN logit makes the whole
    variable NaN.
    """
    broken = jnp.isnan(logits)
    if event_ndim == 2:
        broken = jnp.any(broken, axis=-1, keepdims=True)
    return jnp.where(broken, jnp.nan, grad).astype(logits.dtype)


def attach(value: jax.Array, grads: Any, logits: Any) -> jax.Array:
    """Returns the value, with the gradients as its derivative with respect to the logits.

    It adds stop(grad) · (logits − stop(logits)), which is zero. A custom derivative rule would not do, because f may
    close over tracers of outer transformations; this form also works in forward mode. The sum runs over the axes that
    the value, `[*batch]`, does not have: `[*batch, D]`, or `[*batch, D, C]` for classes. An infinite logit, of a bit or
    a class that is certain or impossible, has a derivative of zero.

    Args:
      value: `[*batch]`.
      grads: an array, or one for each layer.
      logits: an array, or one for each layer.
    """
    for grad, alpha in zip(jax.tree.leaves(grads), jax.tree.leaves(logits), strict=True):
        finite = jnp.where(jnp.isinf(alpha), jnp.zeros_like(alpha), alpha)  # ∞ − ∞ would be NaN
        zero = bernoulli.wide(finite - lax.stop_gradient(finite))
        event = tuple(range(value.ndim, alpha.ndim))
        value = value + jnp.sum(bernoulli.wide(lax.stop_gradient(grad)) * zero, axis=event).astype(value.dtype)
    return value
