"""Defines what an estimator is: a frozen record of parts, and the value and gradient that it returns.

A custom estimator needs no more than `Estimator(init, apply)`. The estimators of this package are records with visible
parts: a sampler, a formula, a value, and a description. `apply` and functions such as `expectation` are derived from
these parts, so that `dataclasses.replace` changes a part everywhere. The fields `info`, `pairs`, `linear` and
`of_differences` are statements about the sampler and the formula and must be changed together with them.
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
      value: `[*batch]`, the mean of f over the samples drawn from q, or the multi-sample bound. Its ordinary derivative
        is that of f with respect to whatever f closes over, logits included.
      grad: `[*batch, D]`, the derivative with respect to the logits that comes from sampling alone. For a `Chain` it is
        a tuple with one array for each layer.

    Example:
      >>> value, grad = dj.disarm().apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> value.shape, grad.shape
      ((5,), (5, 3))
    """

    value: jax.Array
    grad: Any


class EstimatorInfo(NamedTuple):
    """Describes an estimator, to help choose one.

    Attributes:
      name: the name used in configs.
      evaluations: the number of evaluations of f per estimate and example, relaxed ones included. It is a text such as
        "D + 1" where the number depends on the number of bits or layers.
      paper: where the estimator comes from.
      advice: one line that says when to prefer it.
      objective: "expectation" for E f(b), or "bound" for the multi-sample bound with f = log w.
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
    """Describes the estimator that a factory makes. Paper and advice are taken from the docstring of the factory.

    Args:
      factory: a function with the lines "Paper: …" and "Advice: …" in its docstring.
      evaluations: as in `EstimatorInfo`.
      **facts: the fields of `EstimatorInfo` that differ from their defaults.
    """
    lines = dict(line.split(": ", 1) for line in (inspect.getdoc(factory) or "").splitlines() if ": " in line)
    return EstimatorInfo(factory.__name__, evaluations, lines.get("Paper", ""), lines.get("Advice", ""), **facts)


class Samples(NamedTuple):
    """The samples that an estimator has drawn.

    Attributes:
      b: `[N, *batch, D]` in the dtype of the logits, the points at which f is to be evaluated.
      noise: whatever else the formula of the estimator needs to know of the draw.
    """

    b: jax.Array
    noise: Any


class Outcome(NamedTuple):
    """An estimate, and what `expectation` and `variance_loss` need in addition.

    Attributes:
      estimate: value and gradient.
      logits: what `estimate.grad` is the derivative with respect to: the logits, or those of each layer of a chain.
      aux: the auxiliary output of f at the samples drawn from q; None if f has none.
      log_prob: `[*batch]`, the log-probability of the samples as a function of the tunables, or a tuple of these for a
        chain; None if the tunables do not change the distribution of the samples.
    """

    estimate: Estimate
    logits: Any
    aux: Any = None
    log_prob: Any = None


class Init(Protocol):
    """Makes the learnable parameters of an estimator, its tunables."""

    def __call__(self, key: jax.Array, logits: Any, /) -> Any:
        """Returns the tunables, or an empty pytree; shapes depend only on the last axes of the logits."""
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
        """Returns an `Estimate`; the key must not be used again.

        The estimators of this package also take `has_aux=True`. Then f returns a pair `(f_b, aux)`, and apply returns
        the pair `(Estimate, aux)`, where aux has one row for each sample drawn from q, with the sample axis first. For
        example, `lambda b: (f(b), b)` returns the samples themselves.
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
    """Returns a scalar whose derivative in the tunables is that of the variance; see `disarm_jax.variance_loss`."""

    def __call__(self, params: Any, key: jax.Array, logits: Any, f: Function, /) -> jax.Array:
        """Computes the loss; the arguments are those of `Apply`."""
        ...


class Sampler(Protocol):
    """Draws the samples of an estimator."""

    def __call__(self, params: Any, key: jax.Array, logits: jax.Array, /) -> tuple[jax.Array, Any]:
        """Returns samples b `[N, *batch, D]`, each with the distribution q, and whatever else the formula needs.

        The logits carry no derivative and are float32 or wider; the key must not be used again.
        """
        ...


class Formula(Protocol):
    """Computes the gradient from the samples and from f at the samples."""

    def __call__(self, params: Any, logits: jax.Array, b: jax.Array, noise: Any, f_b: jax.Array, /) -> jax.Array:
        """Returns `[*batch, D]`, from f_b `[N, *batch]`, which carries no derivative."""
        ...


