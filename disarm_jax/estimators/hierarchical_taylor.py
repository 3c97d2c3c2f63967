"""DisARM for a chain of stochastic layers, with an expansion in each layer as control variate.

Given the trunk's b_1, …, b_{t−1}, any function of b_t has a known gradient ∂E h_t(b_t)/∂logits_t once it is expanded at
the mean p_t. So DisARM applied to the expansion h_t at b_t and its partner, less that gradient, is noise of mean zero.
So is what the slope at their midpoint says of the other bits of the layer. By default h_t is f with the later layers at
the means they have when layer t is at that point.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import branching, contract, midpoint
from disarm_jax.estimators.chain import chain_keys, check_layers, layer_logits, sum_of_squares_loss
from disarm_jax.estimators.composed import Chained, as_composed
from disarm_jax.estimators.estimator import Estimator
from disarm_jax.estimators.expansion import expand
from disarm_jax.estimators.layer_sum import layer_sum_of
from disarm_jax.estimators.midpoint import slope_between
from disarm_jax.estimators.taylor import check_scale, combine, scales


class _ControlVariate(NamedTuple):
    """What is subtracted from DisARM's gradient in a layer.

    Attributes:
      init: `(key, logits) -> params` of a layer, as in the one-layer form.
      point: `(alpha, pair) -> [*batch, D_t]`, where the layer's part of f is expanded.
      noise: `(params, key, part, logits, pair, inner_pair, has_aux) -> [*batch, D_t]`, of mean zero.
      random: whether the noise needs a key.
    """

    init: Callable
    point: Callable
    noise: Callable
    random: bool


@contract.factory
def disarm_taylor(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0)) -> Estimator:
    """Hierarchical DisARM with expansions of first order; `params` is a tuple, as for one layer for each layer."""
    return _expanded(num_pairs, _at_the_mean(1, init_scale, 1))


@contract.factory
def disarm_quadratic(*, num_pairs: int = 1, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1) -> Estimator:
    """Hierarchical DisARM with expansions of second order; `params` is a tuple, as for one layer for each layer."""
    return _expanded(num_pairs, _at_the_mean(2, init_scale, contract.at_least("probes", probes, 1)))


@contract.factory
def disarm_midpoint(*, num_pairs: int = 1, init_scale: float = 1.0) -> Estimator:
    """Hierarchical DisARM with slopes at midpoints; `params` is a tuple, as for one layer for each layer."""

    def noise(params, key, part, logits, pair, inner_pair, has_aux):
        (slope,) = slope_between(part, pair, inner_pair, has_aux=has_aux)
        nothing = jnp.zeros(pair.shape[1:-1], pair.dtype)  # in the place of f, so that what it is less of is left
        return -formulas.disarm_midpoint(
            bernoulli.stop_and_widen(logits), *pair, nothing, nothing, slope, *params["scale"]
        )

    init = midpoint.disarm_midpoint(init_scale=init_scale).init
    return _expanded(num_pairs, _ControlVariate(init, lambda alpha, pair: jnp.mean(pair, axis=0), noise, random=False))


def _at_the_mean(order: int, init_scale: tuple[float, float], probes: int) -> _ControlVariate:
    def noise(params, key, part, logits, pair, inner_pair, has_aux):
        alpha = bernoulli.stop_and_widen(logits)
        expansion = expand(part, logits, order, probes, key, has_aux=has_aux)
        found = [
            formulas.disarm(alpha, *pair, *h.astype(bernoulli.wide_dtype(h, alpha))).astype(alpha.dtype) - known
            for h, known in zip(expansion.terms(pair, inner_pair), expansion.gradients, strict=True)
        ]
        return combine(params["scale"], found)

    init_scale = check_scale(init_scale)[:order]
    init = lambda key, logits: {"base": (), "scale": scales(init_scale, logits)}
    return _ControlVariate(init, lambda alpha, pair: jax.nn.sigmoid(alpha), noise, random=order == 2)


def _expanded(num_pairs: int, control: _ControlVariate) -> Estimator:
    base = branching.disarm(num_pairs=num_pairs)

    def init(key: jax.Array, inputs: Any, layers: Sequence[Callable]) -> tuple:
        depth, first = check_layers(layers), jax.eval_shape(layers[0], inputs)
        return (control.init(key, jnp.zeros(first.shape, first.dtype)),) * depth

    def apply(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable, *, has_aux=False):
        depth = check_layers(layers)
        base_key, *noise_key = chain_keys(key, 1 + control.random)
        noise_keys = chain_keys(noise_key[0], depth) if noise_key else [None] * depth

        told, by_layers = isinstance(f, Chained), layer_sum_of(f)
        shared = told and by_layers is not None and by_layers.inner is not None  # computed once for f and its parts
        if by_layers:
            columns, inner = [None] * depth, [None] * depth

            def noted(t, b):  # called by the base itself, under no transformation of its own: nothing leaks
                columns[t], inner[t] = b, by_layers.inner(t, b) if by_layers.inner else b
                return inner[t]

            noting = dataclasses.replace(by_layers, inner=noted)
            out, aux = contract.apply_with_aux(base, has_aux, (), base_key, inputs, layers, noting)
        else:

            def with_rows(columns):
                f_b, aux = contract.evaluate(f, columns, columns[0].shape[:-1], has_aux)
                return f_b, (columns, aux)

            out, (columns, aux) = base.apply((), base_key, inputs, layers, with_rows, has_aux=True)
        trunk = tuple(column[:1] for column in columns)
        grads = []
        for t, logits in enumerate(out.logits):
            of_pair = lambda rows, t=t: jnp.stack([rows[0], rows[t + 1]])
            alpha, pair = bernoulli.stop_and_widen(logits), of_pair(columns[t])
            means = _means(t, trunk, control.point(alpha, pair), inputs, layers)
            part = as_composed(f.part(t, means) if told else _at_layer(f, t, means))
            inner_pair = jax.tree.map(of_pair, lax.stop_gradient(inner[t])) if shared else part.inner(pair)
            noise = control.noise(params[t], noise_keys[t], part, logits, pair, inner_pair, has_aux and not told)
            grad = out.grads[t].astype(alpha.dtype) - noise
            grads.append(contract.finish(grad, logits))
        out = out._replace(grads=tuple(grads))
        return (out, aux) if has_aux else out

    return Estimator(init, apply, sum_of_squares_loss(apply), tuned_by_logits=True)


def _means(t: int, trunk: tuple, point: jax.Array, inputs: Any, layers: Sequence[Callable]) -> tuple[jax.Array, ...]:
    """The trunk's bits before layer t, a point in it, and the means of the later layers given that; one row each."""
    means = [*trunk[:t], point[None].astype(trunk[t].dtype)]
    for s in range(t + 1, len(trunk)):
        logits = bernoulli.stop_and_widen(layer_logits(layers, s, inputs, means[-1]))
        means.append(jax.nn.sigmoid(logits).astype(trunk[s].dtype))
    return lax.stop_gradient(tuple(means))


def _at_layer(f: Callable, t: int, means: tuple[jax.Array, ...]) -> Callable:
    """f as a function of layer t, the others at their means."""

    def f_t(b):
        rows = [jnp.broadcast_to(mean, (b.shape[0], *mean.shape[1:])) for mean in means]
        return f((*rows[:t], b, *rows[t + 1 :]))

    return f_t
