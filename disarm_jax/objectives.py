"""What a Bernoulli VAE is trained on and judged by: log-weights of samples, and bounds on log p(x) made of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators.composed import Chained, Composed
from disarm_jax.estimators.layer_sum import LayerSum
from disarm_jax.models import BernoulliVAE, log_likelihood, network_moments


def inference_layers(model: BernoulliVAE, params: Any) -> list[Callable]:
    """The layers of q as functions of the layer before, b_{t−1} ↦ logits_t, as `hierarchical` takes them."""

    def layer(t: int) -> Callable:
        return lambda inputs: model.apply({"params": params}, t, inputs, method="encode")

    return [layer(t) for t in range(len(model.latents))]


def log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, layers: Sequence[Callable], first_logits: jax.Array, *, stop_q: bool
) -> Callable:
    """log w(b) = log p(x, b) − log q(b | x) as a function of samples, the f of every estimator.

    For the ELBO the derivative of log q inside f has mean zero, so it may be stopped, as the paper's authors did; in a
    multi-sample bound it must not be.

    Args:
      model: the VAE.
      params: its parameters.
      x: `[*batch, pixels]`, binary.
      layers: from `inference_layers`.
      first_logits: `[*batch, D_1]`, what `layers[0]` gives for x; they do not depend on the samples.
      stop_q: whether log q is taken as a constant.

    Returns:
      A function of one `[..., *batch, D_t]` per layer, in a tuple, to `[..., *batch]`.
    """
    q_logits = _logits_of_q(model, params, layers, first_logits, stop_q)

    def f(b: tuple[jax.Array, ...]) -> jax.Array:
        log_q = sum(model.law.log_prob(q_logits(t, b[t - 1] if t else None), b[t]) for t in range(len(b)))
        return model.apply({"params": params}, x, b, method="log_joint") - log_q

    return f


def composed_log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, first_logits: jax.Array, *, stop_q: bool
) -> Composed:
    """log w of a model of one layer, with the structure that expansions make use of: the same numbers.

    Args:
      model: the VAE, with `BernoulliVAE`'s own `setup`, `decode` and `log_joint`.
      params: its parameters.
      x: `[*batch, pixels]`, binary.
      first_logits: `[*batch, D]`, of q.
      stop_q: whether log q is taken as a constant.
    """
    first_logits = lax.stop_gradient(first_logits) if stop_q else first_logits

    def outer(parts: tuple[jax.Array, jax.Array]) -> jax.Array:
        pixel_logits, b = parts
        log_p = bernoulli.log_prob(params["prior"], b)
        return log_likelihood(x, pixel_logits) + log_p - bernoulli.log_prob(first_logits, b)

    return _composed(model, params, 0, outer)


def chained_log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, layers: Sequence[Callable], first_logits: jax.Array, *, stop_q: bool
) -> Chained:
    """log w of a model of several layers as a sum over them, with what expansions of each layer are made of.

    In layer t that is log p(b_{t−1} | b_t) − log q(b_t | b_{t−1}) + log p(b_t | mean of b_{t+1}): what of log w depends
    on b_t while the later layers stay at their means, but for log q(b_{t+1} | b_t): its slope vanishes there, and its
    curvature at a fixed b_{t+1} is not that of its expectation. The arguments are those of `log_weights`, the model
    with `BernoulliVAE`'s own `setup`, `decode` and `log_joint`.
    """
    depth, fixed = len(layers), lax.stop_gradient(params)
    q_logits = _logits_of_q(model, params, layers, first_logits, stop_q)

    def log_p_below(t: int, logits: jax.Array, below: jax.Array | None) -> jax.Array:
        return bernoulli.log_prob(logits, below) if t else log_likelihood(x, logits)

    def term(t: int, below: jax.Array | None, parts: tuple[jax.Array, jax.Array], logits: jax.Array) -> jax.Array:
        p_logits, b = parts
        log_w = log_p_below(t, p_logits, below) - bernoulli.log_prob(logits, b)
        return log_w + bernoulli.log_prob(params["prior"], b) if t == depth - 1 else log_w

    def part(t: int, means: tuple[jax.Array, ...]) -> Composed:
        below = means[t - 1] if t else None
        log_q_logits = lax.stop_gradient(q_logits(t, below))
        p_logits = _decode(model, fixed, t + 1, means[t + 1]) if t + 1 < depth else fixed["prior"]

        def outer(parts: tuple[jax.Array, jax.Array]) -> jax.Array:
            logits, b = parts
            linear = bernoulli.log_prob(p_logits, b) - bernoulli.log_prob(log_q_logits, b)
            return log_p_below(t, logits, below) + linear

        return _composed(model, fixed, t, outer)

    inner = functools.partial(_decoded_and_bits, model, params)
    return Chained(LayerSum(term, q_logits, inner=inner, stop_layers=stop_q), part)


def _logits_of_q(
    model: BernoulliVAE, params: Any, layers: Sequence[Callable], first_logits: jax.Array, stop_q: bool
) -> Callable:
    """`(t, b_{t−1}) -> logits_t` for log q; parameters are stopped, not results: f may be differentiated in b."""
    if stop_q:
        layers, first_logits = inference_layers(model, lax.stop_gradient(params)), lax.stop_gradient(first_logits)
    return lambda t, below: layers[t](below) if t else first_logits


def _decode(model: BernoulliVAE, params: Any, t: int, b: jax.Array) -> jax.Array:
    """Logits of what is below layer t, the pixels for t = 0."""
    return model.apply({"params": params}, b, method="decode" if t == 0 else lambda model, b: model.decoder(t, b))


def _decoded_and_bits(model: BernoulliVAE, params: Any, t: int, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What layer t enters log w through: the logits of what is below it, and its bits."""
    return _decode(model, params, t, b), b


