"""Algorithm 1 of the paper: one trunk and branches at every layer, for the estimators that are made of groups.

The derivative with respect to logits_t needs f with layer t and everything after it drawn again. The trunk is
b_1, …, b_T; a branch of layer t shares b_1, …, b_{t−1} with it, replaces b_t by a partner b̃_t and draws the later
layers afresh. Pairs have one branch per layer, groups of n samples n − 1: T (n − 1) + 1 evaluations of f, in one call.
An f that is a `LayerSum` is spared the terms of layers that branches share with the trunk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.chain import chain_keys, check_layers, layer_logits, sum_of_squares_loss
from disarm_jax.estimators.estimator import Estimator, HierarchicalEstimate
from disarm_jax.estimators.layer_sum import layer_sum_of, sum_of_rows


@contract.factory
def reinforce_loo(*, num_samples: int = 2) -> Estimator:
    """REINFORCE-LOO in a chain: the partner of b_t is an independent redraw."""
    contract.at_least("num_samples", num_samples, 2)
    if num_samples > 2:
        raise ValueError(
            f"hierarchical reinforce_loo has one branch per layer: num_samples must be 2, got {num_samples}"
        )

    def draw(key, logits):
        return bernoulli.sample(key, logits, 2), None

    def gradient(logits, b, noise, f_b):
        return formulas.reinforce_loo(logits, b, f_b)

    return _branching(draw, gradient)


@contract.factory
def arm(*, num_pairs: int = 1) -> Estimator:
    """ARM in a chain: the partner of b_t is its antithetic twin."""
    _check_one_trunk("arm", num_pairs)

    def gradient(logits, b, noise, f_b):
        return formulas.arm(jax.nn.sigmoid(noise), *f_b)

    return _branching(_antithetic_pair, gradient)


@contract.factory
def disarm(*, num_pairs: int = 1) -> Estimator:
    """DisARM in a chain: the partner of b_t is its antithetic twin."""
    _check_one_trunk("disarm", num_pairs)

    def gradient(logits, b, noise, f_b):
        return formulas.disarm(logits, *b, *f_b)

    return _branching(_antithetic_pair, gradient)


@contract.factory
def arms(*, num_samples: int = 4) -> Estimator:
    """ARMS in a chain: the n − 1 partners of b_t come with it from the Dirichlet copula, a branch for each."""
    contract.at_least("num_samples", num_samples, 2)

    def draw(key, logits):
        return bernoulli.copula_samples(key, logits, num_samples), None

    def gradient(logits, b, noise, f_b):
        return formulas.arms(logits, b, f_b)

    return _branching(draw, gradient)


def _check_one_trunk(name: str, num_pairs: int) -> None:
    contract.at_least("num_pairs", num_pairs, 1)
    if num_pairs > 1:
        raise ValueError(f"hierarchical {name} draws one trunk per call: num_pairs must be 1, got {num_pairs}")


def _antithetic_pair(key, logits):
    b, b_tilde, noise = bernoulli.antithetic_pairs(key, logits, 1)
    return jnp.concatenate([b, b_tilde]), noise[0]


def _branching(draw: Callable, gradient: Callable) -> Estimator:
    """Trunk and branches for an estimator of groups of samples.

    Args:
      draw: `(key, logits) -> (b, noise)`, b `[n, *batch, D]` with the trunk's sample first, then its partners.
      gradient: `(logits, b, noise, f_b) -> [*batch, D]`, f_b `[n, *batch]`.
    """

    def init(key: jax.Array, inputs: Any, layers: Sequence[Callable]) -> tuple:
        check_layers(layers)
        return ()

    def apply(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable, *, has_aux=False):
        depth = check_layers(layers)
        keys = chain_keys(key, 2 * depth - 1)
        group_keys, redraw_keys = keys[:depth], keys[depth:]
        trunk, groups, columns, given = [], [], [], []
        rows = None
        for t in range(depth):
            # Row 0 is the trunk, then come the branches in the order of the layers where they leave it. The trunk has a
            # call of its own: only its logits are differentiated, and a derivative has the rows of its call.
            logits = layer_logits(layers, t, inputs, rows[:1] if t else None)
            trunk.append(logits[0])
            if t:
                logits = jnp.concatenate([logits, layer_logits(layers, t, inputs, rows[1:])])
            alpha = bernoulli.stop_and_widen(logits)
            b, noise = draw(group_keys[t], alpha[0])
            redrawn = bernoulli.sample(redraw_keys[t - 1], alpha[1:], 1) if t else []
            rows = jnp.concatenate([b[:1], *redrawn, b[1:]]).astype(logits.dtype)
            branches = b.shape[0] - 1
            partners = jnp.broadcast_to(logits[:1], (branches, *logits.shape[1:]))
            staying = jnp.broadcast_to(rows[:1], ((depth - t - 1) * branches, *rows.shape[1:]))
            groups.append((alpha[0], b, noise))
            columns.append(jnp.concatenate([rows, staying]))
            given.append(jnp.concatenate([logits, partners]) if t else logits)

        by_layers = layer_sum_of(f)

        def f_of_rows(columns):
            rows = [1 + (t + 1) * branches for t in range(depth)]
            terms = by_layers.terms(columns, by_layers.given(given), rows)
            return sum_of_rows(terms, [term[:1] for term in terms])

        f_rows = f_of_rows if by_layers else f
        f_b, aux = contract.evaluate(f_rows, tuple(columns), columns[0].shape[:-1], has_aux)
        f_b, value_dtype = contract.widen(f_b, trunk[0])
        signal = lax.stop_gradient(f_b)
        grads = []
        for t, logits in enumerate(trunk):
            f_group = jnp.concatenate([signal[:1], signal[1 + t * branches : 1 + (t + 1) * branches]])
            grads.append(contract.finish(gradient(*groups[t], f_group), logits))
        estimate = HierarchicalEstimate(jnp.mean(f_b, axis=0).astype(value_dtype), tuple(grads), tuple(trunk))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init, apply, sum_of_squares_loss(apply))
