"""Through `apply`: the samples that f receives have the exact law, and `grad` is the papers' formula of them.

The stack comes back as auxiliary output. Its law is tested by χ² against the enumerated coupling (a wrong sampler
fails), and `grad` and `value` are computed again from it in float64 numpy to 1e-12 (a wrong formula fails).
"""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

LOGITS = np.array([0.8, -1.3])
F = exact.table_function(2)
DRAWS = 200_000
# Of about twenty χ² tests with fixed seeds, none should fall below this by chance.
SMALLEST_P = 1e-4


def halves(formula, mean_of_pairs):
    """A formula of pairs for a stack [b; b̃], one estimate per pair averaged or all pairs at once."""

    def grad(logits, stack, f_stack):
        g = formula(logits, *np.split(stack, 2), *np.split(f_stack, 2))
        return g.mean(axis=0) if mean_of_pairs else g

    return grad


def interpolated_pairs(logits, stack, f_stack):
    b, b_tilde, f_b, f_b_tilde = *np.split(stack, 2), *np.split(f_stack, 2)
    pairs = [exact.interpolated(logits, b[k], b_tilde[k], f_b[k], f_b_tilde[k], 0.3) for k in range(len(b))]
    return np.mean(pairs, axis=0)


def vimco_repeats(logits, stack, f_stack):
    repeats = [exact.vimco(logits, stack[k : k + 2], f_stack[k : k + 2], "geometric") for k in (0, 2)]
    return np.mean(repeats, axis=0)


def expanded(formula, scale):
    """A formula applied to f less its expansion at the mean, f multilinear; the gradient of the expansion is added."""

    def grad(logits, stack, f_stack):
        f_p, slope, hessian = exact.multilinear_expansion(logits, exact.table_function(2))
        h = exact.expansion(logits, stack, f_p, slope, hessian, scale)
        p = expit(logits)
        diagonal = 0.5 * scale[1] * np.diag(hessian) * (1 - 2 * p)
        return formula(logits, stack, f_stack - h) + (scale[0] * slope + diagonal) * p * (1 - p)

    return grad


def expanded_bound(formula, linear, scale):
    """The formula of a bound, less the noise that a linear one makes of the expansion on the same samples."""

    def grad(logits, stack, f_stack):
        noise = expanded(linear, scale)(logits, stack, np.zeros_like(f_stack))
        return formula(logits, stack, f_stack) + noise

    return grad


def crossed(logits, stack, f_stack):
    """Two pairs, each with the mean slope of the multilinear f at the two samples of the other."""
    f, p, total = exact.table_function(2), expit(logits), 0.0
    for k in (0, 1):
        own, other = stack[[k, k + 2]], stack[[1 - k, 3 - k]]
        slope = np.zeros(stack.shape[1:])
        for i in range(2):
            high, low = other.copy(), other.copy()
            high[..., i], low[..., i] = 1, 0
            slope[:, i] = np.mean(f(high) - f(low), axis=0)
        values = f(own) - 0.7 * np.sum(slope * (own - p), axis=-1)
        total = total + exact.disarm(logits, *own, *values) + 0.7 * slope * p * (1 - p)
    return total / 2


def between(logits, stack, f_stack):
    """A pair, with the slope of the multilinear f of two bits at its midpoint; λ = 0.7."""
    f, c, slope = exact.table_function(2), stack.mean(axis=0), np.zeros(stack.shape[1:])
    for i in range(2):
        for other in (0, 1):
            high, low = np.full((2, *c.shape), other, float)
            high[..., i], low[..., i] = 1, 0
            weight = c[:, 1 - i] if other else 1 - c[:, 1 - i]
            slope[:, i] += weight * (f(high) - f(low))
    values = f_stack - 0.7 * np.sum(slope * (stack - c), axis=-1)
    return exact.disarm(logits, *stack, *values) + 0.35 * slope * (stack[0] != stack[1]) * expit(np.abs(logits))


def mean_value(f_stack):
    return f_stack.mean(axis=0)


def mean_of_draws(num_draws):
    """Flips do not count."""
    return lambda f_stack: f_stack[:num_draws].mean(axis=0)


