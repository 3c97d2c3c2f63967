"""Chains of layers: Algorithm 1 against exact enumeration, RELAX by z-tests, one layer equal to the flat estimators."""

import functools
import itertools

import chex
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box
from jax.test_util import check_grads
from scipy.special import expit

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

EXPANDED = ("arms_quadratic", "disarm_midpoint", "disarm_quadratic", "disarm_taylor", "muprop")
SAMPLES = {  # of a layer, with the trunk's; else a pair
    "arms": 4,
    "arms_interpolated": 4,
    "arms_midpoint": 4,
    "arms_quadratic": 4,
    "muprop": 1,
    "reinforce": 1,
    "ugc": 3,
}
BETAS = {"disarm": 1.0, "reinforce_loo": 0.0}  # the coupling of b_t and its partner
OPTIONS = {"arms": {"num_samples": 3}}
GROUPS = {"arms": 3}  # samples of a layer, with the trunk's; else a pair
CHAINS = {  # D_t of each layer; the weights are fixed numbers without a pattern
    "two layers": (2, 2),
    "three layers": (1, 1, 1),
}


def make_chain(dims):
    """Weights of the chain, its layers as functions of the weights (numpy or JAX), and a table f of all bits."""
    rng = np.random.default_rng(5)
    weights = [
        (1.5 * rng.normal(size=(d_in, d)), rng.normal(size=d)) for d_in, d in zip((1, *dims), dims, strict=False)
    ]
    f = exact.table_function(sum(dims), seed=2)
    return weights, f


def apply_layer(weights, b):
    kernel, bias = weights
    return b @ kernel + bias.reshape((1,) * (b.ndim - 1) + bias.shape)


def layers_of(weights):
    return [functools.partial(apply_layer, w) for w in weights]


def numpy_layers(weights, inputs):
    """The layers for `exact.chain_law`, the first one at the inputs."""
    return [lambda _: inputs @ weights[0][0] + weights[0][1], *(lambda b, w=w: b @ w[0] + w[1] for w in weights[1:])]


def exact_expectation(weights, f, dims, inputs):
    """E f over all 2^(Σ D_t) chains; differentiable in the weights by JAX, the law being written out."""
    bits = exact.outcomes(sum(dims))
    total, offset, previous = 0.0, 0, jnp.broadcast_to(inputs, (len(bits), 1))
    for t, dim in enumerate(dims):
        b = jnp.asarray(bits[:, offset : offset + dim])
        total = total + dj.bernoulli.log_prob(apply_layer(weights[t], previous), b)
        offset, previous = offset + dim, b
    return jnp.sum(jnp.exp(total) * f(bits))


def group_of(t, num):
    """The rows of layer t's group: the trunk and the branches that leave it there."""
    return [0, *range(1 + t * (num - 1), 1 + (t + 1) * (num - 1))]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", ["disarm", "reinforce_loo", "arms"])
def test_exact_mean_and_variance(name, chain):
    """Algorithm 1 over all its outcomes: the mean is the exact gradient in the weights of every layer (1e-10)."""
    dims, inputs = CHAINS[chain], np.array([0.6])
    weights, f = make_chain(dims)
    num = GROUPS.get(name, 2)
    columns, probabilities = exact.chain_law(numpy_layers(weights, inputs), dims, BETAS.get(name), num)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    f_rows = f(np.concatenate(columns, axis=-1))  # [M, T (n - 1) + 1]
    truth = jax.grad(exact_expectation)(jax.tree.map(jnp.asarray, weights), f, dims, inputs)
    for t in range(len(dims)):
        group = group_of(t, num)
        b, f_b = np.moveaxis(columns[t][:, group], 1, 0), f_rows[:, group].T
        before = columns[t - 1][:, 0] if t else np.broadcast_to(inputs, (b.shape[1], 1))
        logits = before @ weights[t][0] + weights[t][1]
        if name == "disarm":
            ours, reference = dj.formulas.disarm(jnp.asarray(logits), *b, *f_b), exact.disarm(logits, *b, *f_b)
        else:
            ours = getattr(dj.formulas, name)(jnp.asarray(logits), b, f_b)
            reference = getattr(exact, name)(logits, b, f_b)
        np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-12)
        for g, expected in ((ours, truth[t][1]), (np.einsum("mi,mj->mij", before, ours), truth[t][0])):
            mean, variance = exact.moments(probabilities, np.asarray(g))
            np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-10)
        _, variance = exact.moments(probabilities, np.asarray(ours))
        np.testing.assert_allclose(variance, exact.moments(probabilities, reference)[1], rtol=1e-10, atol=1e-14)