@dataclasses.dataclass(frozen=True)
class Estimator:
    """A gradient estimator: pure functions, to be transformed by `jax.jit`, `jax.vmap` or `jax.lax.scan` as needed.

    Make one by `dj.make_estimator(name)` or by a factory such as `dj.disarm()`. To write a custom estimator, pass
    `init` and `apply`.

    Attributes:
      init: `(key, logits) -> params`, makes the learnable parameters (tunables) of the estimator, such as the scale of
        a control variate. They are an empty pytree if there is nothing to learn.
      apply: `(params, key, logits, f) -> Estimate`.
      variance_loss: for a custom estimator, `(params, key, logits, f) -> scalar`; see `disarm_jax.variance_loss`.
      tuned_by_logits: whether the tunables may be learnt from the squares of the gradient with respect to the logits,
        even where a network computes the logits. Otherwise they are learnt from the squares of the network's gradient.
        The few scales of a control variate come out nearly the same either way, and the former saves a product with the
        network.
      info: a description of the estimator; None for a custom one.

    Example:
      >>> def apply(params, key, logits, f):  # a custom estimator, here a rescaled one
      ...     value, grad = dj.disarm().apply(params, key, logits, f)
      ...     return dj.Estimate(value, 0.5 * grad)
      >>> est = dj.Estimator(init=lambda key, logits: (), apply=apply)
      >>> dj.expectation(est)((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1)).shape
      (5,)
    """

    init: Init
    apply: Apply
    variance_loss: VarianceLoss | None = None
    tuned_by_logits: bool = False
    info: EstimatorInfo | None = None

    @property
    def name(self) -> str:
        """The name of the estimator in error messages."""
        return self.info.name if self.info else "this custom estimator"

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables change the distribution of the samples, so that squares of `grad` are not enough."""
        return False

    def draw(self, params: Any, key: jax.Array, logits: Any) -> Samples:
        """Draws samples at which f may then be evaluated outside of JAX.

        Args:
          params: the tunables.
          key: a JAX random key, which must not be used again.
          logits: `[*batch, D]`, or `[*batch, D, C]` for classes.

        Returns:
          The samples; evaluate f at `samples.b` and pass the values to `tell`.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError(f"{self.name} calls f itself, so that it cannot be asked for samples; use its apply")

    def tell(self, params: Any, logits: Any, samples: Samples, f_b: jax.Array) -> Estimate:
        """Returns the estimate from the values of f at the samples of `draw`.

        Args:
          params: as given to `draw`.
          logits: as given to `draw`.
          samples: the result of `draw`.
          f_b: `[N, *batch]`, f at `samples.b`.

        Raises:
          TypeError: if the estimator has to call f itself.
        """
        raise TypeError(f"{self.name} calls f itself, so that it cannot be told the values of f; use its apply")

    def outcome(self, params: Any, key: jax.Array, logits: Any, f: Function, has_aux: bool = False) -> Outcome:
        """Applies the estimator and returns all that is known of the estimate.

        Raises:
          TypeError: if f has an auxiliary output and a custom `apply` takes no `has_aux`, or if the logits are a
            `Chain`.
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
    """Marks an estimator without tunables; `Derived` replaces it by `no_params`, which also checks the logits."""
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived(Estimator):
    """An estimator of this package, whose `apply` is derived from its `outcome`.

    Attributes:
      event_ndim: 1 for bits, with logits `[*batch, D]`; 2 for classes, with logits and grad `[*batch, D, C]` and
        samples `[N, *batch, D, C]`.
      tunables: the names of the entries of `params`; none if there is nothing to learn.
      init: derived if there are no tunables.
      apply: derived.
    """

    event_ndim: int = 1
    tunables: tuple[str, ...] = ()
    init: Init = no_tunables
    apply: ApplyWithAux = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives `init` and `apply` from the other fields."""
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
          TypeError: if they are a chain or not floating-point numbers, or if `params` are given and lack a tunable.
        """
        if isinstance(logits, Chain):
            raise TypeError(f"{self.name} takes logits, got a Chain; its form for chains is dj.hierarchical(…) of it")
        if params is not None:
            check_params(self.name, params, self.tunables)
        return bernoulli.as_logits(logits, event_ndim=self.event_ndim, may_be_empty=False)


def apply_outcome(
    est: Estimator, params: Any, key: jax.Array, logits: Any, f: Function, *, has_aux: bool = False
) -> Any:
    """Returns the estimate of an outcome, and with `has_aux` also the auxiliary output."""
    out = est.outcome(params, key, logits, f, has_aux)
    return (out.estimate, out.aux) if has_aux else out.estimate


def mean_value(f_b: jax.Array) -> jax.Array:
    """Returns the mean over the sample axis."""
    return jnp.mean(f_b, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleEstimator(Derived):
    """An estimator that evaluates f at hard samples only, defined by a sampler and a formula.

    The formula sees f without derivatives, and f sees the samples without tangents, so f is never differentiated with
    respect to b.

    Attributes:
      sampler: draws the samples.
      formula: computes the gradient from f at the samples. It is linear in f, unless the estimator is for a bound.
      value: `[N, *batch] -> [*batch]`, computes the value of the estimate from f at the samples: their mean, or a
        bound.
      linear: for a bound, a formula that is linear in h and estimates ∂E h(b) from the same samples without bias.
      log_prob: `(params, logits, b) -> [*batch]`, the log-probability of the samples, if the tunables change it.
      num_draws: how many of the N samples, the first ones, have the distribution q; None if all do. The others, in
        which bits were flipped, are for the formula alone, not for the value and the auxiliary output.
      of_differences: whether the formula depends on differences of f alone, so that adding a constant to f changes
        nothing.
      pairs: how the samples form exchangeable pairs over which the formula is a mean; None if they do not.
      independent: whether the bits (or variables) of a sample from q are independent of each other, as control variates
        and chains require. Those of `disarm_jax.subsets` are not.
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
        """Whether the estimator is for the derivative of a multi-sample bound, with f = log w."""
        return self.value is not mean_value

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables change the distribution of the samples."""
        return self.log_prob is not None

    def draw(self, params: Any, key: jax.Array, logits: jax.Array) -> Samples:
        """Draws samples. Evaluate f at `samples.b`, inside or outside of JAX; the key must not be used again."""
        logits = self.check_logits(logits, params)
        b, noise = self.sampler(params, key, bernoulli.stop_and_widen(logits))
        return Samples(b.astype(logits.dtype), noise)

    def tell(self, params: Any, logits: jax.Array, samples: Samples, f_b: jax.Array) -> Estimate:
        """Returns the estimate that `apply` gives, from the values of f at `samples.b`.

        Args:
          params: as given to `draw`.
          logits: as given to `draw`.
          samples: the result of `draw`.
          f_b: `[N, *batch]`.
        """
        logits = self.check_logits(logits, params)
        f_b = calling.check_values(f_b, self.rows_of(samples))
        wide_f, _ = calling.widen(lax.stop_gradient(f_b), logits)
        return self.finish(logits, f_b, self.formula(params, bernoulli.stop_and_widen(logits), *samples, wide_f))

    def outcome(self, params: Any, key: jax.Array, logits: jax.Array, f: Function, has_aux: bool = False) -> Outcome:
        """Draws samples, evaluates f at them in one call, and computes the estimate."""
        samples = self.draw(params, key, logits)
        f_b, aux = calling.evaluate(f, samples.b, self.rows_of(samples), has_aux)
        estimate = self.tell(params, logits, samples, f_b)
        return Outcome(estimate, jnp.asarray(logits), self.of_draws(aux), self.log_prob_of(params, logits, samples))

    def finish(self, logits: jax.Array, f_b: jax.Array, grad: jax.Array) -> Estimate:
        """Returns the estimate: the value of f at the samples, and the gradient in the dtype of the logits."""
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
        """Returns the log-probability of the samples if the tunables change it, and None otherwise."""
        if self.log_prob is None:
            return None
        log_prob = self.log_prob(params, bernoulli.stop_and_widen(jnp.asarray(logits)), samples.b)
        return jnp.where(jnp.isfinite(log_prob), log_prob, 0)  # noise on the threshold can make an impossible group

    def linear_estimate(self, params: Any, logits: jax.Array, samples: Samples, h_b: jax.Array) -> jax.Array:
        """Returns an unbiased estimate `[*batch, D]` of ∂E h(b) from h at the samples; the logits are stopped."""
        return (self.linear or self.formula)(params, logits, *samples, h_b)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlopeEstimator(Derived):
    """An estimator that uses the gradient ∇f where it evaluates f, defined by a sampler and a formula.

    Attributes:
      sampler: as in `SampleEstimator`.
      formula: `(params, logits, b, noise, f_b, slope) -> [*batch, D]`, with f_b `[N, *batch]` and slope `[N, *batch,
        D]`.
      relax: `(logits, noise) -> [N, *batch, D]`, points between the bits at which ∇f is taken instead; f is then
        evaluated at the samples in a call of its own, because `value` is a mean of f over samples. None takes ∇f at the
        samples.
    """

    sampler: Sampler
    formula: Callable[..., jax.Array]
    relax: Callable[[jax.Array, Any], jax.Array] | None = None

    def outcome(self, params: Any, key: jax.Array, logits: jax.Array, f: Function, has_aux: bool = False) -> Outcome:
        """Draws samples, evaluates f and its gradient, and applies the formula."""
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
