"""REBAR and RELAX: control variates from a continuous relaxation of f, with learnt temperature, scale and network.

The control variate of layer t of a chain is

    c_t(z) = η f(b_1, …, b_{t−1}, σ(z/τ), σ(z_{t+1}/τ), …, σ(z_T/τ)) + r_t(z),
    z_{s+1} = layer_{s+1}(σ(z_s/τ)) + noise.

It must be continuous in z and may not depend on the b_t of the trunk, so the later layers are computed again from
σ(z/τ), relaxed as well. They reuse the noise of the trunk, which is independent of b_t and keeps c_t close to f at the
trunk. Logits are a chain of one layer.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import calling, options
from disarm_jax.estimators.chain import Chain, chain_keys, check_chain
from disarm_jax.estimators.estimator import Derived, Estimate, Function, Init, Outcome, describe
from disarm_jax.estimators.first_order import detached, vary_like
from disarm_jax.structure import LayerSum, sum_of_rows

LATER_LAYERS = ("relaxed", "hard")
Network = tuple[Callable, Callable]


def rebar(*, init_temperature: float = 0.1, init_scale: float = 1.0) -> "Relaxation":
    """REBAR (Tucker et al., 2017): REINFORCE with f at relaxed samples as control variate.

    The estimate is [f(b) − c(z̃)] ∂log q(b) + ∂c(z) − ∂c(z̃) with c(z) = η f(σ(z/τ)), where z is the logit plus the
    noise that b was computed from, and z̃ is drawn again given b. It is unbiased for every temperature τ > 0 and scale
    η. It takes one evaluation of f at b, and two, in one call, at relaxed points in [0, 1]. f is differentiated there
    and so must be pure.

    τ and η are learnt by descending `variance_loss`.

    Paper: Tucker et al., REBAR: Low-variance, unbiased gradient estimates for discrete latent variable models, 2017
    Advice: When f is differentiable between 0 and 1 and you can learn two tunables alongside.

    Args:
      init_temperature: the initial value of τ, positive.
      init_scale: the initial value of η.

    Returns:
      An estimator whose `params` is `{"log_temperature": log τ, "scale": η}`.

    Example:
      >>> est = dj.make_estimator("rebar")
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    info = describe(rebar, 3, needs_grad=True)
    return Relaxation(init_temperature=init_temperature, init_scale=init_scale, network_given=None, info=info)


