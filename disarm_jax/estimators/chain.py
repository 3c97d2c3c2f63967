"""What all estimators of chains share: b_t ~ Bernoulli(σ(layer_t(b_{t−1}))), b_0 the inputs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.estimators import contract


def check_layers(layers: Sequence[Callable]) -> int:
    """The number of layers, refused unless they are a sequence of functions."""
    if not (isinstance(layers, Sequence) and layers and all(map(callable, layers))):
        raise TypeError(f"layers must be a non-empty sequence of functions, got {layers!r}")
    return len(layers)


def chain_keys(key: jax.Array, num: int) -> Sequence[jax.Array]:
    """`num` keys; a single one is the key itself, so that one layer draws just what the one-layer estimator draws."""
    return jax.random.split(key, num) if num > 1 else [key]


def layer_logits(layers: Sequence[Callable], t: int, inputs: Any, rows: jax.Array | None) -> jax.Array:
    """Logits of layer t, `[R, *batch, D_t]`, at R rows of samples of the layer before (one row of inputs if t is 0).

    Logits that do not depend on the layer before are broadcast to its rows.
    """
    logits = layers[t](inputs if t == 0 else rows)
    try:
        logits = bernoulli.as_logits(logits)
        return logits[None] if t == 0 else jnp.broadcast_to(logits, (*rows.shape[:-1], logits.shape[-1]))
    except (TypeError, ValueError) as error:
        raise type(error)(f"layers[{t}]: {error}") from None


def sum_of_squares_loss(apply: Callable) -> Callable:
    """The variance loss of a hierarchical estimator whose tunables leave the law of its samples alone."""

    def variance_loss(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable) -> jax.Array:
        return contract.sum_of_squares(apply(params, key, inputs, layers, f).grads)

    return variance_loss
