"""The model and its bounds against enumeration of all latent bits of a tiny VAE."""

import dataclasses
import functools
import itertools

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

import disarm_jax as dj
from disarm_jax import bernoulli
from disarm_jax.models import BernoulliVAE, decoder_structure
from disarm_jax.objectives import inference_layers, log_weights, sampled_bound, structured_log_weights
from disarm_jax.structure import leaky_relu_moments

pytestmark = pytest.mark.usefixtures("quick_compile", "x64")

MODELS = {
    "linear": BernoulliVAE((3,), 5),
    "nonlinear": BernoulliVAE((3,), 5, (4, 3), input_mean=np.linspace(0.1, 0.9, 5), output_mean=np.linspace(0, 1, 5)),
    "two layers": BernoulliVAE((2, 2), 5, input_mean=np.full(5, 0.4), signed_input=False),
}
X = np.array([[1.0, 0, 1, 1, 0], [0, 0, 1, 0, 1]])


@functools.cache
def make(name):
    model = MODELS[name]
    params = jax.jit(model.init)(jax.random.key(0), X.astype(np.float32))["params"]
    noise = np.random.default_rng(0)
    return model, jax.tree.map(lambda p: jnp.asarray(np.asarray(p) + 0.3 * noise.normal(size=p.shape)), params)


def all_bits(model):
    """All values of all latent bits, one `[M, 2, D_t]` per layer, the same for both images."""
    bits = jnp.asarray(exact.outcomes(sum(model.latents)))[:, None].repeat(2, axis=1)
    return tuple(jnp.split(bits, np.cumsum(model.latents)[:-1], axis=-1))


def dense(params, x):
    """A network written out, with its weights taken from Flax."""
    *hidden, last = [params[name] for name in sorted(params)]
    for layer in hidden:
        x = x @ layer["kernel"] + layer["bias"]
        x = np.where(x > 0, x, 0.3 * x)
    return x @ last["kernel"] + last["bias"]


def log_bernoulli(logits, b):
    return -np.logaddexp(0, np.where(np.asarray(b) == 1, -logits, logits)).sum(axis=-1)


@pytest.mark.parametrize("name", MODELS)
def test_log_joint_and_log_q_by_hand(name):
    model, params = make(name)
    b = all_bits(model)
    numbers = jax.tree.map(np.asarray, params)
    signed = 2 * np.asarray(b[0]) - 1 if model.signed_input else np.asarray(b[0])
    log_p = log_bernoulli(dense(numbers["decoder"]["networks_0"], signed), np.broadcast_to(X, (*b[0].shape[:-1], 5)))
    log_p = log_p + log_bernoulli(np.broadcast_to(numbers["prior"], b[-1].shape), b[-1])
    mean = 0 if model.input_mean is None else model.input_mean
    log_q = log_bernoulli(
        np.broadcast_to(dense(numbers["encoder"]["networks_0"], np.asarray(X) - mean), b[0].shape), b[0]
    )
    if len(b) == 2:
        log_p = log_p + log_bernoulli(dense(numbers["decoder"]["networks_1"], np.asarray(b[1])), b[0])
        log_q = log_q + log_bernoulli(dense(numbers["encoder"]["networks_1"], np.asarray(b[0])), b[1])

    @jax.jit
    def log_joint_and_log_w(params):
        layers = inference_layers(model, params)
        f = log_weights(model, params, X, layers, layers[0](X), stop_q=False)
        return model.apply({"params": params}, X, b, method="log_joint"), f(b)

    log_joint, log_w = log_joint_and_log_w(params)
    np.testing.assert_allclose(log_joint, log_p, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_q).sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(log_w, log_p - log_q, rtol=1e-11)


@functools.cache
def exact_bounds(name):
    """log w and q of all latent bits, `[M, 2]`."""
    model, params = make(name)
    b = all_bits(model)

    @jax.jit
    def log_w_and_log_q(params):
        layers = inference_layers(model, params)
        log_q = bernoulli.log_prob(layers[0](X), b[0])
        for t in range(1, len(b)):
            log_q = log_q + bernoulli.log_prob(layers[t](b[t - 1]), b[t])
        return log_weights(model, params, X, layers, layers[0](X), stop_q=True)(b), log_q

    log_w, log_q = log_w_and_log_q(params)
    return np.asarray(log_w), np.exp(log_q)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_samples", [1, 2])
