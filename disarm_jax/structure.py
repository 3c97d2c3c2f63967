"""Structure of f that control variates make use of: `Composed`, `MLP`, and `LayerSum` for chains.

Other estimators treat f as a plain function. The gradient stays unbiased whatever structure is declared: whether inner
is affine is found by tracing it, and moments may be approximate, which changes only the variance.
"""

import contextlib
import contextvars
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.affine import is_affine
from disarm_jax.estimators import calling

_structure_is_lost = contextvars.ContextVar("structure_is_lost", default=False)


@contextlib.contextmanager
def _unstructured() -> Iterator[None]:
    """Marks the time in which a plain function is called for an estimator that would have made use of a structure."""
    token = _structure_is_lost.set(True)
    try:
        yield
    finally:
        _structure_is_lost.reset(token)


def _warn_if_hidden(f: Any) -> None:
    if _structure_is_lost.get():
        warnings.warn(
            f"a {type(f).__name__} was called inside another function, which hides its structure from the estimator. "
            f"Pass the {type(f).__name__} itself; auxiliary output can be returned by its own functions.",
            stacklevel=3,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Composed:
    """f(b) = outer(inner(b), b), a function with a structure that control variates make use of.

    It can be called like any other f. To an estimator that expands f, at the mean (`taylor`) or between the samples of
    a pair (`midpoint`), inner is the part that is computed once for f and its expansion together, and outer is all that
    is differentiated. Choose inner such that outer is cheap: for a VAE, inner computes the logits of the pixels, and
    outer also takes the bits for the prior and log q. With an inner that knows its moments, such as `MLP`, slopes and
    curvatures are averaged over the values that inner(b) may take. They follow f further than a tangent does, for a
    fraction of the variance.

    Whether inner is an affine function of b is found by tracing it. If it is, its differences and its value between two
    samples are exact; under jit they cost nothing. Otherwise it is linearised, for one more evaluation.

    Attributes:
      outer: `(a, b) -> [N, *batch]`, where a is the result of inner. It must be defined for all real a, because it is
        also evaluated where no inner(b) may ever be: let inner return logits, not probabilities.
      inner: maps `[N, *batch, D]` to an array, or a pytree of arrays, of shapes `[N, *batch, …]`. It may have a method
        `moments(p, v)` that returns the mean and the variance of inner(b), each with the structure of its result, for
        independent bits with means p and variances v; for classes a method `pair_moments(c, h)`, see `MLP`. Moments may
        be approximate.
      affine: None finds out by tracing. True states that inner is affine, and is an error if tracing cannot confirm it.
        False linearises inner.

    Example:
      >>> weights, target = jnp.ones((3, 4)), jnp.zeros(4)
      >>> f = dj.Composed(lambda a, b: jnp.sum(jax.nn.softplus(a) - target * a, axis=-1) - b.sum(-1),
      ...                 dj.MLP([(weights, jnp.zeros(4))]))
      >>> f(jnp.zeros((2, 5, 3))).shape
      (2, 5)
      >>> est = dj.disarm_midpoint()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), f).grad.shape
      (5, 3)
    """

    outer: Callable
    inner: Callable
    _: dataclasses.KW_ONLY
    affine: bool | None = None

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError if the fields are not functions, or `affine` is not a boolean."""
        _check_functions(self, "outer", "inner")
        if self.affine is not None and not isinstance(self.affine, bool):
            raise ValueError(f"affine must be True, False or None, got {self.affine!r}")

    def __call__(self, b: jax.Array) -> Any:
        """Returns f at b."""
        _warn_if_hidden(self)
        return self.outer(self.inner(b), b)

    def is_affine(self, b: jax.Array) -> bool:
        """Returns whether inner is affine. Raises ValueError if `affine` is True and tracing cannot confirm it."""
        if self.affine is False:
            return False
        found, reason = is_affine(self.inner, b)
        if reason and self.affine:
            raise ValueError(f"affine=True, but inner cannot be seen to be affine: {reason}; leave affine out")
        return found


def _check_functions(f: Any, *names: str) -> None:
    for name in names:
        if not callable(getattr(f, name)):
            raise TypeError(f"{name} must be a function, got {getattr(f, name)!r}")


class Parts(NamedTuple):
    """The arguments of outer: inner(b), and b. Also used for their slopes and variances."""

    a: Any
    b: jax.Array


def as_composed(f: Callable) -> Composed:
    """Returns f itself if it is a `Composed`; any other f becomes the outer function of one, of the bits alone."""
    if isinstance(f, Composed):
        return f

    def outer(a: tuple, b: jax.Array) -> Any:
        with _unstructured():
            return f(b)

    return Composed(outer, lambda b: ())


def parts_at(f: Composed, b: jax.Array, event_ndim: int = 1) -> Parts:
    """Returns inner(b) and b. Raises ValueError if inner does not return floats with a row for each sample."""
    return Parts(_check_rows("inner", f.inner(b), b.shape[:-event_ndim]), b)


def outer_of(name: str, f: Composed, batch: tuple[int, ...], has_aux: bool) -> Callable[[Parts], jax.Array]:
    """Returns outer as a function of parts with any number of rows, without its auxiliary output.

    Args:
      name: the name of the estimator that differentiates it.
      f: outer and inner function.
      batch: the axes after the rows.
      has_aux: whether outer returns a pair.
    """

    def outer(parts: Parts) -> jax.Array:
        shape = (parts.b.shape[0], *batch)
        return calling.evaluate_floats(name, lambda parts: f.outer(*parts), parts, shape, has_aux)[0]

    return outer


def moments_of(f: Composed) -> Callable[[jax.Array, jax.Array], tuple[Parts, Parts]] | None:
    """Returns `(p, v) -> (mean, variance)` of the parts if inner knows its moments.

    The function raises ValueError if they are not two pytrees of the shapes that inner returns.
    """
    known = getattr(f.inner, "moments", None)
    if known is None:
        return None

    def moments(p: jax.Array, v: jax.Array) -> tuple[Parts, Parts]:
        mean, variance = _check_moments("moments", f, known(p, v), p, 1)
        return Parts(mean, p), Parts(variance, v)

    return moments


def pair_moments_of(f: Composed, event_ndim: int) -> Callable[[jax.Array, jax.Array], tuple[Parts, Parts]] | None:
    """Returns `(c, h) -> (mean, variance)` of the parts between two samples c ± h, if inner knows its moments.

    Each bit, or the class of each variable, is that of one of the two samples, decided by a fair coin for each
    variable. For bits these are the moments of independent bits with means c and variances h².
    """
    name, known = "pair_moments", getattr(f.inner, "pair_moments", None)
    if known is None:
        name, of_bits = "moments", getattr(f.inner, "moments", None)
        if of_bits is None or event_ndim != 1:
            return None
        known = lambda c, h: of_bits(c, h**2)

    def moments(c: jax.Array, h: jax.Array) -> tuple[Parts, Parts]:
        mean, variance = _check_moments(name, f, known(c, h), c, event_ndim)
        return Parts(mean, c), Parts(variance, h**2 if event_ndim == 1 else jnp.zeros_like(h))

    return moments


def _check_moments(name: str, f: Composed, found: Any, b: jax.Array, event_ndim: int) -> tuple[Any, Any]:
    """Returns mean and variance of inner(b). Raises ValueError if they do not have the shapes of inner(b)."""
    expected = jax.tree.map(jnp.shape, jax.eval_shape(f.inner, b))
    if not isinstance(found, tuple) or len(found) != 2:
        shapes = jax.tree.map(jnp.shape, found)
        raise ValueError(f"{name} must return a pair, mean and variance, got something of shapes {shapes}")
    for which, part in zip(("mean", "variance"), found, strict=True):
        shapes = jax.tree.map(jnp.shape, part)
        if shapes != expected:
            raise ValueError(f"{name} must return a {which} of the shapes that inner returns, {expected}, got {shapes}")
        _check_rows(name, part, b.shape[:-event_ndim])
    return found


def _check_rows(name: str, found: Any, shape: tuple[int, ...]) -> Any:
    for leaf in jax.tree.leaves(found):
        if jnp.shape(leaf)[: len(shape)] != shape or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"{name} must return floats of shape {shape} and any further axes, got {jnp.result_type(leaf)} of "
                f"shape {jnp.shape(leaf)}"
            )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class MLP:
    """Dense layers given by their weights, with known moments, to be the inner function of a `Composed`.

    It computes x @ kernel + bias, activation, x @ kernel + bias, and so on. Its moments are exact for a single layer;
    otherwise every hidden unit is treated as normal and independent of the others.

    Attributes:
      layers: pairs `(kernel, bias)` of shapes `[D_in, D_out]` and `[D_out]`.
      activation: an elementwise function between the layers.
      activation_moments: `(mean, variance) -> (mean, variance)` of the activation of a normal variable; the first
        result must be differentiable in the mean. None uses three points of Gauss–Hermite quadrature.
      scale, shift: the first layer is applied to scale · b + shift; for instance (2, −1) for signs.
      num_classes: C, if b are one-hots `[..., D, C]`, to which the first layer is applied as vectors of length D C.
      pool_variance: whether variances are averaged over all rows before each layer. They then cost a product with a
        single row, whatever the batch is, but rows are no longer independent of each other: a row of NaN spoils all
        rows.

    Example:
      >>> decode = dj.MLP([(jnp.ones((3, 8)), jnp.zeros(8)), (jnp.ones((8, 4)), jnp.zeros(4))], jnp.tanh)
      >>> decode(jnp.zeros((5, 3))).shape
      (5, 4)
    """

    layers: Sequence[tuple[jax.Array, jax.Array]]
    activation: Callable = jax.nn.relu
    _: dataclasses.KW_ONLY
    activation_moments: Callable | None = None
    scale: float = 1
    shift: float = 0
    num_classes: int | None = None
    pool_variance: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError if the layers are not pairs of a matrix and a vector."""
        if not isinstance(self.layers, Sequence) or not self.layers:
            raise TypeError(f"layers must be a non-empty sequence of pairs (kernel, bias), got {type(self.layers)}")
        for n, layer in enumerate(self.layers):
            if not isinstance(layer, tuple | list) or len(layer) != 2:
                raise TypeError(f"layers[{n}] must be a pair (kernel, bias), got {type(layer).__name__}")
            shapes = tuple(getattr(array, "shape", ()) for array in layer)
            if len(shapes[0]) != 2 or shapes[1] != shapes[0][1:]:
                raise ValueError(f"layers[{n}] must have the shapes [D_in, D_out] and [D_out], got {shapes}")
        num_inputs = len(self.layers[0][0])
        if self.num_classes is not None and num_inputs % self.num_classes:
            raise ValueError(f"num_classes must divide the {num_inputs} inputs of layers[0], got {self.num_classes}")
        _check_functions(self, "activation")

    def __call__(self, b: jax.Array) -> jax.Array:
        """Maps `[..., D_in]`, or `[..., D, C]` with `num_classes`, to `[..., D_out]`."""
        x = self._seen(b)
        for n, layer in enumerate(self.layers):
            x = _dense(layer, self.activation(x) if n else x)
        return x

    def moments(self, p: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns mean and variance of the output, `[..., D_out]` each, from those of independent entries of b.

        Derivatives in p pass through the mean alone.
        """
        variance = self._pooled(self.scale**2 * lax.stop_gradient(self._flat(v)))
        return self._moments(p, variance @ self.layers[0][0] ** 2)

    def pair_moments(self, c: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns mean and variance of the output at c + Σ_d ε_d h_d, with a fair coin ε_d = ±1 for each variable.

        That is the distribution of two samples c ± h whose variables have been swapped at random. The classes of one
        variable move together: in the first layer, variable d has the variance (h_d A_d)² with its rows A_d.
        """
        if self.num_classes is None:
            return self.moments(c, h**2)
        half, blocks = self.scale * lax.stop_gradient(h), self._blocks()
        if not self.pool_variance:
            return self._moments(c, jnp.sum(jnp.einsum("...dc,dco->...do", half, blocks) ** 2, axis=-2))
        half = half.reshape(-1, *half.shape[-2:])
        covariance = jnp.einsum("ndc,nde->dce", half, half) / len(half)
        variance = jnp.sum(jnp.einsum("dce,deo->dco", covariance, blocks) * blocks, axis=(0, 1))
        return self._moments(c, variance.reshape(*(1,) * (c.ndim - 2), -1))

    def own_curvature(self, curvature: jax.Array, h: jax.Array) -> jax.Array:
        """Returns Σ_j κ_j (h_d A_d)_j² `[..., D]` for a single layer: the curvature along variable d alone.

        Args:
          curvature: κ, `[..., D_out]`; averaged over the rows with `pool_variance`.
          h: as in `pair_moments`.
        """
        curvature = self._pooled(curvature)
        if self.num_classes is None:
            return h**2 * self.squared(curvature)
        blocks = self.scale * self._blocks()
        if not self.pool_variance:
            return jnp.einsum("...do,...o->...d", jnp.einsum("...dc,dco->...do", h, blocks) ** 2, curvature)
        hessian = jnp.einsum("dco,deo->dce", blocks * curvature.reshape(1, 1, -1), blocks)
        return jnp.sum(jnp.einsum("...dc,dce->...de", h, hessian) * h, axis=-1)

    def squared(self, curvature: jax.Array) -> jax.Array:
        """Returns Σ_j κ_j A_ji² for a single layer with the matrix A: the diagonal of Aᵀ diag(κ) A."""
        ((kernel, _),) = self.layers
        return curvature @ ((self.scale * kernel) ** 2).T

    def _moments(self, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns mean and variance of the output, from the mean of b and the variance after the first product."""
        through, mean = self.activation_moments or self._quadrature, self._seen(mean)
        for n, layer in enumerate(self.layers):
            if n:
                mean, variance = through(mean, variance)
                variance = self._pooled(variance) @ layer[0] ** 2
            mean = _dense(layer, mean)
        return mean, jnp.broadcast_to(variance, mean.shape)

    def _pooled(self, rows: jax.Array) -> jax.Array:
        if not self.pool_variance:
            return rows
        return jnp.mean(rows, axis=tuple(range(rows.ndim - 1)), keepdims=True)

    def _flat(self, b: jax.Array) -> jax.Array:
        return b if self.num_classes is None else b.reshape(*b.shape[:-2], -1)

    def _blocks(self) -> jax.Array:
        """Returns the first matrix as `[D, C, D_out]`."""
        kernel, _ = self.layers[0]
        return kernel.reshape(-1, self.num_classes, kernel.shape[-1])

    def _seen(self, b: jax.Array) -> jax.Array:
        b = self._flat(b)
        return b if (self.scale, self.shift) == (1, 0) else self.scale * b + self.shift

    def _quadrature(self, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        far = jnp.sqrt(3 * jnp.maximum(variance, 0)).astype(mean.dtype)
        low, middle, high = self.activation(mean - far), self.activation(mean), self.activation(mean + far)
        average = (4 * middle + low + high) / 6
        spread = (4 * (middle - average) ** 2 + (low - average) ** 2 + (high - average) ** 2) / 6
        return average, lax.stop_gradient(spread)


def _dense(layer: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """Applies a dense layer to rows that are flattened: XLA copies less in the backward pass than with more axes."""
    kernel, bias = layer
    return (x.reshape(-1, x.shape[-1]) @ kernel + bias[None]).reshape(*x.shape[:-1], kernel.shape[-1])


@dataclasses.dataclass(frozen=True, eq=False)
class LayerSum:
    """f(b_1, …, b_T) = Σ_t term_t(b_{t−1}, inner_t(b_t), b_t, logits_t), an f of a `Chain` as a sum over its layers.

    Use it with the estimators of `hierarchical` where each term depends on neighbouring layers only. It can be called
    like any other f. The samples of these estimators are copies of each other up to some layer, and the terms of layers
    that they share are computed once: for a VAE the image goes through the decoder twice, whatever T is. The terms also
    get the logits that the bits were drawn from. Control variates expand in each layer only the two terms that depend
    on it, with the later layers at their means.

    Attributes:
      term: `(t, below, a, b, logits) -> [N, *batch]`, where t counts layers from 0, b are the samples `[N, *batch,
        D_t]`, a is the result of the inner function for them, below are the samples of the layer before (None for t =
        0), and logits are those of b given below. All arrays have N rows or one.
      logits: `(t, below) -> logits`, the same function as the layers of the chain, for calling f directly. The
        estimators use the logits of the chain instead.
      inner: one function for each layer, as the inner of `Composed`; with None the terms get `()` for a.
      stop_layers: whether f leaves out the derivative with respect to what the layers close over. The derivative with
        respect to below is always there: `logits` must stop its parameters, not its result.
      aux: a function of (b_1, …, b_T) that returns auxiliary output; f then returns a pair.

    Example:
      >>> layers = [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))]
      >>> x = jnp.zeros((5, 4))
      >>> f = dj.LayerSum(lambda t, below, a, b, logits: b.sum(-1) - dj.bernoulli.log_prob(logits, b),
      ...                 lambda t, below: layers[t](below if t else x))
      >>> out = dj.hierarchical("disarm").apply((), jax.random.key(0), dj.Chain(x, layers), f)
      >>> [g.shape for g in out.grad]
      [(5, 3), (5, 2)]
    """

    term: Callable
    logits: Callable
    _: dataclasses.KW_ONLY
    inner: Sequence[Callable] | None = None
    stop_layers: bool = False
    aux: Callable | None = None

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError if the value of a field is not accepted."""
        _check_functions(self, "term", "logits")
        if self.inner is not None and not (isinstance(self.inner, tuple | list) and all(map(callable, self.inner))):
            raise TypeError(f"inner must be a sequence of functions, one for each layer, got {self.inner!r}")
        if not isinstance(self.stop_layers, bool):
            raise ValueError(f"stop_layers must be True or False, got {self.stop_layers!r}")

    def __call__(self, b: tuple[jax.Array, ...]) -> Any:
        """Returns f at b."""
        _warn_if_hidden(self)
        logits = [self.logits(t, b[t - 1] if t else None) for t in range(len(b))]
        return self.with_aux(jnp.asarray(sum(self.terms(b, logits)[0])), b, self.aux is not None)

    def with_aux(self, f_b: jax.Array, b: tuple[jax.Array, ...], has_aux: bool) -> Any:
        """Returns the values of f, with `has_aux` in a pair. Raises TypeError if there is no auxiliary output."""
        if not has_aux:
            return f_b
        if self.aux is None:
            raise TypeError("with has_aux=True a LayerSum needs a function `aux` of the samples, got None")
        return f_b, self.aux(b)

    def terms(
        self, b: Sequence[jax.Array], logits: Sequence[jax.Array], rows: Sequence[int | None] | None = None
    ) -> tuple[list[jax.Array], list[Any]]:
        """Returns all terms and the results of the inner functions, those of layer t for `rows[t]` samples only."""
        terms, inner = [], []
        for t, num in enumerate(rows or [None] * len(b)):
            below, own = b[t - 1][:num] if t else None, b[t][:num]
            inner.append(self.inner_of(t)(own))
            terms.append(self.term(t, below, inner[t], own, logits[t]))
            if terms[t].shape != own.shape[:-1]:
                raise ValueError(
                    f"term {t} must return one number per sample, shape {own.shape[:-1]}, got shape {terms[t].shape}"
                )
        return terms, inner

    def inner_of(self, t: int) -> Callable:
        """Returns the inner function of layer t."""
        return self.inner[t] if self.inner else lambda b: ()

    def given(self, logits: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the logits that the terms get for hard samples: without derivatives if `stop_layers` is set."""
        return [lax.stop_gradient(array) if self.stop_layers else array for array in logits]

    def at_layer(self, t: int, points: Sequence[jax.Array], logits: Sequence[jax.Array]) -> Composed:
        """Returns f as a function of the samples of layer t, with the other layers at the given points.

        The logits of the next layer stay those of the points. So the slope of log q in its term is zero, as it is in
        expectation, and so is its curvature, which at fixed samples is not that of its expectation.

        Args:
          t: the layer.
          points: one row for each layer.
          logits: one row for each layer, those of the points.
        """

        def term(s: int, below: jax.Array | None) -> jax.Array:
            return self.term(s, below, self.inner_of(s)(points[s]), points[s], logits[s])

        below = [None, *points[:-1]]
        constant = sum(term(s, below[s]) for s in range(len(points)) if s not in (t, t + 1))

        def outer(a: Any, b: jax.Array) -> jax.Array:
            own = self.term(t, below[t], a, b, logits[t]) + constant
            return own + term(t + 1, b) if t + 1 < len(points) else own

        return Composed(outer, self.inner_of(t))


def sum_of_rows(terms: Sequence[jax.Array], shared: Sequence[jax.Array]) -> jax.Array:
    """Returns Σ_t of terms `[N_t, *batch]`, with N_T = N; rows from N_t on share a term, `[1, *batch]`."""
    num = terms[-1].shape[0]
    filled = [
        jnp.concatenate([term, jnp.broadcast_to(rest, (num - term.shape[0], *rest.shape[1:]))])
        for term, rest in zip(terms, shared, strict=True)
    ]
    return jnp.asarray(sum(filled))


def at_layer(f: Callable, t: int, points: Sequence[jax.Array], logits: Sequence[jax.Array]) -> Composed:
    """Returns f of a chain as a function of layer t, with the other layers at the points; see `LayerSum.at_layer`."""
    if isinstance(f, LayerSum):
        return f.at_layer(t, points, logits)

    def f_t(b: jax.Array) -> Any:
        rows = [jnp.broadcast_to(point, (b.shape[0], *point.shape[1:])) for point in points]
        return f((*rows[:t], b, *rows[t + 1 :]))

    return as_composed(f_t)


def leaky_relu_moments(mean: jax.Array, variance: jax.Array, negative_slope: float) -> tuple[jax.Array, jax.Array]:
    """Returns mean and variance of LeakyReLU(x) for a normal x, for `MLP.activation_moments`.

    The derivative of the first in the mean is the mean slope. LeakyReLU(x) is s x + (1 − s) max(x, 0); the variance is
    written such that no digits cancel far from the kink.
    """
    still, spread, kink = bernoulli.wide(lax.stop_gradient(mean)), bernoulli.wide(variance), 1 - negative_slope
    std = jnp.sqrt(jnp.maximum(spread, 1e-12))
    z = still / std
    above, below = jax.scipy.special.ndtr(z), jax.scipy.special.ndtr(-z)
    density = jnp.exp(-0.5 * z**2) / jnp.sqrt(2 * jnp.pi).astype(z.dtype)
    value = negative_slope * still + kink * (still * above + std * density)
    of_positive_part = (
        spread * (above - density**2) + still**2 * above * below + still * std * density * (below - above)
    )
    of_both = spread * negative_slope * (negative_slope + 2 * kink * above) + kink**2 * of_positive_part
    value, slope, of_both = (x.astype(mean.dtype) for x in (value, negative_slope + kink * above, of_both))
    return value + slope * (mean - lax.stop_gradient(mean)), jnp.maximum(of_both, 0)
