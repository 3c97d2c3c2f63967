"""The objectives of a Bernoulli VAE: log-weights of samples, and bounds on log p(x) computed from them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators.chain import Chain
from disarm_jax.formulas import bound
from disarm_jax.models import BernoulliVAE, log_likelihood
from disarm_jax.structure import Composed, LayerSum

ACTIVE = 0.01  # the variance over images from which on a latent variable counts as active, as in Burda et al. (2016)


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


def parts_of_elbo(model: Any, params: Any, key: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
    """The ELBO of a batch in parts, by one sample for each image, and how many latent variables depend on the image.

    Args:
      model: the VAE.
      params: its parameters.
      key: consumed.
      x: `[B, pixels]`, binary.

    Returns:
      `reconstruction`, log p(x | b); `kl`, what log q − log p of the bits is on average; `active_bits`, in all layers.
    """
    layers = inference_layers(model, params)
    samples, (first, *others) = sample_layers(model, layers, key, x, 1)
    b, active = [one[0] for one in samples], []
    for logits in (first, *(later[0] for later in others)):
        bits = logits.ndim == x.ndim
        variance = jnp.var(jax.nn.sigmoid(logits) if bits else jax.nn.softmax(logits), axis=0)
        active.append(jnp.sum((variance if bits else jnp.max(variance, axis=-1)) > ACTIVE))
    reconstruction = jnp.mean(log_likelihood(x, model.apply({"params": params}, b[0], method="decode")))
    elbo = jnp.mean(log_weights(model, params, x, layers, layers[0](x), stop_q=False)(tuple(b)))
    return {"reconstruction": reconstruction, "kl": reconstruction - elbo, "active_bits": jnp.sum(jnp.stack(active))}


class Objective(NamedTuple):
    """What a model is trained for.

    Attributes:
      model: the VAE.
      num_samples: K of the bound that is optimised; 1 for the ELBO.
      stop_q: whether log q inside f is taken as a constant.
      shared_samples: whether decoder and prior learn from the estimator's own samples, or from a fresh draw.
      weigh: makes the f of estimators, see `experiment.build.make_objective`.
    """

    model: Any
    num_samples: int
    stop_q: bool
    shared_samples: bool
    weigh: Callable = weigh

    def layers_and_f(
        self, params: dict, x: jax.Array, first_logits: jax.Array | None = None
    ) -> tuple[list[Callable], Callable]:
        """The layers of q, the first computed for x already, and f, log w as a rule: of b, or of a tuple of layers."""
        layers = inference_layers(self.model, params)
        known = layers[0](x) if first_logits is None else first_logits
        layers = [lambda x: known, *layers[1:]]
        return layers, self.weigh(self.model, params, x, layers, known, stop_q=self.stop_q)

    def fresh_bound(self, params: dict, key: jax.Array, x: jax.Array, first_logits: jax.Array) -> jax.Array:
        """The bound `[B]` of samples drawn for it, differentiable in decoder and prior alone."""
        params = params | lax.stop_gradient({"encoder": params["encoder"]})
        layers, f = self.layers_and_f(params, x, lax.stop_gradient(first_logits))
        b, logits = sample_layers(self.model, layers, key, x, self.num_samples)
        if isinstance(f, LayerSum):  # the logits that the bits were drawn from are not computed again
            return bound(jnp.asarray(sum(f.terms(b, f.given(logits))[0])))
        return bound(f(tuple(b) if len(b) > 1 else b[0]))


def distribution(x: jax.Array, layers: Sequence[Callable]) -> Any:
    """What an estimator takes: the logits of one layer, or the chain of several."""
    return layers[0](x) if len(layers) == 1 else Chain(x, layers)
