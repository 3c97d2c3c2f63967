"""The objectives of a Bernoulli VAE: log-weights of samples, and bounds on log p(x) computed from them."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.models import BernoulliVAE, log_likelihood
from disarm_jax.structure import Composed, LayerSum


def inference_layers(model: BernoulliVAE, params: Any) -> list[Callable]:
    """Returns the layers of q as functions of the layer before, b_{t−1} ↦ logits_t, as `dj.Chain` takes them.

    Args:
      model: the VAE.
      params: its parameters.
    """

    def layer(t: int) -> Callable:
        return lambda inputs: model.apply({"params": params}, t, inputs, method="encode")

    return [layer(t) for t in range(len(model.latents))]


def log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, layers: Sequence[Callable], first_logits: jax.Array, *, stop_q: bool
) -> Callable:
    """Returns log w(b) = log p(x, b) − log q(b | x) as a function of samples, which is the f of the estimators.

    For the ELBO, the derivative of log q inside f has mean zero, so it may be stopped, as the authors of the paper did;
    in a multi-sample bound it must not be.

    Args:
      model: the VAE.
      params: its parameters.
      x: `[*batch, pixels]`, binary.
      layers: the result of `inference_layers`.
      first_logits: `[*batch, D_1]`, the result of `layers[0]` for x; they do not depend on the samples.
      stop_q: whether log q carries no derivative with respect to the parameters.

    Returns:
      A function that maps a tuple of one `[..., *batch, D_t]` per layer to `[..., *batch]`.
    """
    q_logits = _logits_of_q(model, params, layers, first_logits, stop_q)

    def f(b: tuple[jax.Array, ...]) -> jax.Array:
        log_q = sum(model.law.log_prob(q_logits(t, b[t - 1] if t else None), b[t]) for t in range(len(b)))
        log_p = cast(jax.Array, model.apply({"params": params}, x, b, method="log_joint"))
        return log_p - log_q

    return f


def weigh(
    model: BernoulliVAE, params: Any, x: jax.Array, layers: Sequence[Callable], first_logits: jax.Array, *, stop_q: bool
) -> Callable:
    """Returns log w, with its structure if the model knows it.

    It is a function of the samples of one layer, or of a tuple of samples for several layers. The arguments are those
    of `log_weights`.

    Example:
      >>> from disarm_jax import models, objectives
      >>> model, x = models.BernoulliVAE(latents=(4,), pixels=6), jnp.ones((5, 6))
      >>> params = model.init(jax.random.key(0), x)["params"]
      >>> layers = objectives.inference_layers(model, params)
      >>> logits = layers[0](x)
      >>> log_w = objectives.weigh(model, params, x, layers, logits, stop_q=True)
      >>> dj.expectation(dj.disarm_midpoint())((), jax.random.key(1), logits, log_w).shape  # the ELBO of each image
      (5,)
    """
    if model.decoders(params) is not None:
        return structured_log_weights(model, params, x, layers, first_logits, stop_q=stop_q)
    f = log_weights(model, params, x, layers, first_logits, stop_q=stop_q)
    return f if len(layers) > 1 else lambda b: f((b,))


def structured_log_weights(
    model: BernoulliVAE, params: Any, x: jax.Array, layers: Sequence[Callable], first_logits: jax.Array, *, stop_q: bool
) -> Composed | LayerSum:
    """Returns log w with the structure that control variates make use of.

    For one layer it is a `Composed` of its samples, for several layers a `LayerSum`. The arguments are those of
    `log_weights`; the model must know its `decoders`.
    """
    depth = len(layers)
    q_logits = _logits_of_q(model, params, layers, first_logits, stop_q)
    inner = model.decoders(params)
    assert inner is not None

    def term(t: int, below: jax.Array | None, p_logits: jax.Array, b: jax.Array, logits: jax.Array) -> jax.Array:
        log_p = log_likelihood(x, p_logits) if below is None else bernoulli.log_prob(p_logits, below)
        if t == depth - 1:
            log_p = log_p + model.law.log_prob(params["prior"], b)
        return log_p - model.law.log_prob(logits, b)

    if depth == 1:
        return Composed(lambda p_logits, b: term(0, None, p_logits, b, q_logits(0, None)), inner[0])
    return LayerSum(term, q_logits, inner=inner, stop_layers=stop_q)


def _logits_of_q(
    model: BernoulliVAE, params: Any, layers: Sequence[Callable], first_logits: jax.Array, stop_q: bool
) -> Callable:
    """Returns `(t, b_{t−1}) -> logits_t` for log q.

    With `stop_q` the parameters are stopped, not the results, because f may be differentiated in b.
    """
    if stop_q:
        layers, first_logits = inference_layers(model, lax.stop_gradient(params)), lax.stop_gradient(first_logits)
    return lambda t, below: layers[t](below) if t else first_logits


def sample_layers(
    model: BernoulliVAE, layers: Sequence[Callable], key: jax.Array, x: jax.Array, num_samples: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Draws samples of all layers of q, each given the one before.

    Args:
      model: the VAE.
      layers: the result of `inference_layers`.
      key: a JAX random key, which must not be used again.
      x: `[*batch, pixels]`, binary.
      num_samples: K.

    Returns:
      The samples `[K, *batch, D_t]` of each layer, and the logits of each layer.
    """
    b, logits = [], []
    for layer, layer_key in zip(layers, jax.random.split(key, len(layers)), strict=True):
        logits.append(layer(b[-1] if b else x))
        sample = model.law.sample(layer_key, logits[-1], 1 if b else num_samples)
        b.append(sample[0] if b else sample)
    return b, logits


def sampled_bound(
    model: BernoulliVAE, params: Any, key: jax.Array, x: jax.Array, num_samples: int, samples_at_once: int = 10
) -> jax.Array:
    """Estimates the multi-sample bound log 1/K Σ w(b_k) of each image, with b_k ~ q(b | x); for K = 1 the ELBO.

    Samples are drawn and weighed a few at a time and only their running log-sum is kept, so that the memory does not
    grow with K.

    Args:
      model: the VAE.
      params: its parameters.
      key: a JAX random key, which must not be used again.
      x: `[*batch, pixels]`, binary.
      num_samples: K, at least 1.
      samples_at_once: the largest number of samples that go through the decoder in one pass.

    Returns:
      `[*batch]`.

    Raises:
      ValueError: if `num_samples` is less than 1.

    Example:
      >>> from disarm_jax import models, objectives
      >>> model, x = models.BernoulliVAE(latents=(4,), pixels=6), jnp.ones((5, 6))
      >>> params = model.init(jax.random.key(0), x)["params"]
      >>> objectives.sampled_bound(model, params, jax.random.key(1), x, num_samples=20).shape
      (5,)
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    at_once = max(size for size in range(1, min(samples_at_once, num_samples) + 1) if num_samples % size == 0)
    layers = inference_layers(model, params)
    first_logits = layers[0](x)
    f = log_weights(model, params, x, layers, first_logits, stop_q=True)

    layers = [lambda x: first_logits, *layers[1:]]

    def weigh(log_sum: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        b, _ = sample_layers(model, layers, key, x, at_once)
        return jnp.logaddexp(log_sum, jax.nn.logsumexp(f(tuple(b)), axis=0)), None

    start = jnp.full(x.shape[:-1], -jnp.inf, first_logits.dtype)
    log_sum, _ = lax.scan(weigh, start, jax.random.split(key, num_samples // at_once))
    return log_sum - jnp.log(jnp.asarray(num_samples, log_sum.dtype))