def test_sampled_bound(name, num_samples):
    """The mean of 100,000 bounds against enumeration of all K-tuples: 4 standard errors, each below 0.5%."""
    model, params = make(name)
    log_w, q = exact_bounds(name)
    draws = 100_000
    found = jax.jit(lambda key, x: sampled_bound(model, params, key, x, num_samples))(
        jax.random.key(1), jnp.repeat(X, draws, axis=0).reshape(2, draws, 5)
    )
    if num_samples == 1:
        truth = (q * log_w).sum(axis=0)
    else:
        pairs = np.logaddexp(log_w[:, None], log_w[None]) - np.log(2)
        truth = (q[:, None] * q[None] * pairs).sum(axis=(0, 1))
    stderr = np.asarray(found).std(axis=1) / np.sqrt(draws)
    assert np.all(stderr < 0.005 * np.abs(truth))
    assert np.all(np.abs(np.asarray(found).mean(axis=1) - truth) < 4 * stderr)


@pytest.mark.parametrize("name", MODELS)
def test_structure_for_expansions_changes_nothing(name):
    """The same log w, and at the mean the same expansions as without structure, where probes give the diagonal."""
    model, params = make(name)
    x, bits = jnp.asarray(X), all_bits(model)
    one_layer = len(bits) == 1
    est = (
        dj.make_estimator("disarm_quadratic", probes=3) if one_layer else dj.hierarchical("disarm_quadratic", probes=2)
    )

    @jax.jit
    def values_and_estimates(params, key):
        layers = inference_layers(model, params)
        plain = log_weights(model, params, x, layers, layers[0](x), stop_q=True)
        structured = structured_log_weights(model, params, x, layers, layers[0](x), stop_q=True)

        def without_slope_of_log_q(b):
            """log w to which log q(b_2 | b_1) is no function of b_1: what the expansions leave out."""
            logits = [layers[0](x), jax.lax.stop_gradient(layers[1](b[0]))]
            log_q = sum(bernoulli.log_prob(*each) for each in zip(logits, b, strict=True))
            return model.apply({"params": params}, x, b, method="log_joint") - log_q

        if one_layer:
            at, values = layers[0](x), (structured(*bits), plain(bits))
            without_moments = dataclasses.replace(structured, inner=lambda b, inner=structured.inner: inner(b))
            fs = [without_moments, lambda b: plain((b,))]
        else:
            at, values = dj.Chain(x, layers), (structured(bits), plain(bits))
            plain_inner = [lambda b, inner=inner: inner(b) for inner in structured.inner]
            fs = [dataclasses.replace(structured, inner=plain_inner), without_slope_of_log_q]
        tunables = est.init(jax.random.key(0), at)
        return values, [est.apply(tunables, key, at, f).grad for f in fs]

    (log_w, plain_log_w), (by_structure, by_probes) = values_and_estimates(params, jax.random.key(1))
    np.testing.assert_allclose(log_w, plain_log_w, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), by_structure, by_probes)