def capture(name, dims, draws):
    """One call of `apply` on a large batch of one input: columns that f received, estimate, weights and f."""
    weights, f = make_chain(dims)
    table, columns, calls = jnp.asarray(f.table), [], []

    def traced_f(b):
        columns.append(b)
        bits = jnp.concatenate(b, axis=-1)
        return table[(bits @ jnp.asarray(2.0 ** np.arange(sum(dims))[::-1])).astype(int)]

    def layer(t):
        def call(b):
            calls.append((t, b.shape))
            return apply_layer(jax.tree.map(jnp.asarray, weights[t]), b)

        return call

    inputs = jnp.full((draws, 1), 0.6)
    layers = [layer(t) for t in range(len(dims))]
    est = dj.hierarchical(name, **OPTIONS.get(name, {}))
    chain = dj.Chain(inputs, layers)
    params = est.init(jax.random.key(0), chain)

    @jax.jit
    def outcome(key):
        out = est.outcome(params, key, chain, traced_f)
        return out, columns[0]

    out, seen = outcome(jax.random.key(4))
    return [np.asarray(c) for c in seen], out, weights, f, columns, calls


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", ["disarm", "reinforce_loo", "arm", "arms"])
def test_law_and_formula_through_apply(name, chain):
    dims, draws = CHAINS[chain], 400_000
    columns, out, weights, f, all_columns, calls = capture(name, dims, draws)
    depth, num = len(dims), GROUPS.get(name, 2)
    assert len(all_columns) == 1  # T (n − 1) + 1 evaluations, in one call
    assert [c.shape for c in columns] == [(depth * (num - 1) + 1, draws, d) for d in dims]
    made = [(0, (draws, 1))]  # the first layer once, the others for the trunk and for the branches
    for t in range(1, depth):
        made += [(t, (1, draws, dims[t - 1])), (t, (t * (num - 1), draws, dims[t - 1]))]
    assert calls[-len(made) :] == made
    _, probabilities = exact.chain_law(numpy_layers(weights, np.array([0.6])), dims, BETAS.get(name, 1.0), num)
    # The rows of layer t that are not copies of the trunk: trunk, branches that left before, the partners.
    own = [c[: 1 + (t + 1) * (num - 1)] for t, c in enumerate(columns)]
    bits = np.concatenate([np.moveaxis(rows, 1, 0).reshape(draws, -1) for rows in own], axis=1)
    assert exact.chi_square(bits, probabilities) > 1e-4
    for rows, column in zip(own, columns, strict=True):
        staying = column[len(rows) :]
        np.testing.assert_array_equal(staying, np.broadcast_to(column[:1], staying.shape))
    f_rows = f(np.concatenate(columns, axis=-1))
    np.testing.assert_allclose(out.estimate.value, f_rows.mean(axis=0), atol=1e-12)
    for t in range(depth):
        before = columns[t - 1][0] if t else np.full((draws, 1), 0.6)
        logits = before @ weights[t][0] + weights[t][1]
        np.testing.assert_allclose(out.logits[t], logits, atol=1e-12)
        group = columns[t][group_of(t, num)], f_rows[group_of(t, num)]
        pair = *group[0][:2], *group[1][:2]
        if name == "disarm":
            np.testing.assert_allclose(out.estimate.grad[t], exact.disarm(logits, *pair), rtol=0, atol=1e-12)
        elif name in ("reinforce_loo", "arms"):
            reference = getattr(exact, name)(logits, *group)
            np.testing.assert_allclose(out.estimate.grad[t], reference, rtol=0, atol=1e-12)
        else:  # read u off the gradient: it must reproduce the pair
            delta = pair[2] - pair[3]
            seen = delta != 0
            u = 0.5 + np.asarray(out.estimate.grad[t])[seen] / delta[seen, None]
            np.testing.assert_array_equal(pair[0][seen], 1 - u < expit(logits[seen]))
            np.testing.assert_array_equal(pair[1][seen], u < expit(logits[seen]))


