"""RELAX for a chain of stochastic layers, with a control variate for each of them.

c_t(z) = η f(b_1, …, b_{t−1}, σ(z/τ), σ(z_{t+1}/τ), …, σ(z_T/τ)) + r_t(z), with z_{s+1} = layer_{s+1}(σ(z_s/τ)) + noise.
It must be continuous in z and may not see the trunk's b_t, so the later layers are computed again from σ(z/τ), relaxed
as well. They reuse the trunk's noise, which is independent of b_t and keeps c_t close to f at the trunk.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract, relaxation
from disarm_jax.estimators.chain import chain_keys, check_layers, layer_logits, sum_of_squares_loss
from disarm_jax.estimators.estimator import Estimator, HierarchicalEstimate
from disarm_jax.estimators.layer_sum import LayerSum, layer_sum_of, sum_of_rows

LATER_LAYERS = ("relaxed", "hard")


@contract.factory
def relax(
    *,
    init_temperature: float = 0.1,
    init_scale: float = 1.0,
    hidden: int = 137,
    control_variate: tuple[Callable, Callable] | Callable | None = None,
    scaled_network: bool = False,
    shared_tunables: bool = False,
    later_layers: str = "relaxed",
) -> Estimator:
    """Hierarchical RELAX; `params` is a tuple with the one-layer estimator's tunables for each layer.

    `control_variate` may also be a function that returns r_t as a pair `(init, apply)`, given what the logits of
    layer t were computed from: the inputs for the first layer, b_{t−1} of the trunk for the others.

    `shared_tunables=True` gives all layers one temperature and one scale, those of the first entry of `params`; the
    other entries hold their networks alone.

    `later_layers="hard"` draws hard samples of the layers after t in c_t, as the authors' code did. They jump as z
    moves, and the jumps have a derivative that no sample shows: this variant is biased, and here for comparison only.
    """
    contract.one_of("later_layers", later_layers, LATER_LAYERS)
    if isinstance(control_variate, tuple) or not callable(control_variate):
        network = relaxation.network_of(hidden, control_variate)
        network_given = lambda given: network
    else:
        network_given = control_variate

    def init(key: jax.Array, inputs: Any, layers: Sequence[Callable]) -> tuple:
        def trunk_logits(inputs):
            rows, trunk = None, []
            for t in range(check_layers(layers)):
                rows = layer_logits(layers, t, inputs, rows)
                trunk.append(rows[0])
            return trunk

        params, given = [], inputs
        shapes = jax.eval_shape(trunk_logits, inputs)
        for layer_key, shape in zip(chain_keys(key, len(shapes)), shapes, strict=True):
            logits = jnp.zeros(shape.shape, shape.dtype)
            init_layer = relaxation.tunables(init_temperature, init_scale, network_given(given))
            own = init_layer(layer_key, logits)
            params.append({"network": own["network"]} if shared_tunables and params else own)
            given = logits
        return tuple(params)

    def apply(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable, *, has_aux=False):
        depth = check_layers(layers)
        if shared_tunables:
            params = tuple(params[0] | own for own in params)
        trunk, alphas, noises, uniforms, b, redraw_keys = [], [], [], [], [], []
        rows = None
        for t, layer_key in enumerate(chain_keys(key, depth)):
            logits = layer_logits(layers, t, inputs, rows)
            alpha = bernoulli.finite(bernoulli.stop_and_widen(logits[0]))
            noise_key, uniform_key, *redraw_key = jax.random.split(layer_key, 2 + (later_layers == "hard"))
            noises.append(bernoulli.logistic_noise(noise_key, alpha.shape, alpha.dtype))
            uniforms.append(bernoulli.open_uniform(uniform_key, alpha.shape, alpha.dtype))
            redraw_keys += redraw_key
            trunk.append(logits[0])
            alphas.append(alpha)
            b.append(bernoulli.threshold(alpha, noises[t]))
            rows = b[t][None].astype(logits.dtype)
        hard = tuple(b_t[None].astype(logits.dtype) for b_t, logits in zip(b, trunk, strict=True))
        f_hard, f_relaxed = f, lambda columns, logits: f(columns)
        if by_layers := layer_sum_of(f):
            f_hard, f_relaxed = _by_layers(by_layers, trunk, hard)
        f_b, aux = contract.evaluate(f_hard, hard, hard[0].shape[:-1], has_aux)
        f_b, value_dtype = contract.widen(f_b[0], trunk[0])

        def after(t, rows):
            """Layer t in the control variates of the layers before it, two rows each: logits and samples."""
            given = layer_logits(layers, t, inputs, rows)
            logits = bernoulli.wide(given)
            if later_layers == "hard":
                noise = bernoulli.logistic_noise(redraw_keys[t], logits.shape, logits.dtype)
                return given, bernoulli.threshold(logits, noise)
            rates = jnp.repeat(jnp.stack([relaxation.rate(p, logits.dtype) for p in params[:t]]), 2)
            return given, jax.nn.sigmoid((logits + noises[t][None]) * rates.reshape(-1, *(1,) * (logits.ndim - 1)))

        def controls(alphas):
            # Rows 2s and 2s + 1 are the control variate of layer s at z and z̃: the trunk's bits before layer s,
            # relaxed bits from there on.
            zs, columns, given = [], [], []
            for t, alpha in enumerate(alphas):
                zs.append(relaxation.noisy_logits(alpha, b[t], noises[t], uniforms[t]))
                own = jax.nn.sigmoid(zs[t] * relaxation.rate(params[t], alpha.dtype))
                left = after(t, columns[-1][: 2 * t]) if t else None
                staying = jnp.broadcast_to(b[t][None], (2 * (depth - t - 1), *b[t].shape))
                columns.append(jnp.concatenate([*([left[1]] if t else []), own, staying]).astype(trunk[t].dtype))
                own_logits = jnp.broadcast_to(trunk[t][None], zs[t].shape)
                given.append(jnp.concatenate([left[0], own_logits]) if t else own_logits)
            f_columns = functools.partial(f_relaxed, logits=given)
            f_c = relaxation.evaluate_relaxed(f_columns, tuple(columns), columns[0].shape[:-1], trunk[0], has_aux)
            networks = [network_given(given) for given in (inputs, *b[:-1])]
            parts = zip(params, networks, jnp.split(f_c, depth), zs, strict=True)
            return jnp.concatenate([relaxation.control(*part, scaled_network) for part in parts])

        c, slopes = relaxation.value_and_slopes(controls, tuple(alphas))
        grads = tuple(
            formulas.relax(alphas[t], b[t], lax.stop_gradient(f_b), c[2 * t + 1], slopes[t]).astype(trunk[t].dtype)
            for t in range(depth)
        )
        estimate = HierarchicalEstimate(f_b.astype(value_dtype), grads, tuple(trunk))
        return (estimate, aux) if has_aux else estimate

    return Estimator(init, apply, sum_of_squares_loss(apply))


def _by_layers(f: LayerSum, trunk: Sequence[jax.Array], hard: tuple[jax.Array, ...]) -> tuple[Callable, Callable]:
    """f at the trunk, and f of columns and logits, which has the trunk's terms in the layers before a relaxed one."""
    at_trunk = f.terms(hard, f.given([logits[None] for logits in trunk]))

    def f_relaxed(columns, logits):
        terms = f.terms(columns, logits, [2 * (t + 1) for t in range(len(columns))])
        return sum_of_rows(terms, lax.stop_gradient(at_trunk))

    return lambda hard: sum(at_trunk), f_relaxed
