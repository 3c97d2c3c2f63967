"""Defines what an estimator is: a frozen record of parts, and the value and gradient that it returns.

`Estimator(init, apply)` is all that a custom estimator needs. The estimators of this package are records whose parts
are visible: how they draw, their formula, their value, and what they are. `apply` and the verbs are derived from these
parts, so that `dataclasses.replace` changes a part everywhere. `info`, `pairs`, `linear` and `of_differences` are
statements about the sampler and the formula: change them together.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, overload

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import calling
from disarm_jax.estimators.chain import Chain
from disarm_jax.estimators.options import check_params
from disarm_jax.estimators.pairing import Pairing


class Estimate(NamedTuple):
    """One estimate of E f(b) and of its derivative through the sampling distribution.

    Attributes:
      value: `[*batch]`, the mean of f over the samples drawn from q, or the multi-sample bound. Its ordinary
        derivative is that of f with respect to whatever f closes over, logits included.
      grad: `[*batch, D]`, the derivative with respect to the logits that comes from sampling alone. For a `Chain` it is
        a tuple with one array for each layer.
    """

    value: jax.Array
    grad: Any


class EstimatorInfo(NamedTuple):
    """Describes an estimator to somebody who chooses one.

    Attributes:
      name: as in configs.
      evaluations: evaluations of f per estimate and example, relaxed ones included. It is a text such as "D + 1" where
        the number depends on the number of bits or layers.
      paper: where the estimator comes from.
      advice: one line that says when to prefer it.
      objective: "expectation" for E f(b), "bound" for the multi-sample bound with f = log w.
      unbiased: whether the mean of `grad` is the exact gradient.
      needs_grad: whether f is differentiated with respect to b, and so must be defined between 0 and 1.
    """

    name: str
    evaluations: int | str
    paper: str
    advice: str
    objective: str = "expectation"
    unbiased: bool = True
    needs_grad: bool = False


def describe(factory: Callable, evaluations: int | str, **facts: Any) -> EstimatorInfo:
    """Describes the estimator that a function makes, with paper and advice from the lines of its docstring.

    Args:
      factory: has the lines "Paper: …" and "Advice: …" in its docstring.
      evaluations: as in `EstimatorInfo`.
      **facts: those of `EstimatorInfo` that differ from its defaults.
    """
    lines = dict(line.split(": ", 1) for line in (inspect.getdoc(factory) or "").splitlines() if ": " in line)
    return EstimatorInfo(factory.__name__, evaluations, lines.get("Paper", ""), lines.get("Advice", ""), **facts)


class Samples(NamedTuple):
    """What an estimator has drawn.

    Attributes:
      b: `[N, *batch, D]`, the points at which it asks for f, in the dtype of the logits.
      noise: whatever else its formula needs of the draw.
    """

    b: jax.Array
    noise: Any


class Outcome(NamedTuple):
    """An estimate, and what `expectation` and `variance_loss` need beside it.

    Attributes:
      estimate: value and gradient.
      logits: what `estimate.grad` is the derivative with respect to: the logits, or for a chain those of each layer.
      aux: the auxiliary output of f at the samples drawn from q; None without one.
      log_prob: `[*batch]`, the log-probability of the samples as a function of the tunables, or a tuple of these for a
        chain; None if the tunables do not change the distribution of the samples.
    """

    estimate: Estimate
    logits: Any
    aux: Any = None
    log_prob: Any = None


class Init(Protocol):
    """Makes the tunables of an estimator."""

    def __call__(self, key: jax.Array, logits: Any, /) -> Any:
        """Returns an empty pytree if there are none. The key is consumed; shapes depend on the last axes only."""
        ...


class Function(Protocol):
    """The function f inside the expectation."""

    def __call__(self, b: Any, /) -> Any:
        """Maps `[N, *batch, D]` to `[N, *batch]`, each row on its own; for a chain it takes a tuple of samples."""
        ...


class Apply(Protocol):
    """Makes one estimate."""

    # To a type checker, both *args and **options of type Any say that a custom function need not take any of them.
    def __call__(self, params: Any, key: jax.Array, logits: Any, f: Function, /, *args: Any, **options: Any) -> Any:
        """Returns an `Estimate`; the key is consumed.

        The estimators of this package also take `has_aux=True`: f then returns a pair `(f_b, aux)` and apply the pair
        `(Estimate, aux)`, where aux belongs to the samples drawn from q, one row each, sample axis first. So
        `lambda b: (f(b), b)` hands out the samples themselves.
        """
        ...


class ApplyWithAux(Protocol):
    """The `Apply` of the estimators of this package."""

    @overload
    def __call__(
        self, params: Any, key: jax.Array, logits: Any, f: Function, *, has_aux: Literal[False] = False
    ) -> Estimate: ...
    @overload
    def __call__(
        self, params: Any, key: jax.Array, logits: Any, f: Function, *, has_aux: Literal[True]
    ) -> tuple[Estimate, Any]: ...
    @overload
    def __call__(self, params: Any, key: jax.Array, logits: Any, f: Function, *, has_aux: bool) -> Any: ...


class VarianceLoss(Protocol):
    """Returns a scalar whose derivative in the tunables is that of the variance, see `disarm_jax.variance_loss`."""

    def __call__(self, params: Any, key: jax.Array, logits: Any, f: Function, /) -> jax.Array:
        """The arguments are those of `Apply`."""
        ...


class Sampler(Protocol):
    """Draws the samples of an estimator."""

    def __call__(self, params: Any, key: jax.Array, logits: jax.Array, /) -> tuple[jax.Array, Any]:
        """Returns samples b `[N, *batch, D]`, each with the distribution q, and whatever else the formula needs.

        The logits are stopped and float32 or wider; the key is consumed.
        """
        ...


class Formula(Protocol):
    """The gradient from what was drawn and f there."""

    def __call__(self, params: Any, logits: jax.Array, b: jax.Array, noise: Any, f_b: jax.Array, /) -> jax.Array:
        """Returns `[*batch, D]` from f_b `[N, *batch]`, which carries no derivatives."""
        ...


@dataclasses.dataclass(frozen=True)
class Estimator:
    """A gradient estimator: pure functions, to be jitted, vmapped and scanned by the caller.

    Attributes:
      init: `(key, logits) -> params`, the tunables (control variates, β, …); an empty pytree if there are none.
      apply: `(params, key, logits, f) -> Estimate`.
      variance_loss: for a custom estimator, `(params, key, logits, f) -> scalar`; see `disarm_jax.variance_loss`.
      tuned_by_logits: whether the tunables may be learnt by the squares of the logits' gradient also where a network
        makes the logits. Otherwise they are learnt by the squares of the network's gradient. The few scales of a
        control variate come out nearly the same either way, and the former spares a product with the network.
      info: what the estimator is; None for a custom one.
    """

    init: Init
    apply: Apply
    variance_loss: VarianceLoss | None = None
    tuned_by_logits: bool = False
    info: EstimatorInfo | None = None

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.info.name if self.info else "this custom estimator"

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables change the distribution of the samples, so that squares of `grad` are not enough."""
        return False

    def draw(self, params: Any, key: jax.Array, logits: Any) -> Samples:
        """Asks for samples, at which f may be evaluated outside of JAX.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError(f"{self.name} calls f itself, so that it cannot be asked for samples; use its apply")

    def tell(self, params: Any, logits: Any, samples: Samples, f_b: jax.Array) -> Estimate:
        """Returns the estimate from the values of f at the samples of `draw`.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError(f"{self.name} calls f itself, so that it cannot be told the values of f; use its apply")

    def outcome(self, params: Any, key: jax.Array, logits: Any, f: Function, has_aux: bool = False) -> Outcome:
        """Applies the estimator and returns all that is known of the estimate.

        Raises:
          TypeError: if f has an auxiliary output and a custom `apply` takes no `has_aux`.
        """
        if isinstance(logits, Chain):
            raise TypeError(f"{self.name} takes logits, got a Chain; only estimators of dj.hierarchical take one here")
        logits = bernoulli.as_logits(logits)
        if not has_aux:
            return Outcome(self.apply(params, key, logits, f), logits)
        options = inspect.signature(self.apply).parameters.values()
        if not any(option.name == "has_aux" or option.kind is option.VAR_KEYWORD for option in options):
            raise TypeError(f"{self.name} takes no has_aux: its apply has no such option, so f must return one array")
        estimate, aux = self.apply(params, key, logits, f, has_aux=True)
        return Outcome(estimate, logits, aux)