def smooth_f(b):
    """Nonlinear in all layers; defined for relaxed bits."""
    first, second = b[0].sum(-1), b[-1].sum(-1)
    return (first - 0.6) ** 2 + 1.5 * b[0][..., 0] * b[-1][..., 1] - second * first


SMOOTH = [
    (np.array([[0.9, -0.4]]), np.array([0.2, -0.5])),
    (np.array([[1.5, -1.0], [0.7, 2.0]]), np.array([-0.3, 0.4])),
]


def mean_gradients(est, draws, key, f=smooth_f, weights=SMOOTH):
    """Gradients in the biases of both layers, one per draw, and the exact ones."""
    inputs = jnp.full((draws, 1), 0.6)
    weights = jax.tree.map(jnp.asarray, weights)
    layers = layers_of(weights)
    params = jax.tree.map(lambda p: p + 0.3, est.init(jax.random.key(1), dj.Chain(inputs, layers)))
    out = jax.jit(lambda key: est.apply(params, key, dj.Chain(inputs, layers), f))(key)
    bits = exact.outcomes(4)
    values = np.asarray(f((jnp.asarray(bits[:, :2]), jnp.asarray(bits[:, 2:]))))
    truth = jax.grad(exact_expectation)(weights, lambda _: values, (2, 2), jnp.array([0.6]))
    return [np.asarray(g) for g in out.grad], [np.asarray(w[1]) for w in truth]


RELEASED = {
    "scaled_network": True,
    "shared_tunables": True,
    "control_variate": lambda given: given_network(given),
}  # defined below


def given_network(given):
    """r_t(z) = w_1 · tanh(z) + w_2 · given · Σ z, given what the logits of the layer were computed from."""

    def init(key, logits):
        return {"z": jnp.full(logits.shape[-1], -0.2), "given": jnp.full(given.shape[-1], -0.2)}

    def apply(params, z):
        return jnp.tanh(z) @ params["z"] + (given @ params["given"])[None] * z.sum(-1)

    return init, apply


@pytest.mark.parametrize("options", [{}, {"later_layers": "hard"}, RELEASED], ids=["relaxed", "hard", "released"])
def test_relax_is_unbiased_and_the_hard_variant_is_not(options):
    """2,000,000 draws, a standard error below 1% of the gradient's norm."""
    est = dj.hierarchical("relax", hidden=4, **options)
    worst = 0.0
    for grads, truth in zip(*mean_gradients(est, 2_000_000, jax.random.key(2)), strict=True):
        stderr = grads.std(axis=0) / np.sqrt(len(grads))
        assert np.linalg.norm(stderr) < 0.01 * np.linalg.norm(truth)
        worst = max(worst, np.abs((grads.mean(axis=0) - truth) / stderr).max())
    assert worst > 15 if "later_layers" in options else worst < 4


