"""f as one function after another, so that an estimator may use what is known of the first."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax.estimators import contract


@dataclasses.dataclass(frozen=True)
class Composed:
    """f(b) = outer(inner(b)), callable like any f, with a structure that control variates make use of.

    To an estimator that expands f, at the mean (`taylor` and its kin) or between the samples of a pair
    (`disarm_midpoint`), inner is what the bits enter through, computed once for f and its expansion together, and outer
    is all that is differentiated: once, or twice to second order without `moments`. Choose inner such that outer is
    cheap: for a VAE the logits of the pixels, and the bits themselves for terms that are linear in them,
    `inner = lambda b: (decode(b), b)`. All other estimators see a function.

    Attributes:
      outer: what inner returns, to `[N, *batch]`.
      inner: `[N, *batch, D]` to an array, or a pytree of arrays, of shapes `[N, *batch, …]`.
      affine: whether inner is an affine function of b, a matrix and an offset. Its differences and its value between
        two samples are then exact, at no cost; of an inner that is not, `affine=True` would bias the gradient. Without
        it inner is linearised where f is expanded, for two more products with its derivative per pair at the mean, or
        one more evaluation between the samples: unbiased whatever inner is.
      squared: for an affine inner with matrix A and an outer that is a sum of functions of one number each,
        κ ↦ Σ_j κ_j A_ji², from one κ for every number that inner returns to `[…, D]`. It makes the diagonal of f's
        Hessian exact, where probes would have to estimate it.
      moments: `(p, v) -> (mean, variance)` of what inner returns, each like it, for independent bits of means p and
        variances v = p(1 − p), `[N, *batch, D]`, if outer is a sum of functions of one number each. Expansions of
        second order, and slopes between samples, are then not outer's at one point, but averaged over normal numbers
        with these moments, which follow f as far as the bits reach: several times less variance where that is far. A
        rough guess will do, the gradient is unbiased whatever it is; so is it if moments of correlated numbers are
        taken for independent. An inner that is not affine is replaced in the expansion by p ↦ mean, which is
        differentiated in p. Outer is evaluated at mean ± √3 standard deviations (± 1 between samples), where no
        inner(b) may ever be, and must make sense there: let inner return logits, not probabilities.

    Example:
      >>> weights = jnp.ones((3, 4))
      >>> f = dj.Composed(lambda a: jnp.sum(jax.nn.softplus(a), axis=-1), lambda b: b @ weights,
      ...                 affine=True, squared=lambda curvature: curvature @ weights.T**2,
      ...                 moments=lambda p, v: (p @ weights, v @ weights**2))
      >>> f(jnp.zeros((2, 5, 3))).shape
      (2, 5)
      >>> est = dj.disarm_quadratic()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), f).grad.shape
      (5, 3)
    """

    outer: Callable
    inner: Callable
    _: dataclasses.KW_ONLY
    affine: bool = False
    squared: Callable | None = None
    moments: Callable | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be a structure."""
        for name in ("outer", "inner"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}")
        if not isinstance(self.affine, bool):
            raise ValueError(f"affine must be True or False, got {self.affine!r}")
        for name in ("squared", "moments"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}")
        if self.squared is not None and not self.affine:
            raise ValueError("squared is for an affine inner: affine must be True, got False")

    def __call__(self, b: jax.Array) -> Any:
        """f at b."""
        return self.outer(self.inner(b))


@dataclasses.dataclass(frozen=True)
class Chained:
    """f of a chain of layers, callable like any f, with the part of it that is cheap to expand in each layer.

    For `hierarchical` with "disarm_taylor", "disarm_quadratic" and "disarm_midpoint", which expand all of f in every
    layer if they are not told what to expand. The gradient is unbiased whatever the part is, and has little variance if
    the part varies with b_t as f does: for a VAE, log p(b_{t−1} | b_t) − log q(b_t) + log p(b_t | mean of b_{t+1}).

    Attributes:
      f: of the tuple (b_1, …, b_T), as always; best it is a `LayerSum`, with an inner that the parts share.
      part: `(t, means) -> f_t`, counting layers from 0. `means` has one `[1, *batch, D_s]` for each layer: the bits
        drawn before layer t, the point of layer t where f is expanded, its mean or the midpoint of its pair, and of the
        later layers the means given that. f_t maps `[N, *batch, D_t]` to `[N, *batch]`; best it is `Composed`.

    Example:
      >>> layers = [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))]
      >>> f = dj.Chained(lambda b: b[0].sum(-1) * b[1].sum(-1),
      ...                lambda t, means: lambda b: b.sum(-1) * means[1 - t].sum(-1))
      >>> est, x = dj.hierarchical("disarm_quadratic"), jnp.zeros((5, 4))
      >>> out = est.apply(est.init(jax.random.key(0), x, layers), jax.random.key(1), x, layers, f)
      >>> [g.shape for g in out.grads]
      [(5, 3), (5, 2)]
    """

    f: Callable
    part: Callable

    def __post_init__(self) -> None:
        """Refuses what is no function."""
        for name in ("f", "part"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}")

    def __call__(self, b: tuple[jax.Array, ...]) -> Any:
        """f at b."""
        return self.f(b)


def as_composed(f: Callable) -> Composed:
    """f itself if it is composed; any other f is an outer function of the bits, which are affine in themselves."""
    return f if isinstance(f, Composed) else Composed(f, lambda b: b, affine=True)


def differentiable_outer(who: str, f: Composed, batch: tuple[int, ...], has_aux: bool) -> Callable:
    """outer of any number of rows, without its auxiliary output, refused unless it can be differentiated.

    Args:
      who: the names of the estimators that ask.
      f: outer and inner.
      batch: the axes behind the rows.
      has_aux: whether outer returns a pair.
    """

    def outer(rows: Any) -> jax.Array:
        found, _ = contract.evaluate(f.outer, rows, (len(jax.tree.leaves(rows)[0]), *batch), has_aux)
        contract.check_differentiable(who, found)
        return found

    return outer


def check_moments(f: Composed, p: jax.Array, v: jax.Array) -> tuple[Any, Any]:
    """What moments returned, refused unless it is a pair of arrays like inner's."""
    found, expected = f.moments(p, v), jax.tree.map(jnp.shape, jax.eval_shape(f.inner, p))
    if not isinstance(found, tuple) or len(found) != 2:
        shapes = jax.tree.map(jnp.shape, found)
        raise ValueError(f"moments must return a pair, mean and variance, got something of shapes {shapes}")
    for name, part in zip(("mean", "variance"), found, strict=True):
        if jax.tree.map(jnp.shape, part) != expected:
            shapes = jax.tree.map(jnp.shape, part)
            raise ValueError(f"moments must return a {name} of the shapes that inner returns, {expected}, got {shapes}")
        check_rows("moments", part, p.shape[:-1])
    return found


def check_rows(name: str, found: Any, shape: tuple[int, ...]) -> Any:
    """What a function returned, refused unless it has a row for each sample of floats."""
    for leaf in jax.tree.leaves(found):
        if jnp.shape(leaf)[: len(shape)] != shape or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"{name} must return floats of shape {shape} and any further axes, got {jnp.result_type(leaf)} of "
                f"shape {jnp.shape(leaf)}"
            )
    return found