def no_tunables(key: jax.Array, logits: Any, /) -> tuple:
    """Stands for the `init` of an estimator without tunables, which also checks the logits: `Derived.no_params`."""
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived(Estimator):
    """An estimator of this package, whose `apply` is derived from its `outcome`.

    Attributes:
      event_ndim: 1 for bits `[*batch, D]`, 2 for classes: logits and grad `[*batch, D, C]`, b `[N, *batch, D, C]`.
      tunables: the names of the entries of `params`, none if there is nothing to tune.
      init: derived if there are no tunables.
      apply: derived.
    """

    event_ndim: int = 1
    tunables: tuple[str, ...] = ()
    init: Init = no_tunables
    apply: ApplyWithAux = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives what follows from the parts."""
        if self.init is no_tunables:
            object.__setattr__(self, "init", self.no_params)
        object.__setattr__(self, "apply", functools.partial(apply_outcome, self))

    def no_params(self, key: jax.Array, logits: jax.Array) -> tuple:
        """The `init` of an estimator without tunables."""
        self.check_logits(logits)
        return ()

    def check_logits(self, logits: Any, params: Any = None) -> jax.Array:
        """Returns the logits as an array.

        Raises:
          TypeError: if they are a chain or no floats, or if `params` are given and lack a tunable.
        """
        if isinstance(logits, Chain):
            raise TypeError(f"{self.name} takes logits, got a Chain; its form for chains is dj.hierarchical(…) of it")
        if params is not None:
            check_params(self.name, params, self.tunables)
        return bernoulli.as_logits(logits, event_ndim=self.event_ndim, may_be_empty=False)


def apply_outcome(
    est: Estimator, params: Any, key: jax.Array, logits: Any, f: Function, *, has_aux: bool = False
) -> Any:
    """Returns the estimate of an outcome, and with `has_aux` the auxiliary output."""
    out = est.outcome(params, key, logits, f, has_aux)
    return (out.estimate, out.aux) if has_aux else out.estimate


def mean_value(f_b: jax.Array) -> jax.Array:
    """Returns the mean over the sample axis."""
    return jnp.mean(f_b, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleEstimator(Derived):
    """An estimator that evaluates f at hard samples only: a sampler and a formula.

    The formula sees f without derivatives, and f sees the samples without tangents, so f is never differentiated
    with respect to b.

    Attributes:
      sampler: how it draws.
      formula: from f at the samples to the gradient; linear in f, unless the estimator is one of a bound.
      value: `[N, *batch] -> [*batch]`, what the estimate's value makes of f at the samples: their mean, or a bound.
      linear: for a bound, an unbiased estimate of ∂E h(b) from the same samples, a formula that is linear in h.
      log_prob: `(params, logits, b) -> [*batch]`, the log-probability of the samples, if tunables change it.
      num_draws: how many of the N samples have the distribution q, the first ones; the rest, flips of them, are for the
        formula alone, not for the value and the auxiliary output. None: all.
      of_differences: whether the formula sees differences of f alone, so that a constant added to f changes nothing.
      pairs: how the samples form exchangeable pairs, of which the formula is a mean; None: it is not.
      independent: whether the bits, or variables, of a sample from q are independent of each other, as control variates
        and chains take for granted. Those of `disarm_jax.subsets` are not.
    """

    sampler: Sampler
    formula: Formula
    value: Callable[[jax.Array], jax.Array] = mean_value
    linear: Formula | None = None
    log_prob: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None
    num_draws: int | None = None
    of_differences: bool = False
    pairs: Pairing | None = None
    independent: bool = True

    @property
    def of_bound(self) -> bool:
        """Whether it estimates the derivative of a multi-sample bound, and f is log w."""
        return self.value is not mean_value

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables change the distribution of the samples."""
        return self.log_prob is not None

    def draw(self, params: Any, key: jax.Array, logits: jax.Array) -> Samples:
        """Asks for samples; the key is consumed. `samples.b` are the points at which to evaluate f, anywhere."""
        logits = self.check_logits(logits, params)
        b, noise = self.sampler(params, key, bernoulli.stop_and_widen(logits))
        return Samples(b.astype(logits.dtype), noise)

    def tell(self, params: Any, logits: jax.Array, samples: Samples, f_b: jax.Array) -> Estimate:
        """Returns the estimate that `apply` gives, from the values of f at `samples.b`.

        Args:
          params: as given to `draw`.
          logits: as given to `draw`.
          samples: from `draw`.
          f_b: `[N, *batch]`.
        """
        logits = self.check_logits(logits, params)
        f_b = calling.check_values(f_b, self.rows_of(samples))
        wide_f, _ = calling.widen(lax.stop_gradient(f_b), logits)
        return self.finish(logits, f_b, self.formula(params, bernoulli.stop_and_widen(logits), *samples, wide_f))

    def outcome(self, params: Any, key: jax.Array, logits: jax.Array, f: Function, has_aux: bool = False) -> Outcome:
        """Draws, evaluates f once, and tells."""
        samples = self.draw(params, key, logits)
        f_b, aux = calling.evaluate(f, samples.b, self.rows_of(samples), has_aux)
        estimate = self.tell(params, logits, samples, f_b)
        return Outcome(estimate, jnp.asarray(logits), self.of_draws(aux), self.log_prob_of(params, logits, samples))

    def finish(self, logits: jax.Array, f_b: jax.Array, grad: jax.Array) -> Estimate:
        """Returns the value of f at the samples, and a gradient made of them in the dtype of the logits."""
        f_b, value_dtype = calling.widen(f_b, logits)
        value = self.value(f_b[: self.num_draws]).astype(value_dtype)
        return Estimate(value, calling.finish(grad, logits, self.event_ndim))

    def of_draws(self, aux: Any) -> Any:
        """Returns the rows of an auxiliary output that belong to samples drawn from q."""
        return jax.tree.map(lambda leaf: leaf[: self.num_draws], aux)

    def rows_of(self, samples: Samples) -> tuple[int, ...]:
        """Returns `(N, *batch)`, the shape of what f returns."""
        return samples.b.shape[: samples.b.ndim - self.event_ndim]

    def log_prob_of(self, params: Any, logits: jax.Array, samples: Samples) -> jax.Array | None:
        """Returns the log-probability of the samples if tunables change it."""
        if self.log_prob is None:
            return None
        log_prob = self.log_prob(params, bernoulli.stop_and_widen(jnp.asarray(logits)), samples.b)
        return jnp.where(jnp.isfinite(log_prob), log_prob, 0)  # noise on the threshold can make an impossible group

    def linear_estimate(self, params: Any, logits: jax.Array, samples: Samples, h_b: jax.Array) -> jax.Array:
        """Returns an unbiased estimate `[*batch, D]` of ∂E h(b) from h at the samples; the logits are stopped."""
        return (self.linear or self.formula)(params, logits, *samples, h_b)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlopeEstimator(Derived):
    """An estimator that looks at ∇f where it evaluates f: a sampler and a formula.

    Attributes:
      sampler: as in `SampleEstimator`.
      formula: `(params, logits, b, noise, f_b, slope) -> [*batch, D]`, with f_b `[N, *batch]`, slope `[N, *batch, D]`.
      relax: `(logits, noise) -> [N, *batch, D]`, points between the bits where ∇f is taken instead; f is then evaluated
        at the samples in a call of its own, because `value` is a mean of f over them. None: ∇f at the samples.
    """

    sampler: Sampler
    formula: Callable[..., jax.Array]
    relax: Callable[[jax.Array, Any], jax.Array] | None = None

    def outcome(self, params: Any, key: jax.Array, logits: jax.Array, f: Function, has_aux: bool = False) -> Outcome:
        """Draws, evaluates f and its slope, and applies the formula."""
        logits = self.check_logits(logits, params)
        alpha = bernoulli.stop_and_widen(logits)
        b, noise = self.sampler(params, key, alpha)
        samples = b.astype(logits.dtype)
        rows = samples.shape[: samples.ndim - self.event_ndim]
        if self.relax is None:
            f_b, slope, aux = calling.evaluate_with_slope(self.name, f, samples, rows, has_aux)
        else:
            f_b, aux = calling.evaluate(f, samples, rows, has_aux)
            relaxed = self.relax(alpha, noise).astype(logits.dtype)
            _, slope, _ = calling.evaluate_with_slope(self.name, f, relaxed, rows, has_aux)
        f_b, value_dtype = calling.widen(f_b, logits)
        grad = self.formula(params, alpha, b, noise, lax.stop_gradient(f_b), slope)
        estimate = Estimate(mean_value(f_b).astype(value_dtype), calling.finish(grad, logits, self.event_ndim))
        return Outcome(estimate, logits, aux)