def bound_of_pairs(f_stack):
    return 0.5 * (exact.bound(f_stack[: len(f_stack) // 2]) + exact.bound(f_stack[len(f_stack) // 2 :]))


def bound_of_repeats(f_stack):
    return 0.5 * (exact.bound(f_stack[:2]) + exact.bound(f_stack[2:]))


def slopes(b):
    """∇f of the multilinear extension of `F`, which is what `capture` evaluates."""
    return np.stack([F(with_bit(b, i, 1)) - F(with_bit(b, i, 0)) for i in range(b.shape[-1])], axis=-1)


def with_bit(b, i, bit):
    b = b.copy()
    b[..., i] = bit
    return b


def flips(one_draw):
    """A formula of the bit that was flipped in the last point of the stack, for each example its own."""

    def grad(logits, stack, f_stack):
        by_bit = np.stack([one_draw(logits, *stack[:-1], i, F) for i in range(len(logits))])
        which = np.argmax(stack[0] != stack[-1], axis=-1)
        return np.take_along_axis(by_bit, which[None, :, None], axis=0)[0]

    return grad


def copula_law(logits, rows):
    return exact.copula_law(logits, rows)[1]


def by_two(array):
    """A stack of n K samples as `[n, K, ...]`, K = 2."""
    return array.reshape(-1, 2, *array.shape[1:])


def law_of_two_groups(logits, rows):
    """Row 2l + k is sample l of group k."""
    tables = [exact.copula_table(p, rows // 2) for p in expit(logits)]
    bits = exact.outcomes(rows * len(logits)).reshape(-1, rows // 2, 2, len(logits)).astype(int)
    each = [tables[i][tuple(bits[:, :, k, i].T)] for k in range(2) for i in range(len(logits))]
    return np.prod(each, axis=0)


def law_of_all_flips(logits, rows):
    """b, and b with each of its bits flipped."""
    bits = exact.outcomes(rows * len(logits)).reshape(-1, rows, len(logits))
    possible = [np.all(bits[:, 1 + i] == exact.flip(bits[:, 0], i), axis=-1) for i in range(len(logits))]
    return exact.probability(logits, bits[:, 0]) * np.all(possible, axis=0)


def law_of_one_flip(logits, rows):
    """b, its antithetic partner if there are three rows, and b with one bit flipped, each equally often."""
    bits = exact.outcomes(rows * len(logits)).reshape(-1, rows, len(logits))
    drawn = row_law(logits, 1.0, rows - 1).reshape(-1, 1)
    drawn = np.broadcast_to(drawn, (len(drawn), 2 ** len(logits))).ravel()
    flipped = [np.all(bits[:, -1] == exact.flip(bits[:, 0], i), axis=-1) for i in range(len(logits))]
    return drawn * np.any(flipped, axis=0) / len(logits)


# name, options, law of the stack (a function of logits and N, or β of the pairs in rows k and k + N/2), N,
# grad and value from the stack
CASES = [
    ("reinforce", {"num_samples": 2}, 0.0, 2, exact.reinforce, mean_value),
    ("reinforce_loo", {}, 0.0, 2, exact.reinforce_loo, mean_value),
    ("reinforce_loo", {"num_samples": 4}, 0.0, 4, exact.reinforce_loo, mean_value),
    ("disarm", {}, 1.0, 2, halves(exact.disarm, True), mean_value),
    ("disarm", {"num_pairs": 2}, 1.0, 4, halves(exact.disarm, True), mean_value),
    ("arm", {"num_pairs": 2}, 1.0, 4, None, mean_value),
    ("interpolated", {"num_pairs": 2, "init_beta": 0.3}, 0.3, 4, interpolated_pairs, mean_value),
    ("vimco", {"num_samples": 2, "repeats": 2, "baseline": "geometric"}, 0.0, 4, vimco_repeats, bound_of_repeats),
    ("multisample_disarm", {"num_pairs": 2}, 1.0, 4, halves(exact.multisample_disarm, False), bound_of_pairs),
    (
        "naive_multisample_disarm",
        {"num_pairs": 2},
        1.0,
        4,
        halves(exact.naive_multisample_disarm, False),
        bound_of_pairs,
    ),
    ("muprop", {"init_scale": (0.7, 0)}, 0.0, 1, expanded(exact.reinforce, (0.7, 0.0)), mean_value),
    (
        "disarm_taylor",
        {"num_pairs": 2, "init_scale": (0.7, 0)},
        1.0,
        4,
        expanded(halves(exact.disarm, True), (0.7, 0.0)),
        mean_value,
    ),
    (
        "disarm_quadratic",
        {"init_scale": (0.7, 1.2), "probes": 2},
        1.0,
        2,
        expanded(halves(exact.disarm, True), (0.7, 1.2)),
        mean_value,
    ),
    (
        "multisample_disarm_quadratic",
        {"num_pairs": 2, "init_scale": (0.7, 1.2), "probes": 2},
        1.0,
        4,
        expanded_bound(halves(exact.multisample_disarm, False), halves(exact.disarm, True), (0.7, 1.2)),
        bound_of_pairs,
    ),
    (
        "arms_quadratic",
        {"num_samples": 3, "init_scale": (0.7, 1.2), "probes": 2},
        copula_law,
        3,
        expanded(exact.arms, (0.7, 1.2)),
        mean_value,
    ),
    ("disarm_midpoint", {"init_scale": 0.7}, 1.0, 2, between, mean_value),
    ("reinforce_loo_midpoint", {}, 0.0, 2, None, mean_value),  # their formulas are in test_midpoint_bases.py
    ("arms_midpoint", {}, copula_law, 4, None, mean_value),
    ("multisample_disarm_midpoint", {"num_pairs": 2}, 1.0, 4, None, bound_of_pairs),
    ("disarm_taylor_cross", {"init_scale": 0.7}, 1.0, 4, crossed, mean_value),
    ("rebar", {}, 0.0, 1, None, mean_value),
    ("relax", {}, 0.0, 1, None, mean_value),
    ("arms", {"num_samples": 2}, 1.0, 2, exact.arms, mean_value),
    ("arms", {"num_samples": 3}, copula_law, 3, exact.arms, mean_value),
    ("arms", {}, copula_law, 4, exact.arms, mean_value),
    (
        "arms_interpolated",
        {"num_samples": 3, "init_beta": 0.3},
        lambda logits, rows: exact.mixture_law(logits, rows, 0.3)[1],
        3,
        lambda logits, b, f_b: exact.arms_interpolated(logits, b, f_b, 0.3),
        mean_value,
    ),
    (
        "multisample_arms",
        {"num_samples": 2, "group_size": 2},
        1.0,
        4,
        halves(exact.multisample_disarm, False),
        bound_of_pairs,
    ),
    (
        "multisample_arms",
        {"num_samples": 2, "group_size": 3},
        law_of_two_groups,
        6,
        lambda logits, b, f_b: exact.multisample_arms(logits, by_two(b), by_two(f_b)),
        lambda f_b: np.mean([exact.bound(f) for f in by_two(f_b)], axis=0),
    ),
    ("double_cv", {}, 0.0, 2, lambda a, b, f_b: exact.double_cv(a, b, f_b, slopes(b), -0.5), mean_value),
    ("rodeo", {"hidden": 3}, 0.0, 2, None, mean_value),
    ("leg", {}, law_of_all_flips, 3, lambda a, b, f_b: exact.leg(a, b[0], F), mean_of_draws(1)),
    ("bitflip", {}, law_of_one_flip, 2, flips(exact.bitflip), mean_of_draws(1)),
    ("ugc", {}, law_of_one_flip, 3, flips(exact.ugc), mean_of_draws(2)),
    ("straight_through", {}, 0.0, 1, lambda a, b, f_b: exact.straight_through(a, slopes(b[0])), mean_value),
    ("gumbel_sigmoid", {}, 0.0, 1, None, mean_value),
    ("reinmax", {}, 0.0, 1, lambda a, b, f_b: exact.reinmax(a, b[0], slopes(b[0])), mean_value),
]


def test_every_estimator_is_here():
    assert {case[0] for case in CASES} == set(dj.estimator_names())


def row_law(logits, beta, rows):
    """P of all bits `[rows, D]` jointly, in the order of `exact.outcomes(rows * D)`."""
    if callable(beta):
        return beta(logits, rows)
    bits = exact.outcomes(rows * len(logits)).reshape(-1, rows, len(logits)).astype(int)
    if rows == 1:
        return exact.probability(logits, bits[:, 0])
    tables, half = exact.pair_tables(logits, beta), rows // 2
    each = [tables[i][bits[:, k, i], bits[:, k + half, i]] for k in range(half) for i in range(len(logits))]
    return np.prod(each, axis=0)


def capture(name, options, dtype, table, draws=DRAWS, logits=LOGITS, samples_only=False):
    """One call of `apply` with a large batch: the bits that f received, and the estimate."""
    est = dj.make_estimator(name, **options)
    logits = jnp.broadcast_to(jnp.asarray(logits, dtype), (draws, len(logits)))
    values = jnp.asarray(table.reshape((2,) * logits.shape[1]), jnp.float64 if dtype == jnp.float64 else jnp.float32)

    def apply(params, logits):
        stacks = []

        def f(b):
            stacks.append(b)
            result = values[None, None]
            for i in range(b.shape[-1]):  # multilinear, so that it is defined at relaxed points too
                bit = b[..., i].astype(values.dtype).reshape(*b.shape[:-1], *(1,) * (b.shape[-1] - 1 - i))
                result = (1 - bit) * result[:, :, 0] + bit * result[:, :, 1]
            return result, b

        out, samples = est.apply(params, jax.random.key(8), logits, f, has_aux=True)
        # where f is differentiated, what it receives is known to that derivative only
        return samples if dj.estimator_info(name).needs_grad else stacks[0], samples, out

    stack, samples, out = jax.jit(apply)(est.init(jax.random.key(7), logits), logits)
    if samples_only:
        np.testing.assert_array_equal(samples, stack[: len(samples)])
        stack = samples
    return np.asarray(stack.astype(jnp.float32)), out


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "options", "beta", "rows", "formula", "value"), CASES)
def test_law_and_formula(name, options, beta, rows, formula, value):
    f = exact.table_function(2)
    stack, out = capture(name, options, jnp.float64, f.table)
    assert stack.shape == (rows, DRAWS, 2)
    bits = np.moveaxis(stack, 1, 0).reshape(DRAWS, -1)
    assert exact.chi_square(bits, row_law(LOGITS, beta, rows)) > SMALLEST_P
    f_stack = f(stack)
    np.testing.assert_allclose(out.value, value(f_stack), rtol=0, atol=1e-12)
    if formula is not None:
        np.testing.assert_allclose(out.grad, formula(LOGITS, stack, f_stack), rtol=0, atol=1e-12)
    assert out.grad.dtype == out.value.dtype == jnp.float64


@pytest.mark.usefixtures("x64")
def test_arm_uses_the_noise_that_made_its_pair():
    """u is read off grad = ½ Δ (2u − 1); it must be uniform and reproduce the pair."""
    f = exact.table_function(2)
    stack, out = capture("arm", {}, jnp.float64, f.table)
    delta = f(stack[0]) - f(stack[1])
    seen = delta != 0
    u = 0.5 + np.asarray(out.grad)[seen] / delta[seen, None]
    np.testing.assert_array_equal(stack[0][seen], 1 - u < expit(LOGITS))
    np.testing.assert_array_equal(stack[1][seen], u < expit(LOGITS))
    # The pair is the same in no coordinate of which u is uniform a priori, so look at the law given each outcome.
    m = np.minimum(expit(LOGITS), expit(-LOGITS))
    for i in range(2):
        above = u[stack[0][seen][:, i] > stack[1][seen][:, i], i]
        assert stats.kstest(above, stats.uniform(1 - m[i], m[i]).cdf).pvalue > SMALLEST_P


@pytest.mark.usefixtures("x64")
def test_arm_averages_its_pairs():
    """Each with its own noise, which the public sampler draws again from the same key."""
    f = exact.table_function(2)
    stack, out = capture("arm", {"num_pairs": 3}, jnp.float64, f.table, draws=100)
    logits = jnp.broadcast_to(LOGITS, (100, 2))
    b, b_tilde, noise = dj.bernoulli.antithetic_pairs(jax.random.key(8), logits, 3)
    np.testing.assert_array_equal(stack, np.concatenate([b, b_tilde]))
    np.testing.assert_allclose(out.grad, exact.arm(expit(noise), f(b), f(b_tilde)).mean(axis=0), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_rodeo_reads_its_tunables_as_documented():
    est = dj.make_estimator("rodeo", num_samples=3, hidden=4)
    params = jax.tree.map(lambda p: p + 0.3, est.init(jax.random.key(7), jnp.asarray(LOGITS)))
    params = params | {"baseline_scale": 0.7, "control_scale": -1.2}

    def network(step, f_b):
        net = jax.tree.map(np.asarray, params["network"])
        hidden = np.stack([step, f_b], axis=-1) @ net["hidden"]["kernel"] + net["hidden"]["bias"]
        return np.where(hidden > 0, hidden, 0.3 * hidden) @ net["output"]["kernel"] + net["output"]["bias"]

    f = lambda b: (b[..., 0] - 0.3 * b[..., 1]) ** 3
    slope = lambda b: 3 * (b[..., :1] - 0.3 * b[..., 1:]) ** 2 * np.array([1.0, -0.3])
    batch = jnp.broadcast_to(LOGITS, (100, 2))
    apply = jax.jit(lambda params: est.apply(params, jax.random.key(8), batch, lambda b: (f(b), b), has_aux=True))
    out, b = jax.tree.map(np.asarray, apply(params))
    np.testing.assert_allclose(out.grad, exact.rodeo(LOGITS, b, f(b), slope(b), network, 0.7, -1.2), atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gumbel_sigmoid_uses_the_noise_that_made_its_sample():
    """z is read off grad = ∂f σ'(z/τ)/τ up to its sign, which is the sample's; it has the logistic law."""
    est, temperature = dj.make_estimator("gumbel_sigmoid", temperature=0.7), 0.7
    batch = jnp.broadcast_to(LOGITS, (DRAWS, 2))
    out, b = est.apply((), jax.random.key(8), batch, lambda b: (b.sum(-1), b), has_aux=True)
    root = np.sqrt(1 - 4 * temperature * np.asarray(out.grad))  # of σ(x) − σ(−x), x = |z| / τ
    z = temperature * np.log((1 + root) / (1 - root)) * np.where(np.asarray(b[0]) == 1, 1, -1)
    for i in range(2):
        assert stats.kstest(z[:, i] - LOGITS[i], stats.logistic.cdf).pvalue > SMALLEST_P


@pytest.mark.usefixtures("x64")
def test_vimco_is_arithmetic_by_default():
    f = exact.table_function(2)
    stack, out = capture("vimco", {"num_samples": 3}, jnp.float64, f.table, draws=100)
    np.testing.assert_allclose(out.grad, exact.vimco(LOGITS, stack, f(stack), "arithmetic"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", dj.estimator_names())
def test_frequencies_in_bfloat16(name):
    """At logit −5 a comparison made in bfloat16 never gives 1, where 0.0067 is right: 11 standard errors of 20,000."""
    logits = np.array([-5.0, 5.0])
    table = exact.table_function(2).table
    stack, out = capture(name, {}, jnp.bfloat16, table, draws=20_000, logits=logits, samples_only=True)
    assert out.grad.dtype == jnp.bfloat16
    for row in stack:
        for i, p in enumerate(expit(logits)):
            stderr = np.sqrt(p * (1 - p) / len(row))  # 5.8e-4
            assert abs(row[:, i].mean() - p) < 4.5 * stderr


def test_bfloat16_gradients_are_right():
    """The mean of bfloat16 gradients of 200,000 draws against enumeration, within 5 standard errors of 0.5%."""
    f = exact.table_function(2)
    truth = exact.gradient(LOGITS, f)
    for name in ("reinforce_loo", "arm", "disarm", "interpolated"):
        _, out = capture(name, {}, jnp.bfloat16, f.table)
        grad = np.asarray(out.grad.astype(jnp.float32), np.float64)
        stderr = grad.std(axis=0) / np.sqrt(DRAWS)
        assert np.linalg.norm(stderr) < 0.01 * np.linalg.norm(truth)
        # bfloat16 rounds each gradient by up to 0.4% of itself, not always evenly.
        assert np.all(np.abs(grad.mean(axis=0) - truth) < 5 * stderr + 0.002 * np.abs(grad).mean(axis=0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "options", "truth"),
    [
        ("disarm", {}, lambda logits, f: exact_pairs(logits, f, 1.0)),
        ("interpolated", {"init_beta": 0.4}, lambda logits, f: exact_pairs(logits, f, 0.4)),
        ("reinforce_loo", {}, lambda logits, f: exact_pairs(logits, f, 0.0)),
        ("arm", {}, exact.arm_moments),
    ],
)
def test_gradient_variance_measures_the_exact_moments(name, options, truth):
    """40,000 draws: mean and variance within 4.5 of their own standard errors, which are under 2% of the values."""
    logits, f = np.array([0.9, -1.6, 0.2]), exact.table_function(3)
    est = dj.make_estimator(name, **options)
    table = jnp.asarray(f.table)

    def traced_f(b):
        return table[(b @ jnp.array([4.0, 2.0, 1.0])).astype(int)]

    measured = jax.jit(lambda key: dj.gradient_variance(est)(
        est.init(key, jnp.asarray(logits)), key, jnp.asarray(logits), traced_f, 40_000, batch_size=4000
    ))(jax.random.key(3))  # fmt: skip
    mean, variance = truth(logits, f)
    assert np.all(np.abs(measured.mean - mean) < 4.5 * measured.mean_stderr)
    assert np.all(np.abs(measured.variance - variance) < 4.5 * measured.variance_stderr)
    assert abs(measured.total - variance.sum()) < 4.5 * measured.total_stderr
    assert measured.total_stderr < 0.02 * variance.sum()
    assert np.linalg.norm(measured.mean_stderr) < 0.02 * np.linalg.norm(mean)
    np.testing.assert_allclose(measured.mean_stderr, np.sqrt(variance / 40_000), rtol=0.05)


@pytest.mark.usefixtures("x64")
def test_gradient_variance_by_hand():
    """Six draws, their moments by numpy: nothing that a large number of draws would hide."""
    logits, key = jnp.array([0.9, -1.6, 0.2]), jax.random.key(3)
    f = lambda b: (b.sum(-1) - 1.2) ** 2
    est = dj.disarm()
    apply = jax.jit(lambda key: est.apply((), key, logits, f).grad)
    grads = np.stack([apply(k) for k in jax.random.split(key, 6)])
    measured = jax.jit(lambda key: dj.gradient_variance(est)((), key, logits, f, 6))(key)
    deviations = (grads - grads.mean(axis=0)) ** 2
    np.testing.assert_allclose(measured.mean, grads.mean(axis=0))
    np.testing.assert_allclose(measured.variance, grads.var(axis=0, ddof=1))
    np.testing.assert_allclose(measured.mean_stderr, grads.std(axis=0, ddof=1) / np.sqrt(6))
    np.testing.assert_allclose(measured.variance_stderr, deviations.std(axis=0) / np.sqrt(6), atol=1e-15)
    np.testing.assert_allclose(measured.total, grads.var(axis=0, ddof=1).sum())
    np.testing.assert_allclose(measured.total_stderr, deviations.sum(axis=1).std() / np.sqrt(6))


def exact_pairs(logits, f, beta):
    b, b_tilde, probabilities = exact.pair_law(logits, beta)
    return exact.moments(probabilities, exact.interpolated(logits, b, b_tilde, f(b), f(b_tilde), beta))
