"""REBAR and RELAX: control variates from a continuous relaxation of f, with learnt temperature, scale and network."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimate, Estimator


@contract.factory
def rebar(*, init_temperature: float = 0.1, init_scale: float = 1.0) -> Estimator:
    """REBAR (Tucker et al., 2017): REINFORCE with the relaxed f as control variate.

    [f(b) − c(z̃)] ∂log q(b) + ∂c(z) − ∂c(z̃), c(z) = η f(σ(z/τ)), with z the logistic noise that made b and z̃ drawn
    again given b. Unbiased for every temperature τ > 0 and scale η; one evaluation of f at b and two, in one call, at
    relaxed points in [0, 1]; f is differentiated there.

    `params` is `{"log_temperature": log τ, "scale": η}`, learnt by descending `variance_loss`.

    Args:
      init_temperature: τ at the start.
      init_scale: η at the start.

    Example:
      >>> est = dj.rebar()
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return _relaxed(init_temperature, init_scale, network=None)


@contract.factory
def relax(
    *,
    init_temperature: float = 0.1,
    init_scale: float = 1.0,
    hidden: int = 137,
    control_variate: tuple[Callable, Callable] | None = None,
    scaled_network: bool = False,
) -> Estimator:
    """RELAX (Grathwohl et al., 2018): REBAR with a learnt function added to the control variate.

    As `rebar`, with c(z) = η f(σ(z/τ)) + r(z). Unbiased for every τ > 0, η and r; one evaluation of f at b and two, in
    one call, at relaxed points in [0, 1]; f is differentiated there. The defaults are the paper's.

    `params` is `{"log_temperature": log τ, "scale": η, "network": …}`, learnt by descending `variance_loss`.

    Args:
      init_temperature: τ at the start.
      init_scale: η at the start.
      hidden: units of the built-in r, a network with one hidden layer of LeakyReLU(0.3); unused if r is given.
      control_variate: r as a pair of pure functions, `init(key, logits) -> params` and `apply(params, z) -> [...]` for
        z of shape `[..., D]`. It may close over anything but the sample, the current data x for one.
      scaled_network: whether η multiplies r as well, c(z) = η (f(σ(z/τ)) + r(z)), as in the paper's released code.

    Example:
      >>> est = dj.relax(hidden=8)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    return _relaxed(init_temperature, init_scale, network_of(hidden, control_variate), scaled_network)


def network_of(hidden: int, control_variate: tuple[Callable, Callable] | None) -> tuple[Callable, Callable]:
    """The pair (init, apply) of r, given or built in."""
    if control_variate is None:
        return _network(contract.at_least("hidden", hidden, 1))
    if not (isinstance(control_variate, tuple) and len(control_variate) == 2 and all(map(callable, control_variate))):
        raise TypeError(f"control_variate must be a pair of functions (init, apply), got {control_variate!r}")
    return control_variate


def tunables(init_temperature: float, init_scale: float, network: tuple[Callable, Callable] | None) -> Callable:
    """The `init` of a relaxation: log τ, η and the parameters of r."""
    contract.number("init_temperature", init_temperature, lambda x: 0 < x < math.inf, "positive and finite")
    contract.number("init_scale", init_scale, math.isfinite, "finite")

    def init(key, logits):
        logits = bernoulli.as_logits(logits)
        dtype = bernoulli.wide_dtype(logits)
        params = {
            "log_temperature": jnp.log(jnp.asarray(init_temperature, dtype)),
            "scale": jnp.asarray(init_scale, dtype),
        }
        return params if network is None else params | {"network": network[0](key, logits)}

    return init


def rate(params: Any, dtype: jnp.dtype) -> jax.Array:
    """1/τ."""
    return jnp.exp(-jnp.asarray(params["log_temperature"])).astype(dtype)


def noisy_logits(logits: jax.Array, b: jax.Array, noise: jax.Array, uniform: jax.Array) -> jax.Array:
    """z, whose sign is b, and z̃, drawn again given b: `[2, *batch, D]`, differentiable in the logits."""
    return jnp.stack([logits + noise, bernoulli.conditional_logit(logits, b, uniform)])


def evaluate_relaxed(f: Callable, points: Any, shape: tuple[int, ...], logits: jax.Array, has_aux: bool) -> jax.Array:
    """f at relaxed points, float32 or wider; refused if it is not differentiable there for being an integer."""
    f_relaxed, _ = contract.evaluate(f, points, shape, has_aux)
    contract.check_differentiable("REBAR and RELAX", f_relaxed)
    return contract.widen(f_relaxed, logits)[0]


def control(
    params: Any,
    network: tuple[Callable, Callable] | None,
    f_relaxed: jax.Array,
    z: jax.Array,
    scaled_network: bool,
) -> jax.Array:
    """c(z) = η f(σ(z/τ)) + r(z), or η (f(σ(z/τ)) + r(z)), given f at the relaxed points."""
    scale = jnp.asarray(params["scale"], f_relaxed.dtype)
    if network is None:
        return scale * f_relaxed
    free = network[1](params["network"], z)
    if free.shape != f_relaxed.shape:
        raise ValueError(f"control_variate must return shape {f_relaxed.shape} for z {z.shape}, got {free.shape}")
    free = free.astype(f_relaxed.dtype)
    return scale * (f_relaxed + free) if scaled_network else scale * f_relaxed + free


def value_and_slopes(controls: Callable, logits: Any) -> tuple[jax.Array, Any]:
    """The control variates, rows c(z), c(z̃), c(z), c(z̃), …, and ∂c(z) − ∂c(z̃), from one reverse pass."""

    def difference(logits):
        c = controls(logits)
        return jnp.sum(c[0::2]) - jnp.sum(c[1::2]), c

    slopes, c = jax.grad(difference, has_aux=True)(logits)
    return c, slopes


def _relaxed(
    init_temperature: float,
    init_scale: float,
    network: tuple[Callable, Callable] | None,
    scaled_network: bool = False,
) -> Estimator:
    def apply(params: Any, key: jax.Array, logits: jax.Array, f: Callable, *, has_aux: bool = False):
        logits = bernoulli.as_logits(logits)
        alpha = bernoulli.finite(bernoulli.stop_and_widen(logits))
        noise_key, uniform_key = jax.random.split(key)
        noise = bernoulli.logistic_noise(noise_key, alpha.shape, alpha.dtype)
        uniform = bernoulli.open_uniform(uniform_key, alpha.shape, alpha.dtype)
        b = bernoulli.threshold(alpha, noise)
        f_b, aux = contract.evaluate(f, b[None].astype(logits.dtype), (1, *b.shape[:-1]), has_aux)
        f_b, value_dtype = contract.widen(f_b[0], logits)

        def controls(alpha):
            z = noisy_logits(alpha, b, noise, uniform)
            relaxed = jax.nn.sigmoid(z * rate(params, z.dtype)).astype(logits.dtype)
            f_relaxed = evaluate_relaxed(f, relaxed, z.shape[:-1], logits, has_aux)
            return control(params, network, f_relaxed, z, scaled_network)

        c, slope = value_and_slopes(controls, alpha)
        grad = formulas.relax(alpha, b, lax.stop_gradient(f_b), c[1], slope)
        estimate = Estimate(f_b.astype(value_dtype), grad.astype(logits.dtype))
        return (estimate, aux) if has_aux else estimate

    return Estimator(tunables(init_temperature, init_scale, network), apply)


def _network(hidden: int) -> tuple[Callable, Callable]:
    """One hidden layer of LeakyReLU(0.3), Glorot-uniform weights and zero biases, z to a number."""
    glorot = jax.nn.initializers.glorot_uniform()

    def init(key, logits):
        keys, dim, dtype = jax.random.split(key), logits.shape[-1], bernoulli.wide_dtype(logits)
        return {
            "hidden": {"kernel": glorot(keys[0], (dim, hidden), dtype), "bias": jnp.zeros(hidden, dtype)},
            "output": {"kernel": glorot(keys[1], (hidden, 1), dtype), "bias": jnp.zeros((), dtype)},
        }

    def apply(params, z):
        hidden = z @ params["hidden"]["kernel"] + bernoulli.lift(params["hidden"]["bias"], z.ndim)
        activation = jax.nn.leaky_relu(hidden, negative_slope=0.3)
        return jnp.squeeze(activation @ params["output"]["kernel"], axis=-1) + params["output"]["bias"]

    return init, apply