def test_relax_shares_temperature_and_scale_and_scales_the_network():
    """One temperature and scale for all layers do what equal ones do; η (f + r) is η f + r with a network η r."""
    weights, inputs, key = jax.tree.map(jnp.asarray, SMOOTH), jnp.full((5, 1), 0.6), jax.random.key(3)
    layers, eta = layers_of(weights), 0.6
    networks = dj.hierarchical("relax", **RELEASED).init(jax.random.key(4), dj.Chain(inputs, layers))
    assert set(networks[0]) == {"log_temperature", "scale", "network"}
    assert set(networks[1]) == {"network"}

    def grads(params, **options):
        est = dj.hierarchical("relax", control_variate=given_network, **options)
        return jax.jit(lambda params: est.apply(params, key, dj.Chain(inputs, layers), smooth_f).grad)(params)

    tunables = {"log_temperature": jnp.log(0.4), "scale": jnp.asarray(eta)}
    shared = (networks[0] | tunables, networks[1])
    found = grads(shared, scaled_network=True, shared_tunables=True)
    scaled = tuple(tunables | {"network": jax.tree.map(lambda w: eta * w, own["network"])} for own in networks)
    for one, other, without in zip(found, grads(scaled), grads(shared, shared_tunables=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert np.abs(one - without).max() > 1e-3


def test_relax_reads_its_tunables_and_noise_as_documented():
    """At the relaxed points that f receives, each control variate has its layer's temperature and the trunk's noise."""
    points = {}

    def spy(b):
        jax.debug.callback(lambda *columns: points.update({len(columns[0]): columns}), *b)
        return smooth_f(b)

    weights = jax.tree.map(jnp.asarray, SMOOTH)
    layers = layers_of(weights)
    inputs, est = jnp.full((6, 1), 0.6), dj.hierarchical("relax", hidden=4)
    params = est.init(jax.random.key(0), dj.Chain(inputs, layers))
    temperatures = (0.5, 1.4)
    params = tuple(p | {"log_temperature": jnp.log(jnp.array(t))} for p, t in zip(params, temperatures, strict=True))
    out = jax.jit(lambda key: est.outcome(params, key, dj.Chain(inputs, layers), spy))(jax.random.key(1))
    jax.effects_barrier()
    (trunk,), relaxed = zip(*points[1], strict=True), points[4]  # by the number of rows
    logit = lambda p: np.log(p) - np.log1p(-p)
    z_first = temperatures[0] * logit(relaxed[0][:2])
    np.testing.assert_array_equal(z_first > 0, np.stack([trunk[0]] * 2) == 1)
    np.testing.assert_array_equal(relaxed[0][2:], np.stack([trunk[0]] * 2))  # the second layer keeps the trunk's bits
    z_second = temperatures[1] * logit(relaxed[1][2:])
    noise = z_second[0] - np.asarray(out.logits[1])
    for row in range(2):
        later = temperatures[0] * logit(relaxed[1][row]) - np.asarray(
            apply_layer(weights[1], jnp.asarray(relaxed[0][row]))
        )
        np.testing.assert_allclose(later, noise, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", sorted({*dj.hierarchical_names()} - {"interpolated", "arms_interpolated"}))
def test_variance_loss(name):
    """The sum of squares over all layers; for RELAX its derivative by finite differences, the noise being fixed."""
    weights = jax.tree.map(jnp.asarray, SMOOTH)
    layers = layers_of(weights)
    inputs, est, key = (
        jnp.full((3, 1), 0.6),
        dj.hierarchical(name, **({"hidden": 4} if name == "relax" else {})),
        jax.random.key(1),
    )
    params = jax.tree.map(lambda p: p + 0.4, est.init(jax.random.key(0), dj.Chain(inputs, layers)))
    loss = lambda params: dj.variance_loss(est)(params, key, dj.Chain(inputs, layers), smooth_f)

    @jax.jit
    def loss_and_grads(params):
        return loss(params), est.apply(params, key, dj.Chain(inputs, layers), smooth_f).grad

    found, grads = loss_and_grads(params)
    np.testing.assert_allclose(found, sum(np.sum(np.asarray(g) ** 2) for g in grads), rtol=1e-10)
    if name == "relax":
        check_grads(jax.jit(loss), (params,), order=1, modes=["rev"])


def test_relax_calls_f_twice_and_each_layer_as_little_as_possible():
    shapes = []

    def f(b):
        shapes.append([c.shape for c in b])
        return smooth_f(b)

    layers = [lambda x: x @ jnp.ones((3, 2)), lambda b: b @ jnp.ones((2, 4)), lambda b: b @ jnp.ones((4, 5))]
    est = dj.hierarchical("relax")
    inputs = jnp.ones((7, 3))
    params = est.init(jax.random.key(0), dj.Chain(inputs, layers))
    out = jax.eval_shape(lambda key: est.apply(params, key, dj.Chain(inputs, layers), f), jax.random.key(1))
    assert shapes == [[(1, 7, 2), (1, 7, 4), (1, 7, 5)], [(6, 7, 2), (6, 7, 4), (6, 7, 5)]]
    assert [g.shape for g in out.grad] == [(7, 2), (7, 4), (7, 5)]


@pytest.mark.parametrize("name", dj.hierarchical_names())
def test_one_layer_is_the_flat_estimator(name):
    """To the bit, with the same key; an expansion, which the flat form centres first, to the last digits."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    flat, chain = dj.make_estimator(name), dj.hierarchical(name)

    def f(b):
        return (b.sum(-1) - 1.2) ** 2 + b[..., 0]

    layers = [lambda x: x]
    params = flat.init(jax.random.key(0), logits)
    chain_params = chain.init(jax.random.key(0), dj.Chain(logits, layers))
    if chain_params:
        chex.assert_trees_all_equal(params, chain_params[0])
    one = flat.apply(params, jax.random.key(1), logits, f)
    other = chain.apply(chain_params, jax.random.key(1), dj.Chain(logits, layers), lambda b: f(b[0]))
    np.testing.assert_array_equal(one.value, other.value)
    if name in EXPANDED:
        np.testing.assert_allclose(one.grad, other.grad[0], rtol=0, atol=1e-13)
    else:
        np.testing.assert_array_equal(one.grad, other.grad[0])


def test_every_layer_has_tunables_of_its_own():
    """β = 1 and β = 0 at logits of zero, where the first makes all bits of a pair differ."""
    chain = dj.Chain(jnp.zeros((50, 2)), [lambda x: x, lambda b: 0 * b])
    betas, received = (1.0, 0.0), []

    def f(b):
        received.append(b)
        return smooth_f(b)

    est, key = dj.hierarchical("interpolated"), jax.random.key(0)
    params = tuple({"beta": jnp.asarray(beta)} for beta in betas)

    @jax.jit
    def outcome_and_slopes(params, key):
        out = est.outcome(params, key, chain, f)
        return out, jax.grad(dj.variance_loss(est))(params, key, chain, smooth_f), received

    out, learnt, (columns,) = outcome_and_slopes(params, key)
    f_rows = smooth_f(columns)
    for t, beta in enumerate(betas):
        group = np.array(group_of(t, 2))
        pair, f_pair = columns[t][group], f_rows[group]
        assert np.all(pair[0] != pair[1]) == (beta == 1)
        grad = lambda beta, t=t, pair=pair, f_pair=f_pair: dj.formulas.interpolated(out.logits[t], *pair, *f_pair, beta)
        log_prob = lambda beta, t=t, pair=pair: dj.bernoulli.interpolated_log_prob(out.logits[t], *pair, beta).sum(-1)
        np.testing.assert_allclose(out.estimate.grad[t], grad(beta), rtol=0, atol=1e-12)
        np.testing.assert_allclose(out.log_prob[t], log_prob(beta), rtol=0, atol=1e-12)
        squares = np.sum(grad(beta) ** 2, axis=-1)
        loss = lambda beta, g=grad, log_p=log_prob, squares=squares: jnp.sum(g(beta) ** 2) + squares @ log_p(beta)
        np.testing.assert_allclose(learnt[t]["beta"], jax.grad(loss)(beta), rtol=1e-10)


@pytest.mark.parametrize("name", dj.hierarchical_names())
def test_expectation_differentiates_layers_and_f(name):
    """In the weights of the layers the gradients pulled back by hand, in f's own the ordinary derivative."""
    est = dj.hierarchical(name)
    inputs, key = jnp.full((5, 1), 0.6), jax.random.key(3)
    weights = jax.tree.map(jnp.asarray, SMOOTH)
    params = est.init(key, dj.Chain(inputs, layers_of(weights)))

    def objective(weights, scale):
        layers = layers_of(weights)
        return dj.expectation(est)(params, key, dj.Chain(inputs, layers), lambda b: scale * smooth_f(b)).sum()

    def outcome(weights):
        layers = layers_of(weights)
        return est.outcome(params, key, dj.Chain(inputs, layers), lambda b: 2.0 * smooth_f(b))

    @jax.jit
    def compiled_once(weights, scale, tangent):
        by_library = jax.value_and_grad(objective, argnums=(0, 1))(weights, scale)
        out = outcome(weights).estimate
        (by_hand,) = jax.vjp(lambda w: outcome(w).logits, weights)[1](out.grad)
        forward = jax.jvp(lambda w: objective(w, scale), (weights,), (tangent,))[1]
        return by_library, out, by_hand, forward

    tangent = jax.tree.map(jnp.ones_like, weights)
    (value, (in_weights, in_scale)), out, by_hand, forward = compiled_once(weights, 2.0, tangent)
    assert value == pytest.approx(float(out.value.sum()))
    assert in_scale == pytest.approx(float(out.value.sum()) / 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), in_weights, by_hand)
    assert forward == pytest.approx(sum(float(leaf.sum()) for leaf in jax.tree.leaves(in_weights)))


def test_auxiliary_outputs():
    def f(b):
        return b[0].sum(-1), {"samples": b[1]}

    layers = [lambda x: x, lambda b: b @ jnp.ones((3, 2))]
    inputs = jnp.zeros((4, 3))
    chain = dj.Chain(inputs, layers)
    for name in dj.hierarchical_names():
        est = dj.hierarchical(name)
        params = est.init(jax.random.key(0), chain)

        @jax.jit
        def both(*args, est=est):
            return est.apply(*args, chain, f, has_aux=True), dj.expectation(est, has_aux=True)(*args, chain, f)

        (out, aux), (value, mean) = both(params, jax.random.key(1))
        draws = {"relax": 1, "rebar": 1, "leg": 1, "bitflip": 1, "ugc": 3}.get(name, 2 * SAMPLES.get(name, 2) - 1)
        assert aux["samples"].shape == (draws, 4, 2)
        np.testing.assert_array_equal(value, out.value)
        np.testing.assert_array_equal(mean["samples"], aux["samples"].mean(axis=0))


def test_layers_that_ignore_their_input_are_broadcast():
    layers = [lambda x: x, lambda b: jnp.zeros(2), lambda b: jnp.zeros((4, 5))]
    for name in dj.hierarchical_names():
        est = dj.hierarchical(name)
        chain = dj.Chain(jnp.zeros((4, 3)), layers)
        params = est.init(jax.random.key(0), chain)
        outcome = lambda key, est=est, params=params, chain=chain: est.outcome(
            params, key, chain, lambda b: b[2].sum(-1)
        )
        out = jax.eval_shape(outcome, jax.random.key(1))
        assert [g.shape for g in out.estimate.grad] == [g.shape for g in out.logits] == [(4, 3), (4, 2), (4, 5)]


def test_inputs_reach_the_first_layer_untouched():
    images = {"pixels": np.zeros((4, 3), np.uint8)}
    layers = [lambda x: (x["pixels"].astype(jnp.float32) / 255) @ jnp.ones((3, 2), jnp.float32)]
    out = dj.hierarchical("disarm").apply((), jax.random.key(0), dj.Chain(images, layers), lambda b: b[0].sum(-1))
    assert out.grad[0].shape == (4, 2)


def apply_to(*layers):
    return dj.hierarchical("disarm").apply((), jax.random.key(0), dj.Chain(0, layers), None)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: dj.hierarchical("vimco"), ValueError, "vimco has no form for chains, because it estimates a bound"),
        (lambda: dj.hierarchical("rodeo"), ValueError, "rodeo has no form for chains, because it calls f itself"),
        (lambda: dj.hierarchical(dj.categorical.disarm_iw()), ValueError, "disarm_iw has no form.*it is for classes"),
        (lambda: dj.hierarchical(dj.disarm), TypeError, r"hierarchical takes an estimator.*call it, disarm\(\)"),
        (lambda: dj.hierarchical(dj.disarm(), num_pairs=2), TypeError, "options go with the name of an estimator"),
        (lambda: dj.hierarchical("arms", num_samples=1), ValueError, "num_samples must be at least 2, got 1"),
        (lambda: dj.hierarchical("arm", num_pairs=0), ValueError, "num_pairs must be at least 1, got 0"),
        (lambda: dj.hierarchical("disarm", pairs=1), TypeError, "'pairs'; accepted: num_pairs"),
        (lambda: dj.hierarchical("relax", later_layers="soft"), ValueError, "'soft'; accepted: relaxed, hard"),
        (lambda: dj.Chain(0, []), TypeError, "non-empty sequence"),
        (
            lambda: dj.hierarchical("disarm").init(jax.random.key(0), jnp.zeros(3)),
            TypeError,
            "several layers and takes",
        ),
        (lambda: dj.disarm().init(jax.random.key(0), dj.Chain(0, [abs])), TypeError, "takes logits, got a Chain"),
        (
            lambda: dj.hierarchical("disarm_taylor").apply((), jax.random.key(0), dj.Chain(0, [abs]), abs),
            TypeError,
            r"has tunables for each of 1 layers: params must come from its init",
        ),
        (
            lambda: dj.hierarchical("disarm_taylor").apply(({},), jax.random.key(0), dj.Chain(0, [abs]), abs),
            TypeError,
            r"has tunables \(scale\): params must come from its init",
        ),
        (
            lambda: dj.hierarchical(dj.hierarchical("disarm")),
            ValueError,
            r"\(disarm\) is for chains already",
        ),
        (lambda: dj.hierarchical(dj.hierarchical("relax")), ValueError, "is for chains already"),
        (lambda: apply_to(lambda x: jnp.zeros(2, int)), TypeError, r"layers\[0\].*int"),
        (lambda: apply_to(lambda x: jnp.zeros((3, 2)), lambda b: jnp.zeros((4, 2))), ValueError, r"layers\[1\]"),
    ],
)
def test_wrong_use(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("name", dj.hierarchical_names())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contract(name, dtype):
    """Under jit, vmap and scan, in narrow dtypes, at saturated logits, keys used once, f a black box if it can be."""
    with jax.enable_x64(False):
        weights = jax.tree.map(lambda w: jnp.asarray(w, dtype), SMOOTH)
        inputs = jnp.asarray([[0.6], [1e4], [-1e4], [-0.0]], dtype)
        est = dj.hierarchical(name)
        f = smooth_f if dj.estimator_info(name).needs_grad else black_box(smooth_f)

        def objective(weights, key):
            layers = layers_of(weights)
            params = est.init(jax.random.key(1), dj.Chain(inputs, layers))
            return dj.expectation(est)(params, key, dj.Chain(inputs, layers), f).sum()

        keys = jax.random.split(jax.random.key(0), 4)

        @jax.jit
        def mapped_and_scanned(weights, keys):
            step = jax.grad(objective)
            scanned = jax.lax.scan(lambda _, key: (None, step(weights, key)), None, keys)[1]
            return jax.vmap(step, in_axes=(None, 0))(weights, keys), scanned

        mapped, scanned = mapped_and_scanned(weights, keys)
        chex.assert_tree_all_finite(mapped)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(mapped))
        if dtype == "bfloat16":  # the one that is left out is a body of the scan by itself
            chex.assert_trees_all_close(mapped, scanned, rtol=0.1, atol=0.1)
            return
        with jax.debug_key_reuse(True):  # which the dtype does not change
            step = jax.jit(jax.grad(objective))
            alone = [step(weights, jax.random.clone(key)) for key in keys]
        for other in (mapped, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)):
            chex.assert_trees_all_close(other, scanned, rtol=1e-4, atol=1e-4)


