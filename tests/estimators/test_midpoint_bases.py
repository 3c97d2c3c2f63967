"""The control variate at the midpoint on every base made of pairs: bits and classes, expectations and bounds.

All outcomes of a base's samples are given to it at once, one per example of a batch, so that means over them are exact.
The reference below is numpy: it loops over pairs and variables, and averages over the coin of a variable by tossing it.
"""

import dataclasses
import functools
import itertools

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

RNG = np.random.default_rng(11)
WEIGHTS, OFFSET, LINEAR = RNG.normal(size=(15, 4)), RNG.normal(size=4), RNG.normal(size=15)
BIT_LOGITS, CLASS_LOGITS = np.array([0.8, -1.3, 0.4]), RNG.normal(size=(3, 5))
SCALE = 0.7  # λ


def f_of(num_inputs, composed, classes=None):
    """A smooth f of so many numbers, plain or with its structure. Takes `[..., D]`, or `[..., D, C]`."""
    kernel, linear = jnp.asarray(WEIGHTS[:num_inputs]), jnp.asarray(LINEAR[:num_inputs])
    flat = (lambda b: b.reshape(*b.shape[:-2], -1)) if classes else (lambda b: b)
    outer = lambda a, b: jnp.sum(jax.nn.softplus(a), axis=-1) + flat(b) @ linear
    inner = dj.MLP([(kernel, jnp.asarray(OFFSET))], num_classes=classes)
    return dj.Composed(outer, inner) if composed else lambda b: outer(inner(b), b)


def swaps(d):
    """d with the coins of all variables tossed again, `[2^D, ...]`."""
    coins = np.array(list(itertools.product((1.0, -1.0), repeat=len(d))))
    return coins.reshape(*coins.shape, *(1,) * (d.ndim - 1)) * d


@functools.cache
def derivatives(num_inputs, shape):
    """Value, gradient and Hessian of the plain f, of one argument of a shape, compiled."""
    f = f_of(num_inputs, False, shape[-1] if len(shape) == 2 else None)
    return jax.jit(f), jax.jit(jax.grad(f)), jax.jit(jax.hessian(f))


def around(c, d, composed):
    """f, g and H at a midpoint; g and H are averaged over where inner is if the coins are tossed again."""
    num = c.size
    if not composed:
        value, slope, hessian = derivatives(num, c.shape)
        h = np.asarray(hessian(jnp.asarray(c))).reshape(num, num)
        return float(value(jnp.asarray(c))), np.asarray(slope(jnp.asarray(c))).reshape(num), h
    kernel, linear = WEIGHTS[:num], LINEAR[:num]
    a = (c + swaps(d)).reshape(-1, num) @ kernel + OFFSET
    std, middle = a.std(axis=0), a.mean(axis=0)
    above, below = expit(middle + std), expit(middle - std)
    curvature = (above - below) / (2 * np.where(std > 0, std, 1)) * (std > 0)
    value = np.logaddexp(0, middle).sum() + c.reshape(num) @ linear
    return value, 0.5 * kernel @ (above + below) + linear, kernel @ np.diag(curvature) @ kernel.T


def phi(companions, weight):
    """The mean of a bound over sets of companions; without any, the weight itself."""
    return weight if companions is None else np.mean(np.logaddexp(companions, weight))


def noise(b, b_tilde, companions, composed):
    """R_i for each variable of one pair: φ of the quadratic expansion, averaged over coin i, at either odd part."""
    c, d = 0.5 * (b + b_tilde), 0.5 * (b - b_tilde)
    m, g, h = around(c, d, composed)
    found = np.zeros(len(d))
    for i in range(len(d)):
        others = d.copy()
        others[i] = 0
        own, others = (d - others).reshape(-1), others.reshape(-1)
        both = [m + 0.5 * (others + sign * own) @ h @ (others + sign * own) for sign in (1, -1)]
        even = np.mean(both)
        if not composed:
            even -= own @ h @ own  # which a single product with the Hessian does not give
        found[i] = phi(companions, even + g @ others) - phi(companions, even - g @ others)
    return found