@pytest.mark.parametrize("name", MODELS)
def test_moments_of_what_the_decoder_returns(name):
    """Exact for a linear one, by enumeration; the mean of another is closer to the truth than its value at the mean."""
    model, params = make(name)
    bits, p = jnp.asarray(exact.outcomes(model.latents[0])), jnp.asarray([0.2, 0.5, 0.9])[: model.latents[0]]

    @jax.jit
    def moments_and_values(params):
        decoder = decoder_structure(model, params, 0)
        return decoder.moments(p[None], (p * (1 - p))[None]), decoder(bits), decoder(p[None])

    (mean, variance), values, at_the_mean = jax.tree.map(np.asarray, moments_and_values(params))
    probabilities = np.prod(np.where(np.asarray(bits) == 1, p, 1 - p), axis=-1)
    expected, spread = exact.moments(probabilities, values)
    if model.hidden:
        assert np.abs(mean[0] - expected).sum() < 0.6 * np.abs(at_the_mean[0] - expected).sum()
    else:
        np.testing.assert_allclose(mean[0], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(variance[0], spread, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_variances_are_averaged_over_the_rows(name):
    model, params = make(name)
    p = np.array([[[0.2, 0.5, 0.9], [0.7, 0.1, 0.3]]])
    moments = jax.jit(lambda params, p, variance: decoder_structure(model, params, 0).moments(p, variance))
    mean, variance = moments(params, p, p * (1 - p))
    same = np.broadcast_to(np.mean(p * (1 - p), axis=(0, 1), keepdims=True), p.shape)
    same_mean, same_variance = moments(params, p, same)
    np.testing.assert_allclose(mean, same_mean, rtol=1e-12)
    np.testing.assert_allclose(variance, same_variance, rtol=1e-12)
    assert variance.shape == mean.shape
    np.testing.assert_array_equal(*np.moveaxis(variance, 1, 0))

    @jax.jit
    def not_pooled(params, p):  # by default rows are independent of each other
        apart = dataclasses.replace(decoder_structure(model, params, 0), pool_variance=False)
        return apart.moments(p, p * (1 - p))[1]

    np.testing.assert_allclose(not_pooled(params, p)[:, 0], not_pooled(params, p[:, :1])[:, 0], rtol=1e-12)


@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_what_images_share_brings_no_bias(name, monkeypatch):
    """All pairs of both images, jointly: the spread that they share sees where bits differ, not how."""
    model, params = make(name)
    layers = inference_layers(model, params)
    logits = 2 * layers[0](jnp.asarray(X))

    def f_of(logits):
        return structured_log_weights(model, params, jnp.asarray(X), layers, logits, stop_q=True)

    laws = [[part[law[2] > 0] for part in law] for law in map(exact.pair_law, np.asarray(logits))]
    joint = np.array(list(itertools.product(*(range(len(law[2])) for law in laws))))
    b, b_tilde, probability = (
        np.stack([law[part][joint[:, image]] for image, law in enumerate(laws)], axis=1) for part in range(3)
    )
    est = dj.disarm_midpoint(init_scale=1.3)
    tunables = est.init(jax.random.key(0), logits)

    def grad(*pair):
        monkeypatch.setattr(bernoulli, "antithetic_pairs", lambda *_: (*(rows[None] for rows in pair), None))
        return est.apply(tunables, jax.random.key(1), logits, f_of(logits)).grad

    found = jax.jit(jax.vmap(grad))(b, b_tilde)
    mean, _ = exact.moments(probability.prod(axis=1), np.asarray(found))
    f = jax.jit(lambda bits: f_of(logits)(bits))
    of_image = lambda image: lambda bits: np.asarray(f(bits[:, None].repeat(2, axis=1)))[:, image]
    truth = [exact.gradient(np.asarray(row), of_image(image)) for image, row in enumerate(logits)]
    np.testing.assert_allclose(mean, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variance", [0.0, 1e-4, 0.7])
def test_moments_of_the_leaky_relu(variance):
    """Against a million quantiles of the law; the derivative of the mean is the mean of the derivative.

    In float32 no digits cancel, and bfloat16 comes close.
    """
    mean = jnp.asarray([-3.0, -0.4, 0.2, 1.5])
    x = np.asarray(mean)[:, None] + np.sqrt(variance) * ndtri((np.arange(1_000_000) + 0.5) / 1_000_000)
    value, slope = np.where(x > 0, x, 0.3 * x), np.where(x > 0, 1.0, 0.3)
    moments = lambda mean: leaky_relu_moments(mean, jnp.full_like(mean, variance), 0.3)
    found, derivatives = jax.jit(lambda mean: jax.jvp(moments, (mean,), (jnp.ones(4),)))(mean)
    np.testing.assert_allclose(found, (value.mean(axis=1), value.var(axis=1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(derivatives[0], slope.mean(axis=1), rtol=0, atol=1e-5)
    far, small = jnp.asarray([-100.0, 30.0, 5.0]), jnp.asarray(np.array([1e-3, 1e-4, 1e-6]) * (variance > 0))
    for dtype, rtol in (("float32", 1e-5), ("bfloat16", 0.02)):
        found = jax.jit(leaky_relu_moments, static_argnums=2)(far.astype(dtype), small.astype(dtype), 0.3)
        assert found[0].dtype == found[1].dtype == dtype
        np.testing.assert_allclose(found[1].astype(float), small * np.array([0.09, 1, 1]), rtol=rtol)


def test_the_bound_of_many_samples_is_the_likelihood():
    """100 samples at a time or one by one, 20,000 in all: log p(x) to 1%; chunks do not change the law."""
    model, params = make("linear")
    log_w, q = exact_bounds("linear")
    likelihood = np.log((q * np.exp(log_w)).sum(axis=0))
    for at_once in (1, 100):
        bound = jax.jit(lambda key, at_once=at_once: sampled_bound(model, params, key, X, 20_000, at_once))
        np.testing.assert_allclose(bound(jax.random.key(2)), likelihood, atol=0.03)


def test_uneven_numbers_of_samples():
    """Every number of samples has a largest chunk that divides it, seven has one of seven."""
    model, params = make("linear")
    for num_samples in (1, 7, 11, 30):
        shape = jax.eval_shape(lambda key, k=num_samples: sampled_bound(model, params, key, X, k), jax.random.key(0))
        assert shape.shape == (2,)
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        sampled_bound(model, params, jax.random.key(0), X, 0)


@pytest.mark.parametrize("make_f", [log_weights, structured_log_weights])
@pytest.mark.parametrize("name", MODELS)
def test_log_q_is_a_constant_only_where_it_is_stopped(name, make_f):
    """A multi-sample bound needs its derivative in the encoder, whose mean is zero in the ELBO alone."""
    model, params = make(name)
    b = all_bits(model)

    def total(encoder, stop_q):
        layers = inference_layers(model, params | {"encoder": encoder})
        f = make_f(model, params | {"encoder": encoder}, X, layers, layers[0](X), stop_q=stop_q)
        return jnp.sum(f(b[0] if isinstance(f, dj.Composed) else b))

    for stop_q in (True, False):
        grads = jax.jit(jax.grad(total), static_argnums=1)(params["encoder"], stop_q)
        assert all(np.any(leaf) != stop_q for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("stop_q", [True, False])
@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_the_whole_gradient_of_the_elbo(name, stop_q):
    """With DisARM and log w as f, in all parameters: z-test with 200,000 draws against the enumerated ELBO."""
    model, params = make(name)
    b = all_bits(model)[0]

    def exact_elbo(params):
        layers = inference_layers(model, params)
        logits = layers[0](X)
        f = log_weights(model, params, X, layers, logits, stop_q=False)
        return jnp.sum(jnp.exp(bernoulli.log_prob(logits, b)) * f((b,)))

    def sampled_elbo(params, key):
        layers = inference_layers(model, params)
        logits = layers[0](X)
        f = log_weights(model, params, X, layers, logits, stop_q=stop_q)
        return dj.expectation(dj.disarm())((), key, logits, lambda b: f((b,))).sum()

    truth = jax.jit(jax.grad(exact_elbo))(params)
    draws = 200_000
    grads = jax.jit(jax.vmap(jax.grad(sampled_elbo), in_axes=(None, 0)))(
        params, jax.random.split(jax.random.key(3), draws)
    )
    flat = np.concatenate([np.asarray(g).reshape(draws, -1) for g in jax.tree.leaves(grads)], axis=1)
    expected = np.concatenate([np.asarray(t).ravel() for t in jax.tree.leaves(truth)])
    stderr = flat.std(axis=0) / np.sqrt(draws) + 1e-12
    assert np.linalg.norm(stderr) < 0.02 * np.linalg.norm(expected)
    assert np.abs((flat.mean(axis=0) - expected) / stderr).max() < 4.5


def test_defaults_are_the_papers():
    model = BernoulliVAE((200,), 784, (200, 200), input_mean=np.full(784, 0.13), output_mean=np.full(784, 0.13))
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 784), np.float32))["params"]
    assert set(params) == {"encoder", "decoder", "prior"}
    assert (
        sum(p.size for p in jax.tree.leaves(params))
        == 2 * (784 * 200 + 3 * 200 * 200 - 200 * 200) + 5 * 200 + 784 + 200
    )
    np.testing.assert_allclose(params["decoder"]["networks_0"]["Dense_2"]["bias"], np.log(0.13 / 0.87), rtol=1e-5)
    kernel = params["encoder"]["networks_0"]["Dense_0"]["kernel"]
    limit = np.sqrt(6 / (784 + 200))
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert model.negative_slope == 0.3
    assert model.signed_input


def test_samples_of_the_prior():
    """Mean image of 200,000 samples against the enumerated one: 4.5 standard errors."""
    model, params = make("two layers")
    b = all_bits(model)

    @jax.jit
    def images_and_their_mean(params, key):
        apply = functools.partial(model.apply, {"params": params})
        logits = apply(1, b[1], method=lambda m, t, b: m.decoder(t, b))
        log_p = bernoulli.log_prob(params["prior"], b[1]) + bernoulli.log_prob(logits, b[0])
        pixels = jax.nn.sigmoid(apply(b[0], method="decode"))
        return apply(key, 200_000, method="sample"), (jnp.exp(log_p)[..., None] * pixels).sum(axis=0)[0]

    images, expected = map(np.asarray, images_and_their_mean(params, jax.random.key(4)))
    stderr = images.std(axis=0) / np.sqrt(len(images))
    assert np.all(np.abs(images.mean(axis=0) - expected) < 4.5 * stderr)