def relax(
    *,
    init_temperature: float = 0.1,
    init_scale: float = 1.0,
    hidden: int = 137,
    control_variate: Network | Callable[[Any], Network] | None = None,
    scaled_network: bool = False,
    shared_tunables: bool = False,
    later_layers: str = "relaxed",
) -> "Relaxation":
    """RELAX (Grathwohl et al., 2018): REBAR with a learnt function added to the control variate.

    The estimate is that of `rebar` with c(z) = η f(σ(z/τ)) + r(z). It is unbiased for every τ > 0, η and r. It takes
    one evaluation of f at b, and two, in one call, at relaxed points in [0, 1]. f is differentiated there and so must
    be pure. The defaults are those of the DisARM paper.

    τ, η and r are learnt by descending `variance_loss`.

    Paper: Grathwohl et al., Backpropagation through the void, ICLR 2018
    Advice: When f is differentiable and close to linear between 0 and 1; more than twice the time of DisARM.

    Args:
      init_temperature: the initial value of τ, positive.
      init_scale: the initial value of η.
      hidden: the number of hidden units of the built-in r, a network with one hidden layer of LeakyReLU(0.3). It is not
        used if a `control_variate` is given.
      control_variate: a custom r, as a pair of pure functions `init(key, logits) -> params` and `apply(params, z) ->
        [...]` for z of shape `[..., D]`. It may close over anything but the sample, for instance the current data. It
        may also be a function that returns the pair, given what the logits of layer t were computed from: the inputs of
        the chain for its first layer (`()` for logits), and b_{t−1} of the trunk for the others.
      scaled_network: whether η multiplies r as well, c(z) = η (f(σ(z/τ)) + r(z)), as in the released code of the paper.
      shared_tunables: whether all layers of a chain share one temperature and one scale, those of the first entry of
        `params`; the other entries then hold their networks alone.
      later_layers: "relaxed", or "hard", which draws hard samples of the layers after t in c_t, as the code of the
        authors did. These jump as z moves, and the jumps have a derivative that no sample shows: this variant is
        biased, and meant for comparison only.

    Returns:
      An estimator whose `params` is `{"log_temperature": log τ, "scale": η, "network": the parameters of r}`; for a
      chain
      it is a tuple of these.

    Example:
      >>> est = dj.relax(hidden=8)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    if isinstance(control_variate, tuple) or not callable(control_variate):
        network = network_of(hidden, control_variate)
        network_given = lambda given: network
    else:
        network_given = control_variate
    info = describe(relax, 3, unbiased=later_layers == "relaxed", needs_grad=True)
    return Relaxation(
        init_temperature=init_temperature,
        init_scale=init_scale,
        network_given=network_given,
        scaled_network=scaled_network,
        shared_tunables=shared_tunables,
        later_layers=later_layers,
        info=info,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relaxation(Derived):
    """REINFORCE with a relaxed control variate; the other attributes are the options of `relax`.

    Attributes:
      network_given: maps what the logits of a layer were computed from to the pair (init, apply) of r; None if there is
        no r.
      of_chain: whether it takes a `Chain` in the place of logits.
    """

    init_temperature: float
    init_scale: float
    network_given: Callable[[Any], Network] | None
    scaled_network: bool = False
    shared_tunables: bool = False
    later_layers: str = "relaxed"
    of_chain: bool = False
    init: Init = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives the other fields. Raises ValueError if the value of an option is not accepted."""
        options.positive("init_temperature", self.init_temperature)
        options.finite("init_scale", self.init_scale)
        options.one_of("later_layers", self.later_layers, LATER_LAYERS)
        for name in ("scaled_network", "shared_tunables"):
            options.flag(name, getattr(self, name))
        network = () if self.network_given is None else ("network",)
        object.__setattr__(self, "tunables", ("log_temperature", "scale", *network))
        object.__setattr__(self, "init", self.init_params)
        super().__post_init__()

    def as_chain(self, logits: Any) -> Chain:
        """Returns the chain, or the logits as one of a single layer. Raises TypeError if the other is expected."""
        if self.of_chain:
            return check_chain(self.name, logits)
        logits = self.check_logits(logits)
        return Chain((), [lambda _: logits])

    def init_params(self, key: jax.Array, logits: Any) -> Any:
        """Returns log τ, η and the parameters of r, for a chain in a tuple of layers."""
        chain, params = self.as_chain(logits), []
        given, shapes = chain.inputs, chain.shapes()
        for layer_key, shape in zip(chain_keys(key, len(shapes)), shapes, strict=True):
            zeros = jnp.zeros(shape.shape, shape.dtype)
            dtype, own = bernoulli.wide_dtype(zeros), {}
            if not (self.shared_tunables and params):
                own = {
                    "log_temperature": jnp.log(jnp.asarray(self.init_temperature, dtype)),
                    "scale": jnp.asarray(self.init_scale, dtype),
                }
            if self.network_given is not None:
                own["network"] = self.network_given(given)[0](layer_key, zeros)
            params.append(own)
            given = zeros
        return tuple(params) if self.of_chain else params[0]

    def outcome(self, params: Any, key: jax.Array, logits: Any, f: Function, has_aux: bool = False) -> Outcome:
        """Draws the trunk, evaluates f there, and evaluates the control variates of all layers in one more call."""
        chain = self.as_chain(logits)
        params, depth = self._params_of_layers(params, chain), len(chain.layers)
        of_columns = f if self.of_chain else lambda columns: f(columns[0])
        trunk, alphas, noises, uniforms, b, redraw_keys = [], [], [], [], [], []
        rows = None
        for t, layer_key in enumerate(chain_keys(key, depth)):
            layer_logits = chain.logits(t, rows)
            alpha = bernoulli.finite(bernoulli.stop_and_widen(layer_logits[0]))
            noise_key, uniform_key, *redraw_key = jax.random.split(layer_key, 2 + (self.later_layers == "hard"))
            noises.append(bernoulli.logistic_noise(noise_key, alpha.shape, alpha.dtype))
            uniforms.append(bernoulli.open_uniform(uniform_key, alpha.shape, alpha.dtype))
            redraw_keys += redraw_key
            trunk.append(layer_logits[0])
            alphas.append(alpha)
            b.append(bernoulli.threshold(alpha, noises[t]))
            rows = b[t][None].astype(layer_logits.dtype)
        hard = tuple(b_t[None].astype(logits.dtype) for b_t, logits in zip(b, trunk, strict=True))
        f_hard, f_relaxed = of_columns, lambda columns, logits: of_columns(columns)
        if isinstance(f, LayerSum):
            f_hard, f_relaxed = _by_layers(f, trunk, hard, has_aux)
        f_b, aux = calling.evaluate(f_hard, hard, hard[0].shape[:-1], has_aux)
        f_b, value_dtype = calling.widen(f_b[0], trunk[0])

        def after(params, t, rows):
            """Returns logits and samples of layer t in the control variates of the layers before, two rows each."""
            given = chain.logits(t, rows)
            logits = bernoulli.wide(given)
            if self.later_layers == "hard":
                noise = bernoulli.logistic_noise(redraw_keys[t], logits.shape, logits.dtype)
                return given, bernoulli.threshold(logits, noise)
            rates = jnp.repeat(jnp.stack([_rate(p, logits.dtype) for p in params[:t]]), 2)
            return given, jax.nn.sigmoid((logits + noises[t][None]) * rates.reshape(-1, *(1,) * (logits.ndim - 1)))

        def controls(alphas, params):
            # Rows 2s and 2s + 1 are the control variate of layer s at z and z̃: the trunk's bits before layer s,
            # relaxed bits from there on.
            zs, columns, given = [], [], []
            for t, alpha in enumerate(alphas):
                # z, whose sign is b, and z̃, drawn again given b.
                z_tilde = bernoulli.conditional_logit(alpha, b[t], uniforms[t])
                zs.append(jnp.stack([alpha + noises[t], z_tilde]))
                own = jax.nn.sigmoid(zs[t] * _rate(params[t], alpha.dtype))
                left = after(params, t, columns[-1][: 2 * t]) if t else None
                staying = jnp.broadcast_to(b[t][None], (2 * (depth - t - 1), *b[t].shape))
                columns.append(jnp.concatenate([*([left[1]] if left else []), own, staying]).astype(trunk[t].dtype))
                own_logits = jnp.broadcast_to(trunk[t][None], zs[t].shape)
                given.append(jnp.concatenate([left[0], own_logits]) if left else own_logits)
            f_columns = functools.partial(f_relaxed, logits=given)
            f_c, _ = calling.evaluate_floats(self.name, f_columns, tuple(columns), columns[0].shape[:-1], has_aux)
            f_c = jnp.split(calling.widen(f_c, trunk[0])[0], depth)
            inputs = (chain.inputs, *b[:-1])
            return jnp.concatenate([self._control(*part) for part in zip(params, inputs, f_c, zs, strict=True)])

        # Only logits and tunables are differentiated: f, layers and data are taken as they are.
        controls, *args = detached(controls, vary_like(tuple(alphas), noises, f_b), params)

        def difference(alphas, params):
            c = controls(alphas, params)
            return jnp.sum(c[0::2]) - jnp.sum(c[1::2]), c

        slopes, c = jax.grad(difference, has_aux=True)(*args)
        signal = lax.stop_gradient(f_b)
        grads = tuple(
            formulas.relax(alphas[t], b[t], signal, c[2 * t + 1], slopes[t]).astype(trunk[t].dtype)
            for t in range(depth)
        )
        value = f_b.astype(value_dtype)
        if self.of_chain:
            return Outcome(Estimate(value, grads), tuple(trunk), aux)
        return Outcome(Estimate(value, grads[0]), trunk[0], aux)

    def _params_of_layers(self, params: Any, chain: Chain) -> tuple:
        """Returns the tunables of each layer. Raises TypeError if one is missing."""
        layers = options.params_of_layers(self.name, params, len(chain.layers)) if self.of_chain else (params,)
        options.check_params(self.name, layers[0], self.tunables)
        if self.shared_tunables:
            layers = tuple(layers[0] | own for own in layers)
        for own in layers:
            options.check_params(self.name, own, self.tunables)
        return layers

    def _control(self, params: Any, given: Any, f_relaxed: jax.Array, z: jax.Array) -> jax.Array:
        """Returns c(z) = η f(σ(z/τ)) + r(z), or η (f(σ(z/τ)) + r(z)), from f at the relaxed points."""
        scale = jnp.asarray(params["scale"], f_relaxed.dtype)
        if self.network_given is None:
            return scale * f_relaxed
        free = self.network_given(given)[1](params["network"], z)
        if free.shape != f_relaxed.shape:
            raise ValueError(f"control_variate must return shape {f_relaxed.shape} for z {z.shape}, got {free.shape}")
        free = free.astype(f_relaxed.dtype)
        return scale * (f_relaxed + free) if self.scaled_network else scale * f_relaxed + free


