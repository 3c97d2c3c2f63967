"""Checks of f itself: shape, purity, rows, finite values, slope and structure. Each returns one finding."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax.checking.facts import Facts
from disarm_jax.checking.report import Finding

_PATHS, _NODES = 4, 8  # paths between samples along which f is differentiated, and points on each


def tame(logits: np.ndarray, event_ndim: int) -> np.ndarray:
    """Moves logits to within 2 of 0, or of the largest class, so that rare samples are drawn; infinite ones stay."""
    if event_ndim == 1:
        clipped = np.clip(logits, -2, 2)
    else:
        clipped = np.maximum(logits - np.max(logits, axis=-1, keepdims=True), -2)
    return np.where(np.isinf(logits), logits, clipped).astype(logits.dtype)


def draw(rng: np.random.Generator, logits: np.ndarray, num_samples: int, event_ndim: int) -> jax.Array:
    """Draws samples `[num_samples, *batch, D]`, or one-hots `[num_samples, *batch, D, C]`, without compiling."""
    alpha, shape = _wide(logits), (num_samples, *logits.shape)
    if event_ndim == 1:
        b = alpha + rng.logistic(size=shape) > 0
    else:
        b = np.eye(shape[-1])[np.argmax(alpha + rng.gumbel(size=shape), axis=-1)]
    return jnp.asarray(b, logits.dtype)


def message(error: Exception) -> str:
    """Returns the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _wide(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def _same(found: Any, expected: Any) -> bool:
    """Returns whether two results are equal up to rounding; long sums may differ in their last three digits."""
    dtype = jnp.asarray(expected).dtype
    eps = float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
    found, expected = _wide(found), _wide(expected)
    scale = np.max(np.abs(expected), where=np.isfinite(expected), initial=0)
    return np.allclose(found, expected, rtol=0, atol=min(1e3 * eps, eps**0.5) * scale, equal_nan=True)


def check_shape(f: Callable, samples: jax.Array, facts: Facts) -> Finding:
    """Checks that f can be traced and returns one real number for each sample, whatever their number."""
    for num in (1, 2, 3):
        b = samples[:num]
        want = b.shape[: b.ndim - facts.event_ndim]
        try:
            found = jax.eval_shape(f, b)
        except Exception as error:
            return _failure(f, b, error)
        if not isinstance(found, jax.ShapeDtypeStruct):
            hint = "If f returns a pair (values, aux), check `lambda b: f(b)[0]`."
            return Finding(
                "shape", "problem", f"f must return one array, but returned a {type(found).__name__}. {hint}"
            )
        if found.shape != want:
            text = f"For samples of shape {b.shape} f must return the shape {want}, but returned {found.shape}."
            return Finding(
                "shape", "problem", f"{text} {_shape_hint(found.shape, want, facts.event_ndim, b.shape[1:])}"
            )
    if jnp.issubdtype(found.dtype, jnp.complexfloating):
        return Finding("shape", "problem", f"f must return real numbers, but returned {found.dtype}.")
    if facts.needs_grad and not jnp.issubdtype(found.dtype, jnp.floating):
        text = f"f returns {found.dtype}, but est differentiates f. Return floats, or take an estimator that does not"
        return Finding("shape", "problem", f"{text} need ∇f, for instance {_without_grad(facts)}.")
    return Finding("shape", "ok", f"f returns one {found.dtype} for each sample: {want} for samples {b.shape}.")


def _failure(f: Callable, b: jax.Array, error: Exception) -> Finding:
    """Finds out whether f always fails or only when it is traced."""
    try:
        f(b)
    except Exception as error:
        return Finding("shape", "problem", f"f failed for samples of shape {b.shape}: {message(error)}.")
    todo = "Write f with jax.numpy, wrap it in jax.pure_callback, or use est.draw and est.tell."
    text = f"f works on numbers but cannot be traced, as under jit: {message(error)}."
    return Finding("purity", "problem", f"{text} {todo}")


def _without_grad(facts: Facts) -> str:
    """Returns the name of an estimator of the same kind that does not differentiate f."""
    if facts.event_ndim == 2:
        return "dj.categorical.disarm_iw()"
    return "dj.disarm()" if facts.objective == "expectation" else "dj.multisample_disarm()"


def _shape_hint(found: tuple, want: tuple, event_ndim: int, shape: tuple) -> str:
    """Guesses what the user meant."""
    if event_ndim == 1 and found == want[:-1] and len(shape) > 1:
        *batch, height, width = shape
        flat = (*batch, height * width)
        return (
            f"If the last two axes of the logits are one example, such as an image of bits, flatten them to {flat} and "
            f"reshape inside f. If the last axis holds classes, take an estimator of dj.categorical, for instance "
            f"dj.categorical.disarm_iw()."
        )
    if found == (*want, 1):
        return "Take away the last axis, for instance by f(b)[..., 0]."
    if found == ():
        return "Sum over the axes of one sample only, for instance axis=-1, and keep the leading axes."
    if found == want[1:]:
        return "Keep the first axis, which is that of the samples."
    if found == (*want, *shape[len(shape) - event_ndim :][: len(found) - len(want)]):
        return "Sum over the remaining axes: each sample has one value."
    return "f must act on the last axes of b only and keep all leading ones."


def check_purity(f: Callable, b: jax.Array) -> Finding:
    """Checks that f returns the same numbers at every call, compiled or not, without side effects."""
    todo = "f must depend on b and on constants alone: draw randomness outside of f and pass it in by a closure."
    first, second = jnp.asarray(f(b)), jnp.asarray(f(b))
    if not _same(second, first):
        return Finding("purity", "problem", f"Two calls of f with the same samples gave different numbers. {todo}")
    if not _same(jax.jit(f)(b), first):
        return Finding("purity", "problem", f"f gives other numbers under jit than without it. {todo}")
    printed = io.StringIO()
    try:
        with jax.checking_leaks(), contextlib.redirect_stdout(printed):
            effects = jax.make_jaxpr(lambda b: f(b))(b).effects  # a new function, or JAX would remember the last trace
    except Exception as error:
        text = f"f keeps a traced array after it has returned ({message(error)})."
        return Finding("purity", "problem", f"{text} Do not store b, or anything computed from it, outside of f.")
    if printed.getvalue():
        text = "f prints. Under jit that happens once, at tracing, and shows no numbers: use jax.debug.print instead."
        return Finding("purity", "note", text)
    if effects:
        text = (
            f"f has side effects ({', '.join(map(str, effects))}), such as a debug print: they cost time at every call."
        )
        return Finding("purity", "note", text)
    return Finding("purity", "ok", "Two calls of f, and a compiled one, gave the same numbers.")


def check_rows(f: Callable, b: jax.Array, other: jax.Array, event_ndim: int) -> Finding:
    """Checks that each value depends on its own row alone.

    Args:
      f: the function.
      b: three samples.
      other: three further samples.
      event_ndim: 1 for bits, 2 for classes.
    """
    rows, f = b.shape[: b.ndim - event_ndim], jax.jit(f)
    f_b = f(b)
    todo = "The estimators then compute a wrong gradient without an error. Let f treat each row on its own"
    if not _same(f(b[:1]), f_b[:1]) or not _same(f(b.at[1:].set(other[1:]))[:1], f_b[:1]):
        text = "The value at one sample changes with the other samples in the same call."
        return Finding("rows", "problem", f"{text} {todo}: no mean or normalisation over the first axis.")
    if not _same(f(b[::-1]), f_b[::-1]):
        text = "The value at a sample depends on its position along the first axis."
        return Finding("rows", "problem", f"{text} {todo}, the same way for each sample.")
    for row in {0, int(np.prod(rows[1:])) - 1}:
        keep = (jnp.arange(int(np.prod(rows[1:]))) == row).reshape(1, *rows[1:], *(1,) * event_ndim)
        changed = f(jnp.where(keep, b, other)).reshape(rows[0], -1)
        if not _same(changed[:, row], f_b.reshape(rows[0], -1)[:, row]):
            text = "The value of one example changes with the bits of other examples in the batch."
            return Finding("rows", "problem", f"{text} {todo}: no mean or normalisation over the batch.")
    return Finding("rows", "ok", "The value of each row depends on the bits of that row alone.")


def check_finite(f: Callable, rng: np.random.Generator, logits: np.ndarray, event_ndim: int) -> Finding:
    """Checks that f is finite at samples, and at those of less certain logits, where rare bits occur too."""
    f = jax.jit(f)
    samples = {"b": draw(rng, logits, 32, event_ndim), "rare": draw(rng, tame(logits, event_ndim), 32, event_ndim)}
    share = {name: 1 - np.mean(np.isfinite(_wide(f(b)))) for name, b in samples.items()}
    if share["b"] > 0:
        text = f"{share['b']:.0%} of the values of f at samples are infinite or NaN, and so will be the gradient."
        return Finding("finite", "problem", f"{text} Look for a logarithm of 0 or an overflow in f.")
    if share["rare"] > 0:
        text = f"f is finite at samples, but infinite or NaN at {share['rare']:.0%} of samples of less certain logits"
        return Finding("finite", "note", f"{text} (clipped to ±2). A long run may meet such samples.")
    return Finding("finite", "ok", "f is finite at all samples tried.")


def check_slope(f: Callable, rng: np.random.Generator, logits: np.ndarray, facts: Facts) -> tuple[Finding, bool]:
    """Checks whether ∇f tells how f changes between samples; returns a finding and a boolean.

    Along a path from a sample b to a sample b′ that differs in one variable, the slope in that direction integrates to
    f(b′) − f(b) if f is smooth there. A function that steps between them has slopes of zero.
    """
    text, usable = _slope_text(f, rng, logits, facts.event_ndim)
    if usable:
        return Finding("slope", "ok", text), True
    if facts.needs_grad:
        todo = (
            "est differentiates f and will gain nothing from it, or be misled. Make f smooth in b, or take an estimator"
        )
        return Finding(
            "slope", "problem", f"{text} {todo} that does not need ∇f, for instance {_without_grad(facts)}."
        ), False
    return Finding("slope", "ok", f"{text} est does not need ∇f, so this does no harm."), False


def _slope_text(f: Callable, rng: np.random.Generator, logits: np.ndarray, event_ndim: int) -> tuple[str, bool]:
    points, step, weights = _paths(rng, logits, event_ndim)

    def with_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        f_x, pull = jax.vjp(f, x)
        return f_x, *pull(jnp.ones_like(f_x))

    try:
        f_x, slope = jax.jit(with_slope)(points.reshape(-1, *points.shape[2:]))
    except Exception as error:
        return f"f cannot be differentiated: {message(error)}.", False
    f_x, slope = _wide(f_x).reshape(points.shape[: points.ndim - event_ndim]), _wide(slope).reshape(points.shape)
    if not np.all(np.isfinite(f_x)):
        return "f is infinite or NaN at some samples or at some points between them.", False
    if not np.all(np.isfinite(slope)):
        return "∇f is infinite or NaN at some samples or at some points between them.", False
    along = np.sum(slope * step, axis=tuple(range(-event_ndim, 0)))
    change = f_x[-1] - f_x[0]
    if not np.any(change):
        return "f did not change in any of the bits that were changed, so nothing can be said about its slope.", True
    if not np.any(along[1:-1]):
        return "f has the slope 0 everywhere between 0 and 1 (rounding, comparing or indexing with b does that).", False
    missed = np.sum((change - np.tensordot(weights, along, axes=1)) ** 2) / np.sum(change**2)
    if missed > 0.5:
        return "∇f between 0 and 1 has little to do with how f changes from sample to sample.", False
    return f"∇f between 0 and 1 explains {1 - missed:.0%} of how f changes when one bit or class changes.", True


def _paths(rng: np.random.Generator, logits: np.ndarray, event_ndim: int) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    """Returns points on lines from samples to other samples, the steps between these, and weights of a mean.

    The points are `[_NODES + 2, _PATHS, *batch, *event]`. The first and the last are the samples; between them are the
    points of a Gauss–Legendre rule.
    """
    start = np.asarray(draw(rng, tame(logits, event_ndim), _PATHS, event_ndim))
    *rows, num_variables = start.shape[: start.ndim - event_ndim + 1]
    picked = np.eye(num_variables)[rng.integers(num_variables, size=rows)]
    if event_ndim == 1:
        step = picked * (1 - 2 * _wide(start))
    else:
        step = picked[..., None] * _wide(np.roll(start, 1, axis=-1) - start)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    where = np.array([0, *(0.5 + 0.5 * nodes), 1]).reshape(-1, *(1,) * start.ndim)
    return jnp.asarray(start + where * step, logits.dtype), step, np.array([0, *(0.5 * weights), 0])


def check_structure(f: Callable, b: jax.Array, other: jax.Array, event_ndim: int) -> Finding | None:
    """Checks that `f.inner` is as declared; returns None for an f without one."""
    inner = getattr(f, "inner", None)
    if inner is None:
        return None
    rows = b.shape[: b.ndim - event_ndim]
    found = inner(b)
    for leaf in jax.tree.leaves(found):
        if jnp.shape(leaf)[: len(rows)] != rows:
            text = f"f.inner must return arrays with the leading axes {rows}, but returned the shape {jnp.shape(leaf)}."
            return Finding("structure", "problem", text)
    if getattr(f, "affine", None) is not True:
        return Finding("structure", "ok", "f.inner returns one row for each sample.")
    mean = jax.tree.map(lambda x, y: 0.5 * (x + y), found, inner(other))
    same = jax.tree.map(_same, inner(0.5 * (b + other)), mean)
    if all(jax.tree.leaves(same)):
        return Finding("structure", "ok", "f.inner is affine in b at the midpoints tried, as declared.")
    text = "f declares affine=True, but f.inner at the midpoint of two samples is not the mean of f.inner at them."
    return Finding("structure", "problem", f"{text} The gradient would be biased: leave out affine=True.")


def check_bound(
    f: Callable, f_of_logits: Callable | None, b: jax.Array, logits: jax.Array, facts: Facts
) -> Finding | None:
    """Checks that log w depends on the logits, which a bound requires; returns None for an expectation."""
    rule = "For a bound, log w = log p − log q must be built from the logits themselves, not from a stopped copy"
    if facts.objective != "bound":
        if f_of_logits is None:
            return None
        return Finding("bound", "note", "est estimates an expectation, not a bound, so that f_of_logits was not used.")
    if f_of_logits is None:
        text = f"{rule}, because part of the gradient comes through it."
        return Finding("bound", "note", f"{text} Pass f_of_logits=lambda logits: f to have this checked.")
    if not _same(f_of_logits(logits)(b), f(b)):
        return Finding("bound", "problem", "f_of_logits(logits) gives other values than f. It must make the same f.")
    slope = jax.grad(lambda logits: jnp.sum(f_of_logits(logits)(b)))(logits)
    if not np.any(_wide(slope)):
        text = f"{rule}, but its derivative with respect to the logits is zero."
        return Finding(
            "bound", "problem", f"{text} The gradient of the bound would be wrong: remove the stop_gradient."
        )
    return Finding("bound", "ok", "log w depends on the logits, as the gradient of a bound needs.")
