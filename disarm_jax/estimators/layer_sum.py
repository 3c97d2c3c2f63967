"""f of a chain as a sum over its layers, so that an estimator need not compute a term again for rows that share it."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax.estimators.composed import Chained


@dataclasses.dataclass(frozen=True)
class LayerSum:
    """f(b_1, …, b_T) = Σ_t term_t(b_{t−1}, inner_t(b_t), logits_t), callable like any f; a term sees neighbours only.

    The samples of a hierarchical estimator leave the trunk at different layers and are copies of it before. `arm`,
    `arms`, `disarm`, `reinforce_loo` and `relax` compute the terms of shared layers once, and hand over the logits
    that the bits were drawn from: for a VAE the image goes through the decoder twice, whatever T is. The other
    estimators see a function.

    Attributes:
      term: `(t, below, a, logits) -> [N, *batch]`, counting layers from 0, with a what inner makes of the samples
        `[N, *batch, D_t]`, below the samples of the layer before (None for t = 0), and logits those of the samples
        given below, `[N, *batch, D_t]`, `[1, *batch, D_t]` or `[*batch, D_t]`.
      logits: `(t, below) -> logits`, the same as the layers that the estimator gets.
      inner: `(t, b) -> a`; None stands for the samples themselves. Inside `Chained` it must be what the parts have as
        their inner, and is computed once for f and them.
      stop_layers: whether f leaves out the derivative with respect to what the layers close over (that with respect to
        below is always there: `logits` must stop its parameters, not its result).

    Example:
      >>> layers = [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))]
      >>> x = jnp.zeros((5, 4))
      >>> f = dj.LayerSum(lambda t, below, b, logits: b.sum(-1) - dj.bernoulli.log_prob(logits, b),
      ...                 lambda t, below: layers[t](below if t else x))
      >>> out = dj.hierarchical("disarm").apply((), jax.random.key(0), x, layers, f)
      >>> [g.shape for g in out.grads]
      [(5, 3), (5, 2)]
    """

    term: Callable
    logits: Callable
    _: dataclasses.KW_ONLY
    inner: Callable | None = None
    stop_layers: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be a structure."""
        for name in ("term", "logits", "inner"):
            if not callable(getattr(self, name)) and not (name == "inner" and self.inner is None):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}")
        if not isinstance(self.stop_layers, bool):
            raise ValueError(f"stop_layers must be True or False, got {self.stop_layers!r}")

    def __call__(self, b: tuple[jax.Array, ...]) -> jax.Array:
        """f at b."""
        return sum(self.terms(b, [self.logits(t, b[t - 1] if t else None) for t in range(len(b))]))

    def terms(
        self, b: Sequence[jax.Array], logits: Sequence[jax.Array], rows: Sequence[int | None] | None = None
    ) -> list[jax.Array]:
        """All terms, that of layer t for the first `rows[t]` samples only; the logits have as many rows, or one."""
        found = []
        for t, num in enumerate(rows or [None] * len(b)):
            below, own = b[t - 1][:num] if t else None, b[t][:num]
            found.append(self.term(t, below, self.inner(t, own) if self.inner else own, logits[t]))
            if found[t].shape != own.shape[:-1]:
                raise ValueError(
                    f"term {t} must return one number per sample, shape {own.shape[:-1]}, got shape {found[t].shape}"
                )
        return found

    def given(self, logits: Sequence[jax.Array]) -> list[jax.Array]:
        """The logits of hard samples as the terms should see them: samples carry no derivative, layers might."""
        return [lax.stop_gradient(array) if self.stop_layers else array for array in logits]


def layer_sum_of(f: Callable) -> LayerSum | None:
    """f, or what is inside `Chained`, if it is a sum over layers."""
    f = f.f if isinstance(f, Chained) else f
    return f if isinstance(f, LayerSum) else None


def sum_of_rows(terms: Sequence[jax.Array], shared: Sequence[jax.Array]) -> jax.Array:
    """Σ_t of terms `[N_t, *batch]`, with N_T = N; rows from N_t on share a term, `[1, *batch]`."""
    num = terms[-1].shape[0]
    filled = [
        jnp.concatenate([term, jnp.broadcast_to(rest, (num - term.shape[0], *rest.shape[1:]))])
        for term, rest in zip(terms, shared, strict=True)
    ]
    return sum(filled)