def check(est_of, samples, pairs, sets_of, factor, base_grad, truth, probabilities, composed, logits):
    """Mean and variance of the code, and every single estimate, against the reference.

    Args:
      est_of: from a sampler to the base.
      samples: `[N, M, ...]`, all outcomes.
      pairs: index pairs of the samples, with the group or sample that each belongs to.
      sets_of: `(f of all samples of one outcome, group) -> companions` or None.
      factor: `(b, b_tilde) -> h` of one pair, times what the mean over pairs leaves out.
      base_grad: the base's estimate of one outcome from its samples and f there.
      truth: the exact gradient.
      probabilities: `[M]`.
      composed: whether f has structure.
      logits: of one example.
    """
    classes = logits.shape[-1] if logits.ndim == 2 else None
    f = f_of(logits.size, composed, classes)
    base = est_of(lambda params, key, logits: (jnp.asarray(samples), None))
    every = jnp.broadcast_to(jnp.asarray(logits), samples.shape[1:])
    est = dj.midpoint(base, init_scale=SCALE)
    params = est.init(jax.random.key(0), every)
    found = np.asarray(jax.jit(lambda: est.apply(params, jax.random.key(0), every, f))().grad)
    f_b = np.asarray(jax.jit(f)(jnp.asarray(samples)))
    expected = np.zeros_like(found)
    for m in np.flatnonzero(probabilities > 0):
        expected[m] = base_grad(samples[:, m], f_b[:, m])
        for j, k, group in pairs:
            b, b_tilde = samples[j, m], samples[k, m]
            r = noise(b, b_tilde, sets_of(f_b[:, m], group), composed)
            h = factor(b, b_tilde)
            expected[m] -= SCALE * 0.5 * r.reshape(-1, *(1,) * (h.ndim - 1)) * h / len(pairs)
    possible = probabilities > 0
    np.testing.assert_allclose(found[possible], expected[possible], rtol=0, atol=1e-11)
    mean, variance = exact.moments(probabilities[possible], found[possible])
    np.testing.assert_allclose(mean, truth, rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(probabilities[possible], expected[possible])[1], rtol=1e-9)


def no_companions(f_b, group):
    return None


def copula_pair_weight(p, num):
    pair = exact.copula_table(p, num).sum(axis=tuple(range(2, num)))
    return p * (1 - p) / pair[1, 0]


BITS = {
    "reinforce_loo": (exact.sample_law, lambda b, f_b: exact.reinforce_loo(BIT_LOGITS[:2], b, f_b), lambda p, n: 1.0),
    "arms": (exact.copula_law, lambda b, f_b: exact.arms(BIT_LOGITS[:2], b, f_b), copula_pair_weight),
    "arms_interpolated": (
        functools.partial(exact.mixture_law, beta=0.4),
        lambda b, f_b: exact.arms_interpolated(BIT_LOGITS[:2], b, f_b, 0.4),
        lambda p, n: p * (1 - p) / (0.4 * p * (1 - p) / copula_pair_weight(p, n) + 0.6 * p * (1 - p)),
    ),
}


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("name", BITS)
def test_groups_of_three(name, composed):
    law, base_grad, weight = BITS[name]
    logits = BIT_LOGITS[:2]
    samples, probabilities = law(logits, 3)
    weights = np.array([weight(p, 3) for p in expit(logits)])
    options = {"init_beta": 0.4} if "interpolated" in name else {}
    est_of = lambda draw: dataclasses.replace(dj.make_estimator(name, num_samples=3, **options), sampler=draw)
    truth = exact.gradient(logits, lambda b: np.asarray(f_of(2, False)(jnp.asarray(b))))
    pairs = [(0, 1, 0), (0, 2, 0), (1, 2, 0)]
    factor = lambda b, b_tilde: (b - b_tilde) * weights
    check(est_of, samples, pairs, no_companions, factor, base_grad, truth, probabilities, composed, logits)


def bound_truth(logits, num, f, gradient):
    """The exact gradient of the bound of so many samples: of one sample's logits, times their number."""
    tiled = np.tile(logits, (num, *(1,) * (logits.ndim - 1)))

    def bound(b):
        split = b.reshape(*b.shape[: b.ndim - logits.ndim], num, *logits.shape)
        return exact.bound(np.moveaxis(np.asarray(f(jnp.asarray(split))), -1, 0))

    return num * gradient(tiled, bound)[: len(logits)]


