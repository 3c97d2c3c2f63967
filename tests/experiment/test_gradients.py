"""One draw of an estimator: everything that learns from it gets the derivative it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import disarm_jax as dj
from disarm_jax.experiment.build import EstimatorSpec, estimator_builder
from disarm_jax.experiment.step import Gradients, draw_gradients, init_tunables
from disarm_jax.models import BernoulliVAE, Chain, Network, decoder_structure
from disarm_jax.objectives import Objective, inference_layers, log_weights, weigh

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

X = np.array([[1.0, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 1, 0, 0]])
MODELS = {1: BernoulliVAE((3,), 5, (4,), input_mean=np.full(5, 0.4)), 2: BernoulliVAE((3, 2), 5)}


def make(depth):
    model = MODELS[depth]
    params = model.init(jax.random.key(0), jnp.asarray(X, jnp.float32))["params"]
    noise = np.random.default_rng(0)
    return model, jax.tree.map(lambda p: jnp.asarray(np.asarray(p) + 0.5 * noise.normal(size=p.shape)), params)


def plain_log_weights(model, params, x, layers, stop_q, expanded=False):
    """log w without the structure that makes it quick, as a function of b or of a tuple.

    Expansions in a layer leave out log q(b_{t+1} | b_t), whose curvature at a fixed b_{t+1} is not that of its
    expectation: for them its logits do not depend on b_t as far as derivatives go.
    """
    f = log_weights(model, params, x, layers, layers[0](x), stop_q=stop_q)
    if len(layers) == 1:
        return lambda b: f((b,))
    q = inference_layers(model, jax.lax.stop_gradient(params)) if stop_q else layers

    def without_slope_of_log_q(b):
        logits = [q[0](x), *(q[t](jax.lax.stop_gradient(b[t - 1])) for t in range(1, len(b)))]
        log_q = sum(dj.bernoulli.log_prob(*each) for each in zip(logits, b, strict=True))
        return model.apply({"params": params}, x, b, method="log_joint") - log_q

    return without_slope_of_log_q if expanded else f


def distribution(x, layers):
    return layers[0](x) if len(layers) == 1 else dj.Chain(x, layers)


def value_by_expectation(objective, est, tunables, params, key, x, expanded=False):
    """The objective as a user of the library would write it, for `jax.grad`."""
    layers = inference_layers(objective.model, params)
    f = plain_log_weights(objective.model, params, x, layers, objective.stop_q, expanded)
    return dj.expectation(est)(tunables, key, distribution(x, layers), f).mean()


EXPANSIONS = (
    "arms_quadratic",
    "disarm_midpoint",
    "disarm_quadratic",
    "disarm_taylor",
    "disarm_taylor_cross",
    "multisample_disarm_quadratic",
    "muprop",
)
# One of each kind that the draw handles in its own way: without tunables, with those of a custom loss, of an expansion
# and of the encoder's squares, with rows that are not draws, and with f differentiated at the samples.
EXPECTATIONS = (
    "arms_interpolated",
    "disarm",
    "disarm_midpoint",
    "disarm_quadratic",
    "disarm_taylor_cross",
    "double_cv",
    "interpolated",
    "leg",
    "muprop",
    "rebar",
    "reinmax",
    "relax",
    "rodeo",
)
CASES = [
    *[(1, name, {}, True) for name in EXPECTATIONS],
    *[(1, "vimco", {"num_samples": 3}, False), (1, "multisample_disarm", {"num_pairs": 3}, False)],
    *[(1, "multisample_disarm_quadratic", {"num_pairs": 2}, False), (1, "multisample_arms", {"num_samples": 2}, False)],
    *[(1, "naive_multisample_disarm", {"num_pairs": 2}, False), (1, "disarm", {}, False), (1, "relax", {}, False)],
    # With as many probes as bits, what is known of a linear model's structure and what is probed are the same.
    *[(2, name, {}, True) for name in ("arms", "disarm", "disarm_midpoint", "relax")],
    (2, "disarm_quadratic", {"probes": 3}, True),
    (2, "disarm", {}, False),
]


def without_moments(model, params):
    """Decoders that do not know their moments, so that expansions are at the mean."""
    decoders = [decoder_structure(model, params, t) for t in range(len(model.latents))]
    return [lambda b, decoder=decoder: decoder(b) for decoder in decoders]


def squares_of_the_encoder_gradient(objective, est, tunables, params, key, x):
    """‖Σ_batch ∂value‖² over the encoder, as a function of the tunables that plain autodiff differentiates.

    `expectation` stops the tunables; here Jᵀg is written out, and what log q adds to it is a constant.
    """
    model, encoder = objective.model, params["encoder"]

    def layers_and_f(encoder):
        layers = inference_layers(model, params | {"encoder": encoder})
        return layers, plain_log_weights(model, params, x, layers, objective.stop_q)

    def estimate(encoder):
        layers, f = layers_and_f(encoder)
        out = est.outcome(tunables, key, distribution(x, layers), f)
        return out.estimate.value, jax.tree.leaves(out.estimate.grad), jax.tree.leaves(out.logits)

    _, grads, _ = estimate(encoder)

    def attached(encoder):
        value, _, logits = estimate(encoder)
        return jnp.sum(value) + sum(jnp.sum(g * a) for g, a in zip(grads, logits, strict=True))

    return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(attached)(encoder)))


@pytest.mark.parametrize(("depth", "name", "options", "stop_q"), CASES)
def test_all_gradients_of_one_draw(depth, name, options, stop_q, monkeypatch):
    """The model's gradient is that of `expectation`; the tunables' is that of the summed squares, by plain autodiff."""
    monkeypatch.setattr(BernoulliVAE, "decoders", without_moments)  # plain autodiff knows expansions at the mean alone
    model, params = make(depth)
    objective, x = Objective(model, 1, stop_q, shared_samples=True), jnp.asarray(X)
    est = estimator_builder(EstimatorSpec(name, options), model.latents, relax_form="released")(x)
    tunables = init_tunables(objective, est, params, jax.random.key(1), x)

    @jax.jit
    def found_and_expected(tunables, params, key):
        draw = draw_gradients(objective, est, tunables, params, key, x)
        estimator_key, _ = jax.random.split(key)
        arguments = (params, estimator_key, x)
        expanded = name in EXPANSIONS and depth > 1
        by_library = jax.value_and_grad(value_by_expectation, argnums=3)(
            objective, est, tunables, *arguments, expanded=expanded
        )
        # β changes the distribution of the samples; scales learn by the squares of the logits' gradient.
        if est.moves_samples or name in EXPANSIONS:
            layers = inference_layers(model, params)
            f = plain_log_weights(model, params, x, layers, stop_q, expanded)
            by_hand = jax.grad(dj.variance_loss(est))(tunables, estimator_key, distribution(x, layers), f)
        elif jax.tree.leaves(tunables):
            by_hand = jax.grad(squares_of_the_encoder_gradient, argnums=2)(objective, est, tunables, *arguments)
        else:
            by_hand = tunables
        return draw, Gradients(*by_library, by_hand, draw.logits)

    found, expected = found_and_expected(tunables, params, jax.random.key(2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, expected)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(found.params["encoder"]))
    if jax.tree.leaves(tunables):
        assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(found.tunables))


class TanhDecoder(nn.Module):
    features: int

    @nn.compact
    def __call__(self, t, b):
        return nn.Dense(self.features)(jnp.tanh(b))


class TanhVAE(BernoulliVAE):
    """A model with a decoder of its own, of whose parameters nothing is known."""

    def setup(self):
        self.encoder = Chain((Network(*self.latents),))
        self.decoder = TanhDecoder(self.pixels)
        self.prior = self.param("prior", nn.initializers.zeros_init(), self.latents, jnp.float32)


class SaysSo(TanhVAE):
    """The same, which tells what it knows of its decoder: that it is a function."""

    def decoders(self, params):
        return [lambda b: self.apply({"params": params}, b, method="decode")]


def test_a_subclass_keeps_the_structure_if_it_says_so():
    x = jnp.asarray(X)
    f = {}
    for kind in (BernoulliVAE, TanhVAE, SaysSo, type("Wider", (BernoulliVAE,), {"__annotations__": {}})):
        model = kind((3,), 5)
        params = model.init(jax.random.key(0), x.astype(jnp.float32))["params"]
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        layers = inference_layers(model, params)
        f[kind.__name__] = weigh(model, params, x, layers, layers[0](x), stop_q=True)
    structured = {name for name, made in f.items() if isinstance(made, dj.Composed)}
    assert structured == {"BernoulliVAE", "SaysSo", "Wider"}
    b = jnp.asarray(np.random.default_rng(0).integers(0, 2, (4, 3, 3)), jnp.float64)
    np.testing.assert_allclose(f["SaysSo"](b), f["TanhVAE"](b), rtol=1e-6)


@pytest.mark.parametrize("name", ["disarm", "disarm_midpoint", "disarm_quadratic"])
def test_a_model_with_a_decoder_of_its_own(name):
    model, x = TanhVAE((3,), 5), jnp.asarray(X)
    params = model.init(jax.random.key(0), x.astype(jnp.float32))["params"]
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    est = estimator_builder(EstimatorSpec(name, {}), model.latents, "released")(x)
    objective = Objective(model, 1, True, shared_samples=True)
    tunables = init_tunables(objective, est, params, jax.random.key(1), x)
    draw = jax.jit(lambda key: draw_gradients(objective, est, tunables, params, key, x))
    found = draw(jax.random.key(2))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("depth", MODELS)
def test_moments_change_the_noise_of_the_encoder_gradient_alone(depth, monkeypatch):
    """What decoder and prior learn from a draw is the same with averaged expansions as with those at the mean."""
    model, params = make(depth)
    est, x = estimator_builder(EstimatorSpec("disarm_quadratic", {}), model.latents, "released")(X), jnp.asarray(X)
    objective = Objective(model, 1, True, shared_samples=True)
    tunables = init_tunables(objective, est, params, jax.random.key(1), x)
    draw = lambda: jax.jit(lambda key: draw_gradients(objective, est, tunables, params, key, x))(jax.random.key(2))
    averaged = draw()
    monkeypatch.setattr(BernoulliVAE, "decoders", without_moments)
    at_the_mean = draw()
    for group in ("decoder", "prior"):
        same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        jax.tree.map(same, averaged.params[group], at_the_mean.params[group])
    for one, other in zip(*(jax.tree.leaves(draw.logits) for draw in (averaged, at_the_mean)), strict=True):
        assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize(("depth", "name", "num_samples"), [(1, "disarm", 1), (2, "disarm", 1), (1, "vimco", 3)])
def test_independent_samples_for_decoder_and_prior(depth, name, num_samples):
    """The encoder's gradient stays, the others come from other samples: the same mean, by a z-test of 4.5 errors."""
    model, params = make(depth)
    options = {"num_samples": num_samples} if name == "vimco" else {}
    est, x = estimator_builder(EstimatorSpec(name, options), model.latents, "released")(X), jnp.asarray(X)
    stop_q = name != "vimco"

    @jax.jit
    def draws(keys):
        def both(key):
            shared, own = (
                draw_gradients(Objective(model, num_samples, stop_q, shared), est, (), params, key, x)
                for shared in (True, False)
            )
            return shared, own

        return jax.vmap(both)(keys)

    shared, own = draws(jax.random.split(jax.random.key(3), 100_000))
    np.testing.assert_allclose(own.value, shared.value, rtol=1e-12)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), own.params["encoder"], shared.params["encoder"]
    )
    for group in ("decoder", "prior"):
        for a, b in zip(jax.tree.leaves(own.params[group]), jax.tree.leaves(shared.params[group]), strict=True):
            difference = np.asarray(a - b)
            stderr = difference.std(axis=0) / np.sqrt(len(difference)) + 1e-12
            assert stderr.max() < 0.01 * np.abs(np.asarray(b)).mean()  # what counts as a large bias shows
            assert np.abs(difference.mean(axis=0) / stderr).max() < 4.5


@pytest.mark.parametrize("name", ["disarm", "relax"])
def test_stopping_log_q_stops_parameters_not_samples(name):
    """The gradient through sampling is the same: RELAX, which differentiates f in the samples, would else be biased."""
    model, params = make(2)
    est, x = estimator_builder(EstimatorSpec(name, {}), model.latents, "released")(X), jnp.asarray(X)

    def sampling_gradients(stop_q):
        objective = Objective(model, 1, stop_q, shared_samples=True)
        tunables = init_tunables(objective, est, params, jax.random.key(1), x)
        return jax.jit(lambda key: draw_gradients(objective, est, tunables, params, key, x).logits)(jax.random.key(2))

    for stopped, kept in zip(sampling_gradients(True), sampling_gradients(False), strict=True):
        assert np.any(stopped != 0)
        np.testing.assert_allclose(stopped, kept, rtol=1e-12, atol=1e-14)
