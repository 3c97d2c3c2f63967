"""Hard samples for the middle of a network: 0 and 1 as values, with a straight-through-type gradient.

`sample` is `disarm_jax.sample`, for bits; `disarm_jax.categorical.sample` is the same for classes. The functions named
after gradients document each gradient, its options and its paper; `sample` takes them by name. All of them are biased,
because no function f of the sample is known here. Where a loss can be written as E f(b), the estimators of this package
differentiate it without bias.

The derivative of a sample is a symmetric matrix S for each bit or variable. It is computed without differentiation, by
the formulas of the biased estimators, which are S ∇f. The sample is returned as b + S (α − stop(α)), where α are the
logits: the second term is exactly zero and has the derivative S.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import calling, options

Draw = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array | None]]


@dataclasses.dataclass(frozen=True)
class Variables:
    """What the gradients need to know about bits, or about classes.

    Attributes:
      event_ndim: 1 for bits `[*batch, D]`, 2 for classes `[*batch, D, C]`.
      sample: `(key, logits) -> b`, a hard sample of the logits' shape.
      noise: `(key, shape, dtype)` to the noise whose sum with the logits is the perturbed logits.
      perturb: `(logits, noise) -> x`, the perturbed logits.
      harden: `x -> b`, the hard sample that perturbed logits determine.
      relax: `x -> ` relaxed sample.
      given: `(key, logits, b, num) -> x`, draws `[num, ...]` of perturbed logits given the hard sample.
      apart: `(logits, b, gap) -> x`, logits moved such that the sample leads by the gap.
      straight_through, reinmax, gumbel: formulas.
    """

    event_ndim: int
    sample: Callable
    noise: Callable
    perturb: Callable
    harden: Callable
    relax: Callable
    given: Callable
    apart: Callable
    straight_through: Callable
    reinmax: Callable
    gumbel: Callable


def straight_through(kind: Variables) -> Draw:
    """Biased: straight-through, the derivative of the probability, as if the sample were its own mean.

    It is exact only for a loss that is linear in each bit (or in each variable, for classes).

    Paper: Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013
    """
    return lambda key, logits, slope: (kind.sample(key, logits), kind.straight_through(logits, slope))


def reinmax(kind: Variables, *, temperature: float = 1.0) -> Draw:
    """Biased: ReinMax, straight-through corrected to second order. This is the default, and the one to begin with.

    With temperature 1 it is exact for a loss that is at most quadratic in each bit (or in each variable, for classes),
    and the same as ZGR (Shekhovtsov, Cold analysis of Rao-Blackwellized straight-through Gumbel-softmax gradient
    estimator, ICML 2023), the limit of `gumbel_rao` for temperature 0 and many samples. At other temperatures it is not
    exact for quadratic losses; the authors tune the temperature from 1 upwards.

    Paper: Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023
    """
    _positive("temperature", temperature)

    def draw(key, logits, slope):
        b = kind.sample(key, logits)
        return b, kind.reinmax(logits, b, slope, temperature)

    return draw


def gumbel(kind: Variables, *, temperature: float = 1.0, hard: bool = True) -> Draw:
    """Biased: Gumbel-sigmoid or Gumbel-softmax, the derivative of a sample relaxed at a temperature.

    The sample is hard and has the derivative of the relaxed sample (straight-through Gumbel). With `hard=False` it is
    the relaxed sample itself, between 0 and 1. The gradient is biased even for linear losses. A low temperature has
    less bias and more variance.

    Paper: Jang et al., Categorical reparameterization with Gumbel-softmax; Maddison et al., The Concrete distribution,
      both ICLR 2017
    """
    _positive("temperature", temperature)
    options.flag("hard", hard)

    def draw(key, logits, slope):
        x = kind.perturb(logits, kind.noise(key, logits.shape, logits.dtype))
        value = kind.harden(x) if hard else kind.relax(x / temperature)
        return value, kind.gumbel(x, slope, temperature)

    return draw


def gumbel_rao(kind: Variables, *, temperature: float = 1.0, num_samples: int = 10) -> Draw:
    """Biased: Gumbel-Rao, the derivative of hard `gumbel` averaged over the noise that gives the same sample.

    It has the bias of `gumbel` at the same temperature and less variance, which falls with the number of draws of the
    noise, `num_samples`. The loss is still computed once. As in the paper, where this is a conditional expectation, no
    derivative passes through the noise given the sample.

    Paper: Paulus, Maddison & Krause, Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator, ICLR
      2021
    """
    _positive("temperature", temperature)
    options.at_least("num_samples", num_samples, 1)

    def draw(key, logits, slope):
        sample_key, noise_key = jax.random.split(key)
        b = kind.sample(sample_key, logits)
        x = kind.given(noise_key, logits, b, num_samples)
        through = kind.gumbel(x, jnp.broadcast_to(slope[None], x.shape), temperature)
        return b, jnp.mean(through, axis=0)

    return draw


def gapped(kind: Variables, *, temperature: float = 1.0, gap: float = 1.0) -> Draw:
    """Biased: gapped straight-through, the derivative of a softmax in which the sample leads by a gap.

    The logit of the sample is raised to the largest one, and the others are lowered to at least the gap below it; the
    derivative is that of the softmax at these logits. It resembles hard `gumbel`, but needs no noise.

    Paper: Fan, Chi, Rudnicky & Ramadge, Training discrete deep generative models via gapped straight-through estimator,
      ICML 2022
    """
    _positive("temperature", temperature)
    if not isinstance(gap, jax.Array):
        options.number("gap", gap, lambda x: 0 <= x < float("inf"), "a finite number of at least 0")

    def draw(key, logits, slope):
        b = kind.sample(key, logits)
        return b, kind.gumbel(kind.apart(logits, b, gap), slope, temperature)

    return draw


def decoupled(kind: Variables, *, forward_temperature: float = 1.0, backward_temperature: float = 1.0) -> Draw:
    """Biased: decoupled straight-through Gumbel, with one temperature for the sample and one for its derivative.

    The sample is drawn from logits / forward_temperature, so that its distribution is a different one unless that is 1.
    The derivative is that of the sample relaxed at logits / backward_temperature + noise, with the same noise. If both
    temperatures are 1, it is `gumbel`.

    Paper: Shah, Yan, Mozer & Liu, Improving discrete optimisation via decoupled straight-through Gumbel-softmax, 2024
    """
    _positive("forward_temperature", forward_temperature)
    _positive("backward_temperature", backward_temperature)

    def draw(key, logits, slope):
        noise = kind.noise(key, logits.shape, logits.dtype)
        b = kind.harden(kind.perturb(logits / forward_temperature, noise))
        return b, kind.gumbel(kind.perturb(logits, backward_temperature * noise), slope, backward_temperature)

    return draw


def none(kind: Variables) -> Draw:
    """No gradient: the sample is treated as a constant in differentiation."""
    return lambda key, logits, slope: (kind.sample(key, logits), None)


GRADIENTS = {make.__name__: make for make in (decoupled, gapped, gumbel, gumbel_rao, none, reinmax, straight_through)}


def draw(kind: Variables, key: jax.Array, logits: jax.Array, gradient: str, chosen: dict[str, Any]) -> jax.Array:
    """Draws a sample of the logits' shape and dtype, with the gradient of the given name and its options."""
    if not isinstance(gradient, str):
        raise TypeError(f"gradient must be one of the names {', '.join(GRADIENTS)}, got {gradient!r}")
    if gradient not in GRADIENTS:
        raise ValueError(f"unknown gradient {gradient!r}; known: {', '.join(GRADIENTS)}")
    make = GRADIENTS[gradient]
    parameters = inspect.signature(make).parameters.values()
    options.check_known(gradient, chosen, [option.name for option in parameters if option.kind is option.KEYWORD_ONLY])
    shape, logits = jnp.shape(logits), jnp.asarray(logits)
    if len(shape) == kind.event_ndim - 1:  # a single bit, or a single variable
        logits = logits[None]
    logits = bernoulli.as_logits(logits, event_ndim=kind.event_ndim)
    finite = jnp.where(jnp.isinf(logits), jnp.zeros_like(logits), logits)  # ∞ − ∞ would be NaN
    zero = bernoulli.wide(finite - lax.stop_gradient(finite))
    numbers = {name: _fixed(name, value, zero.dtype) for name, value in chosen.items()}
    value, change = make(kind, **numbers)(key, bernoulli.stop_and_widen(logits), zero)
    value = calling.finish(value, logits, kind.event_ndim)
    if change is not None:
        value = value + change.astype(value.dtype)
    return value.reshape(shape)