def companions_of(configurations, num):
    """From f at [b_1, …, b_K, b̃_1, …, b̃_K] to the log-weights of each set of companions of pair k."""

    def sets_of(f_b, k):
        halves = f_b[:num], f_b[num:]
        return np.array(
            [
                np.logaddexp.reduce([halves[choice[j]][j] for j in range(num) if j != k] or [-np.inf])
                for choice in exact.companions(configurations, k, num)
            ]
        )

    return sets_of


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize(
    ("num", "dim", "configurations"),
    [(1, 3, "paper"), (2, 2, "paper"), (3, 1, "cyclic"), (3, 1, "all"), (2, 2, "all"), (2, 2, "cyclic")],
)
def test_bounds_of_bits(num, dim, configurations, composed):
    logits = BIT_LOGITS[:dim]
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num)
    options = {"num_pairs": num, "configurations": configurations}
    est_of = lambda draw: dataclasses.replace(dj.multisample_disarm(**options), sampler=draw)

    def base_grad(samples, f_b):
        arrays = samples[:num], samples[num:], f_b[:num], f_b[num:]
        return exact.configured_multisample_disarm(logits, *arrays, configurations)

    truth = bound_truth(logits, num, f_of(dim, False), exact.gradient)
    pairs = [(k, num + k, k) for k in range(num)]
    factor = lambda b, b_tilde: num * (b - b_tilde) * expit(np.abs(logits))
    samples, sets_of = np.concatenate([b, b_tilde]), companions_of(configurations, num)
    check(est_of, samples, pairs, sets_of, factor, base_grad, truth, probabilities, composed, logits)


@pytest.mark.parametrize("composed", [False, True])
def test_bounds_of_groups(composed):
    """Two samples of the bound, each a group of three: the companions are the other group's, in three sets."""
    logits = BIT_LOGITS[:2]
    group, probabilities = exact.copula_law(logits, 3)
    first, second = np.divmod(np.arange(len(probabilities) ** 2), len(probabilities))
    samples = np.stack([group[:, first], group[:, second]], axis=1)  # [n, K, M, D]
    est = dj.make_estimator("multisample_arms", num_samples=2, group_size=3)
    est_of = lambda draw: dataclasses.replace(est, sampler=draw)
    base_grad = lambda b, f_b: exact.multisample_arms(logits, b.reshape(3, 2, 2), f_b.reshape(3, 2))
    truth = bound_truth(logits, 2, f_of(2, False), exact.gradient)
    pairs = [(2 * i + k, 2 * j + k, k) for i, j in ((0, 1), (0, 2), (1, 2)) for k in range(2)]
    factor = lambda b, b_tilde: 2 * (b - b_tilde) * np.array([copula_pair_weight(p, 3) for p in expit(logits)])
    sets_of = lambda f_b, k: f_b.reshape(3, 2)[:, 1 - k]
    both = probabilities[first] * probabilities[second]
    check(est_of, samples.reshape(6, -1, 2), pairs, sets_of, factor, base_grad, truth, both, composed, logits)


def class_factor(name, logits, times=1):
    """h of a pair, from the estimators as the paper writes them."""
    of_pairs = exact_classes.PAIRS[name]

    def factor(z, z_tilde):
        return times * of_pairs(logits, z[None], z_tilde[None], np.array([2.0]), np.array([0.0]))[0]

    return functools.cache(lambda *key: factor(*(np.array(part).reshape(logits.shape) for part in key)))


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("name", exact_classes.PAIRS)
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 5), (2, 4)])
def test_classes(name, shape, composed):
    logits = CLASS_LOGITS[: shape[0], : shape[1]]
    z, z_tilde, probabilities = exact_classes.pair_law(name, logits)
    est_of = lambda draw: dataclasses.replace(dj.categorical.make_estimator(name), sampler=draw)
    f = f_of(logits.size, False, shape[1])
    truth = exact_classes.gradient(logits, lambda z: np.asarray(f(jnp.asarray(z))))
    cached = class_factor(name, logits)
    factor = lambda z, z_tilde: cached(tuple(z.reshape(-1)), tuple(z_tilde.reshape(-1)))
    base_grad = lambda b, f_b: 0.5 * (f_b[0] - f_b[1]) * factor(*b)
    samples = np.stack([z, z_tilde])
    check(est_of, samples, [(0, 1, 0)], no_companions, factor, base_grad, truth, probabilities, composed, logits)


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("coupling", ["iw", "tree"])
def test_bounds_of_classes(coupling, composed):
    logits, num = CLASS_LOGITS[:2, :3], 2
    name = f"disarm_{coupling}"
    z, z_tilde, probabilities = exact.copies(exact_classes.pair_law(name, logits), num)
    est = dj.categorical.multisample_disarm(num_pairs=num, coupling=coupling)
    est_of = lambda draw: dataclasses.replace(est, sampler=draw)
    cached = class_factor(name, logits)
    factor = lambda z, z_tilde: num * cached(tuple(z.reshape(-1)), tuple(z_tilde.reshape(-1)))
    sets_of = companions_of("paper", num)

    def base_grad(samples, f_b):
        total = 0.0
        for k in range(num):
            sets = sets_of(f_b, k)
            difference = phi(sets, f_b[k]) - phi(sets, f_b[num + k])
            total = total + 0.5 * difference * factor(samples[k], samples[num + k]) / num
        return total

    def gradient(logits, bound):
        return exact_classes.gradient(logits, bound)

    truth = bound_truth(logits, num, f_of(logits.size, False, 3), gradient)
    pairs = [(k, num + k, k) for k in range(num)]
    samples = np.concatenate([z, z_tilde])
    check(est_of, samples, pairs, sets_of, factor, base_grad, truth, probabilities, composed, logits)


