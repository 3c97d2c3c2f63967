"""What an estimator is: a frozen record of pure functions, and the value and gradient that they return.

`Estimator(init, apply)` is all that a custom estimator needs. Those of this package that look at f through its values
at hard samples are a `SampleEstimator`, whose parts are visible: how it draws, and its formula. Everything else is
derived from these parts, `apply` as well, so that a part can be replaced by `dataclasses.replace` but never contradicts
another.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import contract


class Estimate(NamedTuple):
    """One estimate of E f(b) and of its derivative through the sampling distribution.

    Attributes:
      value: `[*batch]`, the mean of f over the samples drawn from q, or the multi-sample bound. Its ordinary
        derivative is that of f with respect to whatever f closes over, logits included.
      grad: `[*batch, D]`, the derivative with respect to the logits that comes from sampling alone.
    """

    value: jax.Array
    grad: jax.Array


class HierarchicalEstimate(NamedTuple):
    """One estimate of E f(b_1, …, b_T) and of its derivatives through the sampling of each layer.

    Attributes:
      value: `[*batch]`, the mean of f over the chains drawn from q; its ordinary derivative is that of f.
      grads: one `[*batch, D_t]` per layer, the derivative with respect to logits_t that comes from sampling layer t.
      logits: one `[*batch, D_t]` per layer, the trunk's, differentiable in whatever the layers close over.
    """

    value: jax.Array
    grads: tuple[jax.Array, ...]
    logits: tuple[jax.Array, ...]


class Samples(NamedTuple):
    """What an estimator has drawn.

    Attributes:
      b: `[N, *batch, D]`, the points at which it asks for f, in the dtype of the logits.
      noise: whatever else its formula needs of the draw.
    """

    b: jax.Array
    noise: Any


class Init(Protocol):
    """Returns the tunables of an estimator."""

    def __call__(self, key: jax.Array, logits: jax.Array, /) -> Any:
        """The key is consumed; shapes depend on the last axes of the logits only. An empty pytree if there are none."""


class Apply(Protocol):
    """Returns one estimate."""

    def __call__(self, params: Any, key: jax.Array, logits: jax.Array, f: Callable, /) -> Estimate:
        """f maps `[N, *batch, D]` to `[N, *batch]`, each row on its own; the key is consumed.

        The estimators of this package also take `has_aux=True`: f then returns a pair `(f_b, aux)` and apply the pair
        `(Estimate, aux)`, where aux belongs to the samples drawn from q, one row each, sample axis first. So
        `lambda b: (f(b), b)` hands out the samples themselves.
        """


class VarianceLoss(Protocol):
    """Returns a scalar whose derivative in the tunables is that of the variance, see `disarm_jax.variance_loss`."""

    def __call__(self, params: Any, key: jax.Array, logits: jax.Array, f: Callable, /) -> jax.Array:
        """The arguments are those of `Apply`."""


class Sampler(Protocol):
    """Draws the samples of a `SampleEstimator`."""

    def __call__(self, params: Any, key: jax.Array, logits: jax.Array, /) -> tuple[jax.Array, Any]:
        """Returns samples b `[N, *batch, D]`, each with the distribution q, and whatever else the formula needs.

        The logits are stopped and float32 or wider.
        """


class Formula(Protocol):
    """The gradient of a `SampleEstimator` from what it has drawn and f there."""

    def __call__(self, params: Any, logits: jax.Array, b: jax.Array, noise: Any, f_b: jax.Array, /) -> jax.Array:
        """Returns `[*batch, D]` from f_b `[N, *batch]`, which carries no derivatives."""


@dataclasses.dataclass(frozen=True)
class Estimator:
    """A gradient estimator: pure functions, to be jitted, vmapped and scanned by the caller.

    Attributes:
      init: `(key, logits) -> params`, the tunables (control variates, β, …); an empty pytree when there are none.
      apply: `(params, key, logits, f) -> Estimate`.
      variance_loss: `(params, key, logits, f) -> scalar`, see `disarm_jax.variance_loss`; None is the sum of grad².
      tuned_by_logits: whether the tunables are learnt by the squares of the logits' gradient also where a network makes
        the logits. Else they are learnt by the squares of the network's gradient. The few scales of an expansion come
        out nearly the same by the logits' own, which spares a product with the network.
    """

    init: Init
    apply: Apply
    variance_loss: VarianceLoss | None = None
    tuned_by_logits: bool = False

    def draw(self, params: Any, key: jax.Array, logits: jax.Array) -> Samples:
        """Asks for samples, at which f may be evaluated outside of JAX.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError("this estimator calls f itself, so that it cannot be asked for samples; use its apply")

    def tell(self, params: Any, logits: jax.Array, samples: Samples, f_b: jax.Array) -> Estimate:
        """The estimate from the values of f at the samples of `draw`.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError("this estimator calls f itself, so that it cannot be told the values of f; use its apply")


def mean_value(f_b: jax.Array) -> jax.Array:
    """The mean over the sample axis."""
    return jnp.mean(f_b, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleEstimator(Estimator):
    """An estimator that evaluates f at hard samples only: a sampler and a formula.

    The formula sees f without derivatives, and f sees the samples without tangents, so f is never differentiated
    with respect to b.

    Attributes:
      sampler: how it draws.
      formula: from f at the samples to the gradient.
      value: `[N, *batch] -> [*batch]`, what the estimate's value makes of f at the samples: their mean, or a bound.
      linear: an unbiased estimate of ∂E h(b) from the same samples, `(params, logits, b, noise, h_b) -> [*batch, D]`.
        None: the formula is linear in f itself, or for a bound there is none.
      num_draws: how many of the N samples have the distribution q, the first ones; the rest, flips of them, are for the
        formula alone, not for the value and the auxiliary output. None: all.
      of_differences: whether the formula sees differences of f alone, so that a constant added to f changes nothing.
      event_ndim: 1 for bits `[*batch, D]`, 2 for classes: logits and grad `[*batch, D, C]`, b `[N, *batch, D, C]`.
      init: as in `Estimator`.
      apply: derived from the other parts.
    """

    sampler: Sampler
    formula: Formula
    value: Callable[[jax.Array], jax.Array] = mean_value
    linear: Formula | None = None
    num_draws: int | None = None
    of_differences: bool = False
    event_ndim: int = 1
    init: Init | None = None  # type: ignore[assignment]
    apply: Apply = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives what follows from the parts."""
        if self.init is None:
            object.__setattr__(self, "init", functools.partial(contract.no_params, event_ndim=self.event_ndim))
        object.__setattr__(self, "apply", functools.partial(_apply, self))

    @property
    def of_bound(self) -> bool:
        """Whether it estimates the derivative of a multi-sample bound, and f is log w."""
        return self.value is not mean_value

    def linear_estimate(self, params: Any, logits: jax.Array, samples: Samples, h_b: jax.Array) -> jax.Array:
        """An unbiased estimate `[*batch, D]` of ∂E h(b) from h at the samples; the logits stopped and widened."""
        return (self.linear or self.formula)(params, logits, *samples, h_b)

    def draw(self, params: Any, key: jax.Array, logits: jax.Array) -> Samples:
        """Asks for samples; `key` is consumed. `samples.b` are the points at which to evaluate f, anywhere."""
        logits = bernoulli.as_logits(logits, event_ndim=self.event_ndim)
        b, noise = self.sampler(params, key, bernoulli.stop_and_widen(logits))
        return Samples(b.astype(logits.dtype), noise)

    def tell(self, params: Any, logits: jax.Array, samples: Samples, f_b: jax.Array) -> Estimate:
        """The estimate that `apply` gives, from the values of f at `samples.b`.

        Args:
          params: as given to `draw`.
          logits: as given to `draw`.
          samples: from `draw`.
          f_b: `[N, *batch]`.
        """
        logits = bernoulli.as_logits(logits, event_ndim=self.event_ndim)
        f_b = contract.check_values(f_b, self.rows_of(samples))
        wide_f, _ = contract.widen(lax.stop_gradient(f_b), logits)
        return self.finish(logits, f_b, self.formula(params, bernoulli.stop_and_widen(logits), *samples, wide_f))

    def finish(self, logits: jax.Array, f_b: jax.Array, grad: jax.Array) -> Estimate:
        """The value of f at the samples, and a gradient made of them in the dtype of the logits."""
        f_b, value_dtype = contract.widen(f_b, logits)
        value = self.value(f_b[: self.num_draws]).astype(value_dtype)
        return Estimate(value, contract.finish(grad, logits, self.event_ndim))

    def of_draws(self, aux: Any) -> Any:
        """The rows of an auxiliary output that belong to samples drawn from q."""
        return jax.tree.map(lambda leaf: leaf[: self.num_draws], aux)

    def rows_of(self, samples: Samples) -> tuple[int, ...]:
        """`(N, *batch)`, the shape of what f returns."""
        return samples.b.shape[: samples.b.ndim - self.event_ndim]


def _apply(
    est: SampleEstimator, params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False
) -> Any:
    """Draws, evaluates f once, and tells."""
    samples = est.draw(params, key, logits)
    f_b, aux = contract.evaluate(f, samples.b, est.rows_of(samples), has_aux)
    estimate = est.tell(params, logits, samples, f_b)
    return (estimate, est.of_draws(aux)) if has_aux else estimate
