"""What all estimators share: how options are checked, how f is called and checked, how a gradient is attached."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli


def factory(function: Callable) -> Callable:
    """Marks a function of keyword options that makes an estimator: options it does not know are refused by name."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        accepted = tuple(inspect.signature(function).parameters)
        listed = ", ".join(accepted) or "none"
        if args:
            raise TypeError(f"{function.__name__} takes keyword options only, got {args!r}; accepted: {listed}")
        for option in options:
            if option not in accepted:
                raise TypeError(f"{function.__name__} has no option {option!r}; accepted: {listed}")
        return function(**options)

    return checked


def at_least(option: str, value: int, minimum: int) -> int:
    """An integer option, refused below its minimum."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{option} must be an integer of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{option} must be at least {minimum}, got {value}")
    return int(value)


def number(option: str, value: float, good: Callable[[float], bool], accepted: str) -> float:
    """A real option, refused unless it is good; `accepted` says in words what is."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and good(value)):
        raise ValueError(f"{option} must be {accepted}, got {value!r}")
    return float(value)


def one_of(option: str, value: str, accepted: tuple[str, ...]) -> str:
    """A named option, refused unless it is one of the accepted."""
    if value not in accepted:
        raise ValueError(f"unknown {option} {value!r}; accepted: {', '.join(accepted)}")
    return value


def no_params(key: jax.Array, logits: jax.Array, event_ndim: int = 1) -> tuple:
    """The `init` of an estimator without tunables."""
    bernoulli.as_logits(logits, event_ndim=event_ndim)
    return ()


def evaluate(f: Callable, points: Any, shape: tuple[int, ...], has_aux: bool = False) -> tuple[jax.Array, Any]:
    """Calls f once, on all points stacked, and refuses what is not one real number per point.

    Args:
      f: the function inside the expectation.
      points: what f takes: samples `[N, *batch, D]`, or a tuple of them for a hierarchy.
      shape: `(N, *batch)`, what f must return.
      has_aux: whether f returns a pair `(f_b, aux)`.

    Returns:
      f at the points and the auxiliary output (None without one).
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
    """The values of f as an array.

    Raises:
      TypeError: if they are complex.
      ValueError: if there is not one for each sample.
    """
    f_b = jnp.asarray(f_b)
    if f_b.shape != shape:
        raise ValueError(f"f must return one number per sample, shape {shape}, got shape {f_b.shape}")
    if jnp.issubdtype(f_b.dtype, jnp.complexfloating):
        raise TypeError(f"f must return real numbers, got dtype {f_b.dtype}")
    return f_b


def check_differentiable(who: str, f_b: jax.Array) -> None:
    """Refuses an f that cannot be differentiated for returning integers; `who` names the estimators that would."""
    if not jnp.issubdtype(f_b.dtype, jnp.floating):
        raise TypeError(f"{who} differentiate f, which must return floats, got dtype {f_b.dtype}")


def widen(f_b: jax.Array, logits: jax.Array) -> tuple[jax.Array, jnp.dtype]:
    """f in float32 or wider, and the dtype of its mean: f's own, or the logits' for an integer or boolean f."""
    floating = jnp.issubdtype(f_b.dtype, jnp.floating)
    return f_b.astype(bernoulli.wide_dtype(f_b, logits)), f_b.dtype if floating else logits.dtype


def finish(grad: jax.Array, logits: jax.Array, event_ndim: int = 1) -> jax.Array:
    """grad in the logits' dtype, NaN where they are: for a bit, or for all the classes of a variable.

    Comparisons turn a NaN logit into a bit 0, and not every formula looks at the logits again: without this a broken
    network would train on as if nothing had happened.
    """
    broken = jnp.isnan(logits)
    if event_ndim == 2:
        broken = jnp.any(broken, axis=-1, keepdims=True)
    return jnp.where(broken, jnp.nan, grad).astype(logits.dtype)


def apply_with_aux(est: Any, has_aux: bool, *args: Any) -> tuple[Any, Any]:
    """The estimate and the auxiliary output (None without one); an estimator that knows no aux is only asked for it."""
    return est.apply(*args, has_aux=True) if has_aux else (est.apply(*args), None)


def mean_aux(aux: Any) -> Any:
    """Auxiliary outputs averaged over the sample axis."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), aux)


def attach(value: jax.Array, grads_and_logits: Iterable[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """The value, with the gradients as its derivative with respect to the logits.

    Adds stop(grad) · (logits − stop(logits)), which is zero, instead of a custom derivative rule: f may close over
    tracers of outer transformations, and this works in forward mode too. The sum runs over the axes that the value,
    `[*batch]`, does not have: `[*batch, D]`, or `[*batch, D, C]` for classes. An infinite logit, of a bit or a class
    that is certain or impossible, has no derivative.
    """
    for grad, logits in grads_and_logits:
        finite = jnp.where(jnp.isinf(logits), jnp.zeros_like(logits), logits)  # ∞ − ∞ would be NaN
        zero = bernoulli.wide(finite - lax.stop_gradient(finite))
        event = tuple(range(value.ndim, logits.ndim))
        value = value + jnp.sum(bernoulli.wide(lax.stop_gradient(grad)) * zero, axis=event).astype(value.dtype)
    return value


def sum_of_squares(grads: Any) -> jax.Array:
    """Σ grad² over all axes and layers: its expectation is the summed variance, up to a constant."""
    return sum(jnp.sum(bernoulli.wide(grad) ** 2) for grad in jax.tree.leaves(grads))