def test_the_sampled_even_part_would_be_biased():
    """With ½(ℓ(b) + ℓ(b̃)) for m_i, which knows coin i, the mean is wrong by a hundred times the tolerance."""
    logits, num = BIT_LOGITS[:2], 2
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num)
    f_b, f_b_tilde = (np.asarray(jax.jit(f_of(2, False))(jnp.asarray(x))) for x in (b, b_tilde))
    means = {}
    for choice in ("right", "biased"):
        term = np.zeros((len(probabilities), 2))
        for m, k in itertools.product(np.flatnonzero(probabilities > 0), range(num)):
            sets = companions_of("paper", num)(np.concatenate([f_b[:, m], f_b_tilde[:, m]]), k)
            pair = b[k, m], b_tilde[k, m]
            r = noise(*pair, sets, False)
            if choice == "biased":
                even, (_, g, _) = 0.5 * (f_b[k, m] + f_b_tilde[k, m]), around(0.5 * sum(pair), None, False)
                odd = g * (pair[0] - pair[1]) / 2
                half = odd.sum() - odd
                r = np.array([phi(sets, even + h) - phi(sets, even - h) for h in half])
            term[m] += 0.5 * r * (pair[0] - pair[1]) * expit(np.abs(logits))
        means[choice] = np.abs(probabilities @ term).max()
    assert means["right"] < 1e-12
    assert means["biased"] > 1e-8


def test_one_pair_of_the_bound_is_the_form_for_an_expectation():
    logits, key, f = jnp.asarray(np.tile(BIT_LOGITS, (6, 1))), jax.random.key(3), f_of(3, True)
    of_bound, of_mean = dj.make_estimator("multisample_disarm_midpoint"), dj.disarm_midpoint()
    for found, expected in zip(of_bound.apply((), key, logits, f), of_mean.apply((), key, logits, f), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["disarm_iw", "disarm_sb", "disarm_tree"])
def test_two_classes_are_bits(name):
    """Of two classes with the logits 0 and α, the second is a bit of logit α, and its gradient that of the bit."""
    b, b_tilde, _ = exact.pair_law(BIT_LOGITS)
    as_classes = lambda b: jnp.stack([1 - jnp.asarray(b), jnp.asarray(b)], axis=-1)
    samples = jnp.stack([as_classes(b), as_classes(b_tilde)])
    logits = jnp.broadcast_to(jnp.asarray(BIT_LOGITS), b.shape)
    for composed in (False, True):
        f = f_of(3, composed)
        of_classes = f.inner if composed else None
        if composed:
            kernel = jnp.stack([jnp.zeros((3, 4)), jnp.asarray(WEIGHTS[:3])], axis=1).reshape(6, 4)
            inner = dj.MLP([(kernel, jnp.asarray(OFFSET))], num_classes=2)
            of_classes = dj.Composed(lambda a, z, f=f: f.outer(a, z[..., 1]), inner)
        else:
            of_classes = lambda z, f=f: f(z[..., 1])
        draw = lambda params, key, logits: (samples, None)
        est = dj.midpoint(dataclasses.replace(dj.categorical.make_estimator(name), sampler=draw), init_scale=SCALE)
        two = jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
        found = est.apply(est.init(jax.random.key(0), two), jax.random.key(0), two, of_classes)
        stack = lambda params, key, logits: (jnp.stack([jnp.asarray(b), jnp.asarray(b_tilde)]), None)
        bits = dj.midpoint(dataclasses.replace(dj.disarm(), sampler=stack), init_scale=SCALE)
        expected = bits.apply(bits.init(jax.random.key(0), logits), jax.random.key(0), logits, f)
        np.testing.assert_allclose(found.grad[..., 1], expected.grad, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.grad[..., 0], -expected.grad, rtol=0, atol=1e-12)