def _positive(option: str, value: Any) -> None:
    """Raises ValueError if a temperature is not positive and finite; that of a traced one cannot be checked."""
    if not isinstance(value, jax.Array):
        options.positive(option, value)


def _fixed(option: str, value: Any, dtype: jnp.dtype) -> Any:
    """Returns an option. An array loses its derivative; raises ValueError if it is not a scalar."""
    if not isinstance(value, jax.Array):
        return value
    if value.shape != ():
        raise ValueError(f"{option} must be a number, got an array of shape {value.shape}")
    return lax.stop_gradient(value).astype(dtype)


def sample(key: jax.Array, logits: jax.Array, gradient: str = "reinmax", **options: Any) -> jax.Array:
    """Draws one hard sample, 0 or 1, that is differentiable with respect to the logits; the gradient is biased.

    Use it for binary units in the middle of a network: gates, masks, binary codes. It works under jit, vmap, scan,
    remat, shard_map and grad, in any module of Flax, Equinox or Haiku, and the gradient is the ordinary one of
    `jax.grad`. It approximates the gradient of the expected loss from the slope of the loss at the sample. So the loss
    must be differentiable in the sample: multiply by a gate, because a branch that the sample skips with `lax.cond` or
    `jnp.where` gives it no slope. If the loss can be written as a function f of the bits, `disarm_jax.expectation` has
    the unbiased gradient, and needs no slope. After training, take `logits > 0`, or average over samples.

    | gradient | options | |
    |---|---|---|
    | `"reinmax"` | `temperature=1.0` | exact for quadratic losses; begin here |
    | `"straight_through"` | | exact for linear losses |
    | `"gumbel"` | `temperature=1.0, hard=True` | relaxed with noise; `hard=False` returns the relaxed sample |
    | `"gumbel_rao"` | `temperature=1.0, num_samples=10` | as hard `"gumbel"`, with less variance |
    | `"gapped"` | `temperature=1.0, gap=1.0` | as hard `"gumbel"`, without noise |
    | `"decoupled"` | `forward_temperature=1.0, backward_temperature=1.0` | `"gumbel"` with two temperatures |
    | `"none"` | | no gradient |

    All of these gradients are biased; the functions of these names in `disarm_jax.samplers` document each of them and
    its paper. Numbers among the options may be traced, for instance a temperature that falls during training; no
    gradient reaches them. Only first derivatives are supported: those of the gradient with respect to the logits are
    zero.

    Args:
      key: a JAX random key. Use a new one for each step, such as `self.rngs.gate()` of a Flax NNX module. One key gives
        independent bits for all logits; under vmap, give each example its own, `jax.random.split(key, batch_size)`.
      logits: of any shape; logits of ±∞ are certain bits and have a gradient of zero.
      gradient: the name of the gradient.
      **options: the options of the gradient.

    Returns:
      A sample of the shape and dtype of the logits; NaN where they are NaN.

    Raises:
      TypeError: if the logits are not floating-point numbers, or an option is unknown.
      ValueError: if the name of the gradient or the value of an option is not accepted.

    Example:
      >>> logits, weights = jnp.array([-1.0, 0.5, 2.0]), jnp.array([3.0, 1.0, -2.0])
      >>> loss = lambda logits, key: dj.sample(key, logits, gradient="straight_through") @ weights
      >>> [f"{g:.4f}" for g in jax.grad(loss)(logits, jax.random.key(0))]
      ['0.5898', '0.2350', '-0.2100']
    """
    return draw(_BITS, key, logits, gradient, options)


def _given(key: jax.Array, logits: jax.Array, b: jax.Array, num: int) -> jax.Array:
    uniform = bernoulli.open_uniform(key, (num, *b.shape), b.dtype)
    return bernoulli.conditional_logit(logits[None], b[None], uniform)


_BITS = Variables(
    event_ndim=1,
    sample=lambda key, logits: bernoulli.sample(key, logits, 1)[0],
    noise=bernoulli.logistic_noise,
    perturb=lambda logits, noise: logits + noise,
    harden=lambda x: (x > 0).astype(x.dtype),
    relax=jax.nn.sigmoid,
    given=_given,
    apart=lambda logits, b, gap: jnp.maximum((2 * b - 1) * logits, gap),  # the derivative of σ is even
    straight_through=formulas.straight_through,
    reinmax=formulas.reinmax,
    gumbel=formulas.gumbel_sigmoid,
)
