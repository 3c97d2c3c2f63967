"""What is told of training, from the state and the gradients of a step."""

from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax.models import log_likelihood
from disarm_jax.objectives import inference_layers, log_weights, sample_layers

ACTIVE = 0.01  # the variance over images from which on a latent variable counts as active, as in Burda et al. (2016)


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


def gradient_norms(grads: dict) -> dict[str, jax.Array]:
    """The norm of each group's gradient, of the objective averaged over a batch."""
    square = lambda tree: jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)]))
    return {f"gradient_norm/{group}": jnp.sqrt(square(grads[group])) for group in sorted(grads)}


def finite_vectors(grads: Any) -> jax.Array:
    """Whether the gradients of all biases are finite: what is not finite in a layer's backward pass reaches its bias.

    The weights are left out because a reduction over all of them at every step would take a noticeable part of it.
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads) if leaf.ndim < 2]))


def finite_everywhere(tree: Any) -> jax.Array:
    """Whether all numbers are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def moving_variance(measured: Any, step: jax.Array, decay: float) -> jax.Array:
    """EMA(g²) − EMA(g)², averaged over the parameters, with the weight of the zeros at the start divided out."""
    weight = 1 - decay ** step.astype(jnp.float32)
    total = sum(
        jnp.sum(square / weight - (mean / weight) ** 2)
        for mean, square in zip(jax.tree.leaves(measured.mean), jax.tree.leaves(measured.square), strict=True)
    )
    mean = total / sum(leaf.size for leaf in jax.tree.leaves(measured.mean))
    return jnp.maximum(mean, 0)  # rounding, where there is next to no variance


def tunable_means(tunables: Any) -> dict[str, jax.Array]:
    """The mean of each tunable that is a number or a vector of them, by name; networks are left out.

    >>> tunable_means({"scale": jnp.ones(()), "network": {"bias": jnp.ones(3)}})
    {'tunables/scale': Array(1., dtype=float32)}
    """
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tunables):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.ndim < 2 and "network" not in name:
            named[f"tunables/{name}"] = jnp.mean(leaf)
    return named