class Sums:
    """An affine inner that knows its moments."""

    def __call__(self, b):
        return jnp.cumsum(b, axis=-1)

    def moments(self, p, v):
        return self(p), self(v)


def multilinear(table):
    """A table of bits as a function that is also defined between them."""
    num = table.ndim

    def f(bits):
        result = jnp.asarray(table.reshape((1,) * (bits.ndim - 1) + table.shape))
        for i in range(num):
            bit = bits[..., i].reshape(*bits.shape[:-1], *(1,) * (num - 1 - i))
            index = (slice(None),) * (bits.ndim - 1)
            result = (1 - bit) * result[(*index, 0)] + bit * result[(*index, 1)]
        return result

    return f


def chain_function(structure, dims, layers):
    """A function of all bits: a table without structure, or a sum of tables of neighbouring layers."""
    rng = np.random.default_rng(3)
    if structure == "plain":
        f = multilinear(rng.normal(size=(2,) * sum(dims)))
        return lambda b: f(jnp.concatenate(b, axis=-1))
    tables = [multilinear(rng.normal(size=(2,) * sum(dims[max(t - 1, 0) : t + 1]))) for t in range(len(dims))]

    def term(t, below, a, b, logits):
        rows = max(len(b), 1 if below is None else len(below))
        both = [jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in ([b] if below is None else [below, b])]
        smooth = jnp.sum(jnp.tanh(a), axis=-1) if structure == "composed" else 0.0
        return tables[t](jnp.concatenate(both, axis=-1)) + smooth

    inner = [Sums()] * len(dims) if structure == "composed" else None
    own_logits = lambda t, below: layers[t](below if t else jnp.full((1,), 0.6))
    return dj.LayerSum(term, own_logits, inner=inner, stop_layers=True)


