"""Estimators with a control variate: terms with mean zero are subtracted from the gradient of a base estimator."""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import calling, options
from disarm_jax.estimators.estimator import Derived, Estimator, Function, Init, Outcome, SampleEstimator, Samples
from disarm_jax.estimators.first_order import vary_like
from disarm_jax.structure import Composed, Parts, as_composed, parts_at


class AtSamples(NamedTuple):
    """The quantities that a control variate is computed from.

    Attributes:
      f: outer and inner function.
      logits: `[*batch, D]`.
      samples: the samples of the base estimator.
      parts: inner(b) and b at the samples.
      f_b: `[N, *batch]`, f at the samples.
      has_aux: whether f returns a pair.
    """

    f: Composed
    logits: jax.Array
    samples: Samples
    parts: Parts
    f_b: jax.Array
    has_aux: bool


class Control(Protocol):
    """Computes a control variate from what is known of f near the samples of a base estimator."""

    @property
    def random(self) -> bool:
        """Whether `terms` needs a random key."""
        ...

    def check(self, base: SampleEstimator) -> None:
        """Raises ValueError if this cannot be a control variate of the base estimator."""
        ...

    def point(self, logits: jax.Array, b: jax.Array) -> jax.Array:
        """Returns the point `[*batch, D]` where f is expanded; later layers of a chain are at their means given it."""
        ...

    def terms(
        self, est: "Controlled", params: Any, key: jax.Array | None, at: AtSamples
    ) -> tuple[jax.Array | None, list[jax.Array]]:
        """Returns a constant `[*batch]` to subtract from f, or None, and a list of terms `[*batch, D]` with mean zero.

        Args:
          est: the estimator.
          params: the tunables of the base estimator.
          key: a JAX random key, which must not be used again. It is None if the control variate is not `random`.
          at: f and the samples of the base estimator.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Controlled(Derived):
    """An estimator of samples with a control variate: base(f) − Σ_j λ_j term_j.

    It is unbiased for every λ if the base estimator is. `params` is `{"base": the tunables of the base, "scale": (λ_1,
    …)}`, learnt by descending `variance_loss`; if there are no scales to learn, it consists of the tunables of the base
    alone.

    Attributes:
      base: the estimator whose samples and formula are used.
      control: the control variate.
      init_scale: the initial values of the scales λ; empty if the terms are subtracted without scales.
    """

    base: SampleEstimator
    control: Control
    init_scale: tuple[float, ...]
    tuned_by_logits: bool = True
    tunables: tuple[str, ...] = dataclasses.field(init=False, compare=False, repr=False)
    init: Init = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives the other fields. Raises TypeError or ValueError if base and control variate do not fit."""
        self.control.check(check_base(self.base))
        object.__setattr__(self, "event_ndim", self.base.event_ndim)
        object.__setattr__(self, "tunables", ("scale",) if self.init_scale else self.base.tunables)
        object.__setattr__(self, "init", self.init_params)
        super().__post_init__()

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables of the base estimator change the distribution of the samples."""
        return self.base.moves_samples

    def init_params(self, key: jax.Array, logits: jax.Array) -> Any:
        """Returns the tunables of the base estimator and the scales, in float32 or wider."""
        dtype, base = bernoulli.wide_dtype(self.check_logits(logits)), self.base.init(key, logits)
        scales = tuple(jnp.asarray(scale, dtype) for scale in self.init_scale)
        return {"base": base, "scale": scales} if scales else base

    def outcome(self, params: Any, key: jax.Array, logits: jax.Array, f: Function, has_aux: bool = False) -> Outcome:
        """Draws samples, evaluates f at them, and evaluates f once more for the control variate."""
        logits = self.check_logits(logits, params)
        self.check_scales(params)
        base_key, control_key = split_if(self.control.random, key)
        f, own = as_composed(f), self.base_params(params)
        samples = self.base.draw(own, base_key, logits)
        parts = parts_at(f, samples.b, self.event_ndim)
        rows = self.base.rows_of(samples)
        f_b, aux = calling.evaluate(lambda parts: f.outer(*parts), parts, rows, has_aux)
        grad = self.gradient(params, control_key, AtSamples(f, logits, samples, parts, f_b, has_aux))
        estimate = self.base.finish(logits, f_b, grad)
        return Outcome(estimate, logits, self.base.of_draws(aux), self.base.log_prob_of(own, logits, samples))

    def check_scales(self, params: Any) -> None:
        """Raises TypeError if there is not one scale for each term, or if tunables of the base are missing."""
        scales, num = params["scale"] if self.init_scale else (), len(self.init_scale)
        if not isinstance(scales, tuple | list) or len(scales) != num:
            raise TypeError(f"params['scale'] of {self.name} must be a tuple of {num} numbers, got {scales!r}")
        options.check_params(self.base.name, self.base_params(params), self.base.tunables)

    def gradient(self, params: Any, key: jax.Array | None, at: AtSamples) -> jax.Array:
        """Returns the gradient of the base estimator minus the control variate; see `Control.terms`."""
        own, alpha = self.base_params(params), bernoulli.stop_and_widen(at.logits)
        around, parts = vary_like((at.logits, at.parts), at.f_b)  # under shard_map, f may differ between devices
        wide_f, _ = calling.widen(lax.stop_gradient(at.f_b), at.logits)
        constant, terms = self.control.terms(self, own, key, at._replace(logits=around, parts=parts, f_b=wide_f))
        if constant is not None:
            wide_f = wide_f - constant[None].astype(wide_f.dtype)
        grad = self.base.formula(own, alpha, *at.samples, wide_f)
        for scale, term in zip(params["scale"] if self.init_scale else (1.0,), terms, strict=True):
            grad = grad - jnp.asarray(scale).astype(term.dtype) * term
        return grad

    def base_params(self, params: Any) -> Any:
        """Returns the base's tunables; `params` with scales may leave them out if there are none."""
        return params.get("base", ()) if self.init_scale else params


def split_if(random: bool, key: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Returns the key and None, or two new keys if a second one is needed."""
    if not random:
        return key, None
    first, second = jax.random.split(key)
    return first, second


def check_base(base: Estimator) -> SampleEstimator:
    """Returns the base estimator of a control variate.

    Raises:
      TypeError: if `base` is not an estimator.
      ValueError: if it calls f itself, or if its bits are not independent.
    """
    options.check_estimator("a control variate", base)
    if not isinstance(base, SampleEstimator):
        raise ValueError(
            f"base must not differentiate f itself, got {base.name}: accepted are estimators of samples, such as "
            "dj.disarm()"
        )
    if not base.independent:
        raise ValueError(f"base must draw independent bits, and those of {base.name} are not")
    return base
