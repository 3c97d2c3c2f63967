"""What a Bernoulli VAE is trained on and judged by: log-weights of samples, and bounds on log p(x) made of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators.composed import Composed
from disarm_jax.estimators.layer_sum import LayerSum
from disarm_jax.models import BernoulliVAE, log_likelihood


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
      A function of one `[..., *batch, D_t]` per layer, in a tuple, to `[..., *batch]`; a `LayerSum`, unless the model
      has a `log_joint` of its own.
    """
    # Not the logits of later layers are stopped, but their parameters: some estimators differentiate f in the samples.
    own_layers = inference_layers(model, lax.stop_gradient(params)) if stop_q else layers
    first_logits = lax.stop_gradient(first_logits) if stop_q else first_logits

    def logits(t: int, below: jax.Array | None) -> jax.Array:
        return own_layers[t](below) if t else first_logits

    def term(t: int, below: jax.Array | None, b: jax.Array, logits: jax.Array) -> jax.Array:
        below = below if t else x
        return model.apply({"params": params}, t, below, b, method="log_joint_term") - bernoulli.log_prob(logits, b)

    def f(b: tuple[jax.Array, ...]) -> jax.Array:
        log_q = sum(bernoulli.log_prob(logits(t, b[t - 1] if t else None), b[t]) for t in range(len(b)))
        return model.apply({"params": params}, x, b, method="log_joint") - log_q

    if getattr(type(model), "log_joint", None) is BernoulliVAE.log_joint:
        return LayerSum(term, logits, stop_layers=stop_q)
    return f


def composed_log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, first_logits: jax.Array, *, stop_q: bool
) -> Composed:
    """log w of a model of one layer, with the structure that expansions make use of: the same numbers.

    Inner are the logits of the pixels, log p(b) and log q(b), of which the last two are linear in the bits; the first
    are too, if the decoder has no hidden layer.

    Args:
      model: the VAE, with `BernoulliVAE`'s own `log_joint`.
      params: its parameters.
      x: `[*batch, pixels]`, binary.
      first_logits: `[*batch, D]`, of q.
      stop_q: whether log q is taken as a constant.
    """
    stop = lax.stop_gradient if stop_q else lambda logits: logits

    def inner(b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        pixel_logits = model.apply({"params": params}, b, method="decode")
        return pixel_logits, bernoulli.log_prob(params["prior"], b), bernoulli.log_prob(stop(first_logits), b)

    def outer(parts: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        pixel_logits, log_p, log_q = parts
        return log_likelihood(x, pixel_logits) + log_p - log_q

    if model.hidden:
        return Composed(outer, inner)
    (layer,) = params["decoder"]["networks_0"].values()
    weights = layer["kernel"] * (2 if model.signed_input else 1)
    return Composed(outer, inner, affine=True, squared=lambda curvature: curvature[0] @ (weights**2).T)


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
        b = [bernoulli.sample(keys[0], first_logits, at_once)]
        for t in range(1, len(layers)):
            b.append(bernoulli.sample(keys[t], layers[t](b[-1]), 1)[0])
        return jnp.logaddexp(log_sum, jax.nn.logsumexp(f(tuple(b)), axis=0)), None

    start = jnp.full(x.shape[:-1], -jnp.inf, first_logits.dtype)
    log_sum, _ = lax.scan(weigh, start, jax.random.split(key, num_samples // at_once))
    return log_sum - jnp.log(jnp.asarray(num_samples, log_sum.dtype))