def stacked_pairs(num):
    def law(logits):
        b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num)
        return np.concatenate([b, b_tilde]), probabilities

    return law


ROWS = {
    "disarm": (dj.disarm(), stacked_pairs(1)),
    "two pairs": (dj.disarm(num_pairs=2), stacked_pairs(2)),
    "arms": (dj.arms(num_samples=3), lambda logits: exact.copula_law(logits, 3)),
    "reinforce_loo": (dj.reinforce_loo(num_samples=3), lambda logits: exact.sample_law(logits, 3)),
    "bound": (dj.multisample_disarm(num_pairs=2), stacked_pairs(2)),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_scale_of_a_row_comes_from_the_others(name):
    """Two rows of two bits, all outcomes of both: no bias, and λ is neither 0 nor 1 throughout."""
    base, law = ROWS[name]
    logits = np.stack([BIT_LOGITS[:2], -BIT_LOGITS[1:]])
    possible = [(samples[:, p > 0], p[p > 0]) for samples, p in map(law, logits)]
    first, second = (index.reshape(-1) for index in np.indices([len(p) for _, p in possible]))
    probabilities = possible[0][1][first] * possible[1][1][second]
    samples = np.stack([possible[0][0][:, first], possible[1][0][:, second]], axis=2).swapaxes(0, 1)
    f = f_of(2, False)

    @functools.partial(jax.jit, static_argnums=1)
    def grads(samples, scale):
        def grad(samples):
            drawn = dataclasses.replace(base, sampler=lambda params, key, logits: (samples, None))
            est = dj.midpoint(drawn, init_scale=scale)
            params = est.init(jax.random.key(0), jnp.asarray(logits))
            return est.apply(params, jax.random.key(0), jnp.asarray(logits), f).grad

        return jax.vmap(grad)(samples)

    found, without, whole = (np.asarray(grads(samples, scale)) for scale in (None, 0.0, 1.0))
    if name == "bound":
        truth = np.stack([bound_truth(row, 2, f, exact.gradient) for row in logits])
    else:
        truth = np.stack([exact.gradient(row, lambda b: np.asarray(f(jnp.asarray(b)))) for row in logits])
    np.testing.assert_allclose(exact.moments(probabilities, found)[0], truth, rtol=0, atol=1e-10)
    assert np.abs(found - without).max() > 1e-3
    if name == "disarm":  # elsewhere each pair of a row has a scale of its own
        moved = np.abs(whole - without) > 1e-9
        scales = (found - without)[moved] / (whole - without)[moved]
        assert np.all((scales >= 0) & (scales <= 1 + 1e-9))
        assert 0.1 < scales.mean() < 0.99


@pytest.mark.parametrize("of_classes", [False, True])
def test_a_single_row_predicts_another_pair(of_classes):
    """All outcomes of one row, each on its own: no bias, λ neither 0 nor 1, and f is called at bits or one-hots."""
    if of_classes:
        logits, base = CLASS_LOGITS[:2, :3], dj.categorical.disarm_iw()
        b, b_tilde, probabilities = exact_classes.pair_law("disarm_iw", logits)
    else:
        logits, base = BIT_LOGITS, dj.disarm()
        b, b_tilde, probabilities = exact.pair_law(logits)
    f = f_of(logits.size, True, 3 if of_classes else None)

    def grad(pair, scale):
        drawn = dataclasses.replace(base, sampler=lambda params, key, logits: (pair, None))
        est = dj.midpoint(drawn, init_scale=scale)
        params = est.init(jax.random.key(0), jnp.asarray(logits))
        return est.apply(params, jax.random.key(0), jnp.asarray(logits), f).grad

    samples = jnp.stack([jnp.asarray(b), jnp.asarray(b_tilde)], axis=1)
    found, without, whole = (np.asarray(jax.vmap(lambda s, k=k: grad(s, k))(samples)) for k in (None, 0, 1))
    gradient = exact_classes.gradient if of_classes else exact.gradient
    truth = gradient(logits, lambda b: np.asarray(f(jnp.asarray(b))))
    np.testing.assert_allclose(exact.moments(probabilities, found)[0], truth, rtol=0, atol=1e-10)
    moved = np.abs(whole - without) > 1e-9
    scales = (found - without)[moved] / (whole - without)[moved]
    assert np.all((scales >= 0) & (scales <= 1 + 1e-9))
    assert 0.1 < scales.mean() < 0.99


def test_broken_rows_do_not_spoil_the_others():
    """f is −∞ or NaN in one row: the gradients of the others are those without it."""
    logits, key = jnp.asarray(np.tile(BIT_LOGITS, (5, 1))), jax.random.key(1)
    f = f_of(3, False)
    bad = jnp.array([0.0, 0.0, jnp.nan, 0.0, 0.0])
    found = dj.disarm_midpoint().apply((), key, logits, lambda b: f(b) + bad[None]).grad
    assert np.all(np.isfinite(np.asarray(found)[[0, 1, 3, 4]]))


def hostile(weights):
    """A sum of steep functions, whose slope between bits says next to nothing of their differences."""
    return lambda b: jnp.sum(jnp.cos(3 * (b @ weights)), axis=-1)


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_never_much_more_variance_than_the_base(rows):
    """20,000 draws of an f that the slope predicts badly: λ = 1 multiplies the variance, the default does not."""
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(20, 6)))
    logits, key, f = jnp.zeros((rows, 20)) + 0.3, jax.random.key(1), hostile(weights)
    total = lambda est: dj.gradient_variance(est)(est.init(key, logits), jax.random.key(2), logits, f, 20_000).total
    base = total(dj.disarm())
    assert total(dj.disarm_midpoint(init_scale=1.0)) > 3 * base
    assert total(dj.disarm_midpoint()) < (1.25 if rows == 8 else 1.4) * base