def test_an_f_that_is_linear_in_the_last_layer_has_no_variance_there():
    """Given the trunk's bits of the layer before, at which it has to be expanded, its gradient is exact."""
    weights, inputs = jax.tree.map(jnp.asarray, SMOOTH), jnp.full((20, 1), 0.6)
    chain, linear = dj.Chain(inputs, layers_of(weights)), jnp.array([0.7, -1.1])
    f = lambda b: ((1 + b[0] @ jnp.array([2.0, -0.4])) * (b[1] @ linear), b[0])
    est = dj.hierarchical("disarm_taylor")
    params = est.init(jax.random.key(0), chain)
    out, before = est.apply(params, jax.random.key(1), chain, f, has_aux=True)
    factor = 1 + before[0] @ jnp.array([2.0, -0.4])
    expected = factor[:, None] * linear[None] * dj.bernoulli.variance(apply_layer(weights[1], before[0]))
    np.testing.assert_allclose(out.grad[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", ["plain", "sum", "composed"])
@pytest.mark.parametrize("name", ["disarm_midpoint", "disarm_quadratic", "disarm_taylor"])
@pytest.mark.parametrize("chain", CHAINS)
def test_expansions_are_unbiased(chain, name, structure, monkeypatch):
    """All outcomes of Algorithm 1 through `apply`, one per example, for λ far from 1: exact to 1e-10."""
    dims, inputs = CHAINS[chain], np.array([0.6])
    weights, _ = make_chain(dims)
    columns, probabilities = exact.chain_law(numpy_layers(weights, inputs), dims, 1.0)
    possible = probabilities > 0
    columns, probabilities = [column[possible] for column in columns], probabilities[possible]
    layer = iter(range(len(dims)))
    at = {}

    def pairs(key, logits, num_pairs):
        at["t"] = next(layer)
        rows = jnp.asarray(columns[at["t"]])
        return rows[None, :, 0], rows[None, :, at["t"] + 1], jnp.zeros((1, 1))  # DisARM does not use the noise

    def redraw(key, logits, num_samples):
        return jnp.moveaxis(jnp.asarray(columns[at["t"]][:, 1 : at["t"] + 1]), 1, 0)[None]

    layers = layers_of(jax.tree.map(jnp.asarray, weights))
    f = chain_function(structure, dims, layers)
    est = dj.hierarchical(name, init_scale=-1.2 if name == "disarm_midpoint" else (0.7, -1.2))
    rows = jnp.broadcast_to(jnp.asarray(inputs), (len(probabilities), 1))
    params = est.init(jax.random.key(0), dj.Chain(rows, layers))
    plain, key = dj.hierarchical("disarm"), jax.random.key(1)
    with monkeypatch.context() as patch:
        patch.setattr(dj.bernoulli, "antithetic_pairs", pairs)
        patch.setattr(dj.bernoulli, "sample", redraw)
        probed = max(dims) if name == "disarm_quadratic" else 0
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=probed)))
        grads = []
        for sign in signs:
            layer = iter(range(len(dims)))
            patch.setattr(
                jax.random,
                "rademacher",
                lambda key, shape, dtype, sign=sign: jnp.broadcast_to(jnp.asarray(sign, dtype)[: shape[-1]], shape),
            )
            grads.append(jax.jit(lambda rows: est.apply(params, key, dj.Chain(rows, layers), f).grad)(rows))
        layer = iter(range(len(dims)))
        without = jax.jit(lambda rows: plain.apply((), key, dj.Chain(rows, layers), f).grad)(rows)
    grads = [np.mean([g[t] for g in grads], axis=0) for t in range(len(dims))]
    every = np.split(exact.outcomes(sum(dims)), np.cumsum(dims)[:-1], axis=-1)
    values = np.asarray(f(tuple(jnp.asarray(bits)[:, None] for bits in every)))[:, 0]
    truth = jax.grad(exact_expectation)(jax.tree.map(jnp.asarray, weights), lambda _: values, dims, inputs)
    for t in range(len(dims)):
        before = columns[t - 1][:, 0] if t else np.asarray(rows)
        kernel = np.einsum("m,mi,mj->ij", probabilities, before, grads[t])
        np.testing.assert_allclose(kernel, truth[t][0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(probabilities @ grads[t], truth[t][1], rtol=0, atol=1e-10)
        if name != "disarm_midpoint" or dims[t] > 1:  # one bit has no noise of others
            assert np.abs(grads[t] - without[t]).max() > 1e-3  # the control variate is there