def _composed(model: BernoulliVAE, params: Any, t: int, outer: Callable) -> Composed:
    """An f whose inner are the logits of decoder t and the bits themselves, for an outer that is linear in these."""
    inner, network = functools.partial(_decoded_and_bits, model, params, t), params["decoder"][f"networks_{t}"]
    scale = 2 if t == 0 and model.signed_input else 1  # the network sees 2b − 1, or b

    def moments(p: jax.Array, v: jax.Array) -> tuple[Any, Any]:
        seen = 2 * p - 1 if scale == 2 else p
        mean, variance = network_moments(network, seen, scale**2 * v, model.negative_slope)
        return (mean, p), (variance, v)

    if model.hidden:
        return Composed(outer, inner, moments=moments)
    (layer,) = network.values()
    weights = scale * layer["kernel"]
    squared = lambda curvature: curvature[0] @ (weights**2).T
    return Composed(outer, inner, affine=True, squared=squared, moments=moments)


def sampled_bound(
    model: BernoulliVAE, params: Any, key: jax.Array, x: jax.Array, num_samples: int, samples_at_once: int = 10
) -> jax.Array:
    """The multi-sample bound log 1/K Σ w(b_k) of each image, b_k ~ q(b | x); the ELBO's estimate for K = 1.

    Samples are drawn and weighed a few at a time and only their running log-sum is kept, so the memory does not grow
    with K.

    Args:
      model: the VAE.
      params: its parameters.
      key: consumed.
      x: `[*batch, pixels]`, binary.
      num_samples: K.
      samples_at_once: how many samples go through the decoder in one pass, at most.

    Returns:
      `[*batch]`.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    at_once = max(size for size in range(1, min(samples_at_once, num_samples) + 1) if num_samples % size == 0)
    layers = inference_layers(model, params)
    first_logits = layers[0](x)
    f = log_weights(model, params, x, layers, first_logits, stop_q=True)

    def weigh(log_sum: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        keys = jax.random.split(key, len(layers))
        b = [model.law.sample(keys[0], first_logits, at_once)]
        for t in range(1, len(layers)):
            b.append(model.law.sample(keys[t], layers[t](b[-1]), 1)[0])
        return jnp.logaddexp(log_sum, jax.nn.logsumexp(f(tuple(b)), axis=0)), None

    start = jnp.full(x.shape[:-1], -jnp.inf, first_logits.dtype)
    log_sum, _ = lax.scan(weigh, start, jax.random.split(key, num_samples // at_once))
    return log_sum - jnp.log(jnp.asarray(num_samples, log_sum.dtype))