def test_bfloat16_has_no_rounding_bias():
    """All pairs in bfloat16, averaged in float64: within 1% of the gradient, of one bound and one expectation."""
    b, b_tilde, probabilities = exact.pair_law(BIT_LOGITS.astype(jnp.bfloat16).astype(float))
    stack = jnp.asarray(np.stack([b, b_tilde]), jnp.bfloat16)
    logits = jnp.broadcast_to(jnp.asarray(BIT_LOGITS, jnp.bfloat16), b.shape)
    kernel, offset = jnp.asarray(WEIGHTS[:3], jnp.bfloat16), jnp.asarray(OFFSET, jnp.bfloat16)
    f = dj.Composed(lambda a, b: jnp.sum(jax.nn.softplus(a), axis=-1), dj.MLP([(kernel, offset)]))
    exactly = lambda b: np.logaddexp(0, b @ np.asarray(kernel, float) + np.asarray(offset, float)).sum(-1)
    truth = exact.gradient(BIT_LOGITS.astype(jnp.bfloat16).astype(float), exactly)
    for base in (dj.disarm(), dj.multisample_disarm()):
        drawn = dataclasses.replace(base, sampler=lambda params, key, logits: (stack.astype(jnp.float32), None))
        est = dj.midpoint(drawn, init_scale=1.0)
        grad = est.apply(est.init(jax.random.key(0), logits), jax.random.key(0), logits, f).grad
        mean = probabilities @ np.asarray(grad, float)
        np.testing.assert_allclose(mean, truth, rtol=0, atol=0.01 * np.abs(truth).max())


@pytest.mark.parametrize("name", ["arm", "leg", "bitflip", "ugc", "vimco", "naive_multisample_disarm", "reinforce"])
def test_what_is_not_made_of_pairs_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"exchangeable pairs, got {name}; accepted: disarm, "):
        dj.midpoint(dj.make_estimator(name))
