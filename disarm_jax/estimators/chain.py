"""Chains of stochastic layers, which some estimators accept in the place of logits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """Stochastic layers in sequence, b_t ~ Bernoulli(σ(layer_t(b_{t−1}))), to be given in the place of logits.

    Use a chain for a model with several stochastic layers. The estimators that `dj.hierarchical` makes accept it in
    `init` and `apply`, and so do `expectation`, `variance_loss` and `gradient_variance` of these estimators. Their f
    takes the tuple (b_1, …, b_T), each of shape `[N, *batch, D_t]`.

    Attributes:
      inputs: the input of the first layer, which is passed to it unchanged.
      layers: functions from b_{t−1} to logits_t. The first one returns `[*batch, D_1]`. The others get samples with one
        more leading axis, `[R, *batch, D_{t−1}]`.

    Example:
      >>> chain = dj.Chain(jnp.zeros((5, 4)), [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))])
      >>> est, f = dj.hierarchical("disarm"), lambda b: b[0].sum(-1) * b[1].sum(-1)
      >>> dj.expectation(est)((), jax.random.key(0), chain, f).shape
      (5,)
    """

    inputs: Any
    layers: Any

    def __post_init__(self) -> None:
        """Raises TypeError if the layers are not a non-empty sequence of functions."""
        if not (isinstance(self.layers, tuple | list) and self.layers and all(map(callable, self.layers))):
            raise TypeError(f"layers must be a non-empty sequence of functions, got {self.layers!r}")

    def logits(self, t: int, rows: jax.Array | None, event_ndim: int = 1) -> jax.Array:
        """Returns the logits of layer t, `[R, *batch, D_t]`, given R rows of samples of the layer before.

        The first layer gets the inputs and has one row. Logits that do not depend on the layer before are broadcast to
        R rows.
        """
        logits = self.layers[t](rows if t else self.inputs)
        try:
            logits = bernoulli.as_logits(logits, event_ndim=event_ndim, may_be_empty=False)
            if rows is None:
                return logits[None]
            return jnp.broadcast_to(logits, (*rows.shape[:-event_ndim], *logits.shape[-event_ndim:]))
        except (TypeError, ValueError) as error:
            raise type(error)(f"layers[{t}]: {error}") from None

    def shapes(self, event_ndim: int = 1) -> list[jax.ShapeDtypeStruct]:
        """Returns the shape and dtype of the logits of each layer, `[*batch, D_t]`, without computing the logits."""

        def trunk() -> list[jax.Array]:
            rows, logits = None, []
            for t in range(len(self.layers)):
                rows = self.logits(t, rows, event_ndim)
                logits.append(rows[0])
            return logits

        return jax.eval_shape(trunk)


def check_chain(name: str, chain: Any) -> Chain:
    """Returns the chain. Raises TypeError if `chain` is not a `Chain`."""
    if not isinstance(chain, Chain):
        raise TypeError(
            f"{name} is for several layers and takes dj.Chain(inputs, layers) in the place of logits, got "
            f"{type(chain).__name__}"
        )
    return chain


def chain_keys(key: jax.Array, num: int) -> jax.Array | list[jax.Array]:
    """Returns `num` keys. A single one is the key itself, so that a chain of one layer draws what logits draw."""
    return jax.random.split(key, num) if num > 1 else [key]
