"""One draw of an estimator on one batch of images: the objective, the model's gradient and the tunables'."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import disarm_jax as dj
from disarm_jax import formulas
from disarm_jax.estimators.calling import attach
from disarm_jax.estimators.estimator import Outcome
from disarm_jax.experiment.config import ConfigError
from disarm_jax.models import BernoulliVAE, CategoricalVAE
from disarm_jax.objectives import inference_layers, log_weights, structured_log_weights
from disarm_jax.structure import LayerSum

GENERATIVE = ("decoder", "prior")


class Objective(NamedTuple):
    """What a model is trained for.

    Attributes:
      model: the VAE.
      num_samples: K of the bound that is optimised; 1 for the ELBO.
      stop_q: whether log q inside f is taken as a constant.
      shared_samples: whether decoder and prior learn from the estimator's own samples, or from a fresh draw.
    """

    model: Any
    num_samples: int
    stop_q: bool
    shared_samples: bool


class Gradients(NamedTuple):
    """One draw of an estimator on one batch.

    Attributes:
      value: the objective, averaged over the batch.
      params: its gradient with respect to the model's parameters, by group.
      tunables: the derivative, with respect to the tunables, of the variance of the encoder's gradient, summed over
        its parameters, or of the logits' gradient, for estimators that are `tuned_by_logits`; estimated without bias.
      logits: `[B, D]`, or a tuple of these for several layers: the derivative of each image's objective with respect
        to the logits that comes from sampling.
    """

    value: jax.Array
    params: dict
    tunables: Any
    logits: Any


def init_tunables(objective: Objective, est: dj.Estimator, params: dict, key: jax.Array, x: jax.Array) -> Any:
    """The estimator's tunables at the start; `key` is consumed."""
    return est.init(key, _distribution(x, inference_layers(objective.model, params)))


def draw_gradients(
    objective: Objective, est: dj.Estimator, tunables: Any, params: dict, key: jax.Array, x: jax.Array
) -> Gradients:
    """Draws samples once, and differentiates everything that learns from them.

    Args:
      objective: what to climb.
      est: the estimator; hierarchical if the model has several layers.
      tunables: its params.
      params: of the model, by group.
      key: consumed.
      x: `[B, pixels]`, binary.
    """
    estimator_key, generative_key = jax.random.split(key)
    batch_size = x.shape[0]

    def climb(params):
        sampled = params if objective.shared_samples else params | lax.stop_gradient(_generative(params))
        layers, f = _layers_and_f(objective, sampled, x)

        def apply(tunables):
            out = _apply(est, tunables, estimator_key, x, layers, f)
            return out.estimate.grad, out

        # The tunables are differentiated inside: their pull-back comes out with the samples already drawn.
        grads, pull, out = jax.vjp(apply, tunables, has_aux=True)
        value = jnp.mean(attach(out.estimate.value, grads, out.logits))
        if not objective.shared_samples:
            own = jnp.mean(_fresh_draw(objective, params, generative_key, x, layers[0](x)))
            value = value + own - lax.stop_gradient(own)
        return value, (pull, grads)

    (value, (pull, logits_grads)), grads = jax.value_and_grad(climb, has_aux=True)(params)
    if not jax.tree.leaves(tunables):
        return Gradients(value, grads, tunables, logits_grads)
    if est.variance_loss is not None or est.moves_samples:
        layers, f = _layers_and_f(objective, lax.stop_gradient(params), x)
        loss = lambda tunables: dj.variance_loss(est)(tunables, estimator_key, _distribution(x, layers), f)
        return Gradients(value, grads, jax.grad(loss)(tunables), logits_grads)

    if est.tuned_by_logits:  # the sum of squares of g
        (tunables_grad,) = pull(jax.tree.map(lambda g: 2 * g, logits_grads))
        return Gradients(value, grads, tunables_grad, logits_grads)

    # The paper's loss is the sum of squares of the encoder's gradient, G = Jᵀg with J the derivative of the logits. Its
    # derivative is that of g, pulled back from 2 J G.
    def trunk_logits(encoder):
        layers, f = _layers_and_f(objective, params | {"encoder": encoder}, x)
        return _apply(est, tunables, estimator_key, x, layers, f).logits

    summed = jax.tree.map(lambda g: batch_size * g, grads["encoder"])
    _, pushed = jax.jvp(trunk_logits, (params["encoder"],), (summed,))
    (tunables_grad,) = pull(jax.tree.map(lambda p: 2 * p, pushed))
    return Gradients(value, grads, tunables_grad, logits_grads)


def _generative(params: dict) -> dict:
    return {group: params[group] for group in GENERATIVE}


def _layers_and_f(
    objective: Objective, params: dict, x: jax.Array, first_logits: jax.Array | None = None
) -> tuple[list[Callable], Callable]:
    """The layers of q, the first computed for x already, and log w: of b, or of a tuple for several layers."""
    model, stop_q = objective.model, objective.stop_q
    layers = inference_layers(model, params)
    known = layers[0](x) if first_logits is None else first_logits
    layers = [lambda x: known, *layers[1:]]
    if any(_defines(model, own) for own in (BernoulliVAE, CategoricalVAE)):
        return layers, structured_log_weights(model, params, x, layers, known, stop_q=stop_q)
    f = log_weights(model, params, x, layers, known, stop_q=stop_q)
    return layers, f if len(layers) > 1 else lambda b: f((b,))


def _defines(model: Any, own: type) -> bool:
    """Whether log p(x, b) of a model is that of one of our classes."""
    return all(getattr(type(model), name) is getattr(own, name) for name in ("setup", "decode", "log_joint"))


def _distribution(x: jax.Array, layers: Sequence[Callable]) -> Any:
    """Returns what an estimator takes: the logits of one layer, or the chain of several."""
    return layers[0](x) if len(layers) == 1 else dj.Chain(x, layers)


def _apply(
    est: dj.Estimator, tunables: Any, key: jax.Array, x: jax.Array, layers: Sequence[Callable], f: Callable
) -> Outcome:
    """Applies the estimator to one layer or several. Raises ConfigError if a custom one returns wrong shapes."""
    logits = _distribution(x, layers)
    out = est.outcome(tunables, key, logits, f)
    if len(layers) == 1:
        found, expected = (out.estimate.value.shape, out.estimate.grad.shape), (x.shape[:-1], logits.shape)
        if found != expected:  # it would broadcast, and train on a wrong gradient
            raise ConfigError(f"the estimator returned value and grad of shapes {found} for logits of {logits.shape}")
    return out


def _fresh_draw(objective: Objective, params: dict, key: jax.Array, x: jax.Array, first_logits: jax.Array) -> jax.Array:
    """The bound `[B]` of samples drawn for it, differentiable in decoder and prior alone."""
    params = params | lax.stop_gradient({"encoder": params["encoder"]})
    layers, f = _layers_and_f(objective, params, x, lax.stop_gradient(first_logits))
    distribution, b, logits = objective.model.law, [], []
    for t, layer_key in enumerate(jax.random.split(key, len(layers))):
        logits.append(layers[t](b[-1] if b else x))
        sample = distribution.sample(layer_key, logits[t], 1 if b else objective.num_samples)
        b.append(sample[0] if t else sample)
    if isinstance(f, LayerSum):  # the logits that the bits were drawn from are not computed again
        return formulas.bound(jnp.asarray(sum(f.terms(b, f.given(logits))[0])))
    return formulas.bound(f(tuple(b) if len(b) > 1 else b[0]))
