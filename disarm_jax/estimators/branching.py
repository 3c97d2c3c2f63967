"""Algorithm 1 of the paper: one trunk and a branch per layer, for the estimators that are made of pairs.

The derivative with respect to logits_t needs f with layer t and everything after it drawn again. The trunk is
b_1, …, b_T; the branch of layer t shares b_1, …, b_{t−1} with it, replaces b_t by its partner b̃_t and draws the later
layers afresh. T + 1 evaluations of f, in one call, and one call of each layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.chain import chain_keys, check_layers, layer_logits, sum_of_squares_loss
from disarm_jax.estimators.types import Estimator, HierarchicalEstimate


@contract.factory
def reinforce_loo(*, num_samples: int = 2) -> Estimator:
    """REINFORCE-LOO in a chain: the partner of b_t is an independent redraw."""
    contract.at_least("num_samples", num_samples, 2)
    if num_samples > 2:
        raise ValueError(
            f"hierarchical reinforce_loo has one branch per layer: num_samples must be 2, got {num_samples}"
        )

    def pair(key, logits):
        b, b_tilde = bernoulli.sample(key, logits, 2)
        return b, b_tilde, None

    def gradient(logits, b, b_tilde, noise, f_b, f_b_tilde):
        return formulas.reinforce_loo(logits, jnp.stack([b, b_tilde]), jnp.stack([f_b, f_b_tilde]))

    return _branching(pair, gradient)


@contract.factory
def arm(*, num_pairs: int = 1) -> Estimator:
    """ARM in a chain: the partner of b_t is its antithetic twin."""
    _check_one_trunk("arm", num_pairs)

    def gradient(logits, b, b_tilde, noise, f_b, f_b_tilde):
        return formulas.arm(jax.nn.sigmoid(noise), f_b, f_b_tilde)

    return _branching(_antithetic_pair, gradient)


@contract.factory
def disarm(*, num_pairs: int = 1) -> Estimator:
    """DisARM in a chain: the partner of b_t is its antithetic twin."""
    _check_one_trunk("disarm", num_pairs)

    def gradient(logits, b, b_tilde, noise, f_b, f_b_tilde):
        return formulas.disarm(logits, b, b_tilde, f_b, f_b_tilde)

    return _branching(_antithetic_pair, gradient)


def _check_one_trunk(name: str, num_pairs: int) -> None:
    contract.at_least("num_pairs", num_pairs, 1)
    if num_pairs > 1:
        raise ValueError(f"hierarchical {name} draws one trunk per call: num_pairs must be 1, got {num_pairs}")


def _antithetic_pair(key, logits):
    b, b_tilde, noise = bernoulli.antithetic_pairs(key, logits, 1)
    return b[0], b_tilde[0], noise[0]


def _branching(pair: Callable, gradient: Callable) -> Estimator:
    """Trunk and branches for an estimator of pairs.

    Args:
      pair: `(key, logits) -> (b, b_tilde, noise)`, each without a sample axis.
      gradient: `(logits, b, b_tilde, noise, f_b, f_b_tilde) -> [*batch, D]`.
    """

    def init(key: jax.Array, inputs: Any, layers: Sequence[Callable]) -> tuple:
        check_layers(layers)
        return ()

    def apply(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable, *, has_aux=False):
        depth = check_layers(layers)
        keys = chain_keys(key, 2 * depth - 1)
        pair_keys, redraw_keys = keys[:depth], keys[depth:]
        trunk, pairs, columns = [], [], []
        rows = None
        for t in range(depth):
            # Row 0 is the trunk, row s the branch that left it at layer s; those that have not left yet come last.
            logits = layer_logits(layers, t, inputs, rows)
            alpha = bernoulli.stop_and_widen(logits)
            b, b_tilde, noise = pair(pair_keys[t], alpha[0])
            redrawn = bernoulli.sample(redraw_keys[t - 1], alpha[1:], 1) if t else []
            rows = jnp.concatenate([b[None], *redrawn, b_tilde[None]]).astype(logits.dtype)
            staying = jnp.broadcast_to(rows[:1], (depth - t - 1, *rows.shape[1:]))
            trunk.append(logits[0])
            pairs.append((alpha[0], b, b_tilde, noise))
            columns.append(jnp.concatenate([rows, staying]))
        f_b, aux = contract.evaluate(f, tuple(columns), columns[0].shape[:-1], has_aux)
        f_b, value_dtype = contract.widen(f_b, trunk[0])
        signal = lax.stop_gradient(f_b)
        grads = tuple(
            contract.finish(gradient(*pairs[t], signal[0], signal[t + 1]), logits) for t, logits in enumerate(trunk)
        )
        estimate = HierarchicalEstimate(jnp.mean(f_b, axis=0).astype(value_dtype), grads, tuple(trunk))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init, apply, sum_of_squares_loss(apply))