def network_of(hidden: int, control_variate: Network | None) -> Network:
    """Returns the pair (init, apply) of r, custom or built in. Raises TypeError if it is not a pair of functions."""
    if control_variate is None:
        return _network(options.at_least("hidden", hidden, 1))
    if not (isinstance(control_variate, tuple) and len(control_variate) == 2 and all(map(callable, control_variate))):
        raise TypeError(f"control_variate must be a pair of functions (init, apply), got {control_variate!r}")
    return control_variate


def _by_layers(
    f: LayerSum, trunk: Sequence[jax.Array], hard: tuple[jax.Array, ...], has_aux: bool
) -> tuple[Callable, Callable]:
    """Returns f at the trunk, and f of columns and logits, with the trunk's terms before each relaxed layer."""
    at_trunk, _ = f.terms(hard, f.given([logits[None] for logits in trunk]))

    def f_relaxed(columns, logits):
        terms, _ = f.terms(columns, logits, [2 * (t + 1) for t in range(len(columns))])
        return f.with_aux(sum_of_rows(terms, lax.stop_gradient(at_trunk)), columns, has_aux)

    return lambda hard: f.with_aux(jnp.asarray(sum(at_trunk)), hard, has_aux), f_relaxed


def _rate(params: Any, dtype: jnp.dtype) -> jax.Array:
    """Returns 1/τ."""
    return jnp.exp(-jnp.asarray(params["log_temperature"])).astype(dtype)


def _network(hidden: int) -> Network:
    """Returns a network from z to a number: one hidden layer of LeakyReLU(0.3), Glorot-uniform weights, zero biases."""
    glorot = jax.nn.initializers.glorot_uniform()

    def init(key, logits):
        keys, dim, dtype = jax.random.split(key), logits.shape[-1], bernoulli.wide_dtype(logits)
        return {
            "hidden": {"kernel": glorot(keys[0], (dim, hidden), dtype), "bias": jnp.zeros(hidden, dtype)},
            "output": {"kernel": glorot(keys[1], (hidden, 1), dtype), "bias": jnp.zeros((), dtype)},
        }

    def apply(params, z):
        hidden = z @ params["hidden"]["kernel"] + bernoulli.lift(params["hidden"]["bias"], z.ndim)
        activation = jax.nn.leaky_relu(hidden, negative_slope=0.3)
        return jnp.squeeze(activation @ params["output"]["kernel"], axis=-1) + params["output"]["bias"]

    return init, apply
