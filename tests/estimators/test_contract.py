"""One table drives every registered estimator through the same contract; being registered is enough to get it all."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box
from cases import BLACK_BOX, CASES, DTYPES

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

ELSEWHERE = (
    "arms_quadratic",
    "disarm_midpoint",
    "disarm_quadratic",
    "disarm_taylor",
    "multisample_disarm_quadratic",
    "muprop",
    "rebar",
    "relax",
)  # evaluate f at other points than bits too

every_estimator = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_black_box = pytest.mark.parametrize("case", BLACK_BOX.values(), ids=BLACK_BOX)


@every_estimator
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_shapes_and_dtypes(case, dtype, batch):
    with jax.enable_x64(DTYPES[dtype]):
        logits = case.logits(batch, dtype)
        est, params = case.make(logits)
        stacks = []

        def spy(b):
            stacks.append(b)
            return case.f(b)

        out = jax.eval_shape(lambda key: est.apply(params, key, logits, spy), jax.random.key(1))
        assert (out.value.shape, out.value.dtype) == (batch, dtype)
        assert (out.grad.shape, out.grad.dtype) == ((*batch, *case.event), dtype)
        for stack in stacks:
            assert stack.shape[1:] == (*batch, *case.event)
            assert stack.dtype == dtype


@every_estimator
def test_shapes_of_params_depend_on_the_number_of_bits_only(case):
    shapes = [jax.tree.map(jnp.shape, case.make(case.logits(batch))[1]) for batch in ((), (5,), (2, 5))]
    assert shapes[0] == shapes[1] == shapes[2]


@every_estimator
@pytest.mark.parametrize(
    ("returned", "dtype", "expected"),
    [
        ("int32", "bfloat16", "bfloat16"),
        ("bool", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "bfloat16", "float32"),
    ],
)
def test_dtype_of_value(case, returned, dtype, expected):
    """f's own float dtype; the logits' for integers and booleans."""
    logits = case.logits(dtype=dtype)
    est, params = case.make(logits)

    def apply(key):
        return est.apply(params, key, logits, lambda b: case.f(b).astype(returned))

    if case.info.needs_grad and returned in ("int32", "bool"):
        with pytest.raises(TypeError, match=f"differentiate f, which must return floats, got dtype {returned}"):
            jax.eval_shape(apply, jax.random.key(1))
        return
    out = jax.eval_shape(apply, jax.random.key(1))
    assert out.value.dtype == expected
    assert out.grad.dtype == dtype


@every_estimator
def test_jit_vmap_and_scan_agree(case):
    """The same keys give the same estimates whether jitted alone, vmapped or scanned; all compiled once."""
    logits = case.logits()
    est, params = case.make(logits)
    keys = jax.random.split(jax.random.key(1), 10)
    traces = collections.Counter()

    def apply(key):
        def counting_f(b):
            traces[b.shape] += 1
            return case.f(b)

        return est.apply(params, key, logits, counting_f)

    one = jax.jit(apply)
    one(keys[0])
    first = traces.copy()
    alone = jax.tree.map(lambda *a: jnp.stack(a), *(one(key) for key in keys))
    assert traces == first  # ten steps, one compilation
    mapped = jax.jit(jax.vmap(apply))(keys)
    scanned = jax.jit(lambda keys: jax.lax.scan(lambda _, key: (None, apply(key)), None, keys)[1])(keys)
    for other in (mapped, scanned):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), alone, other)
    assert len(np.unique(np.asarray(alone.grad).reshape(10, -1), axis=0)) > 5  # different keys, different samples


@every_estimator
def test_examples_of_a_batch_are_independent(case):
    """Changing one example's logits leaves the estimates of the others alone."""
    logits = case.logits()
    est, params = case.make(logits)
    apply = jax.jit(lambda logits: est.apply(params, jax.random.key(1), logits, case.f))
    before, after = apply(logits), apply(logits.at[2].multiply(-3.0))
    keep = np.array([0, 1, 3, 4])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[keep], b[keep]), before, after)
    assert not np.array_equal(before.grad[2], after.grad[2])


@every_estimator
def test_expectation_is_value_and_whole_gradient(case):
    """In reverse and forward mode: grad plus f's own dependence on the logits; the ordinary derivative in the rest."""
    logits, scale, key = case.logits(), jnp.array(1.7), jax.random.key(1)
    est, params = case.make(logits)

    def depends_on_both(logits, scale):
        own = jnp.sum(case.flat(jax.nn.softplus(logits)), axis=-1)
        return lambda b: scale * case.f(b) + own[None] * case.flat(b)[..., 1]

    def objective(logits, scale):
        return dj.expectation(est)(params, key, logits, depends_on_both(logits, scale)).sum()

    def with_samples(b):
        return depends_on_both(logits, scale)(b), b

    out, samples = jax.jit(lambda: est.apply(params, key, logits, with_samples, has_aux=True))()
    value_of = dj.formulas.bound if case.name == "vimco" else lambda f_b: f_b.mean(axis=0)

    def value(logits, scale):  # written out from the samples, without the estimator
        return value_of(depends_on_both(logits, scale)(samples)).sum()

    pathwise = jax.jit(jax.grad(value, argnums=(0, 1)))(logits, scale)
    total, (in_logits, in_scale) = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))(logits, scale)
    np.testing.assert_allclose(total, out.value.sum(), rtol=1e-5)
    np.testing.assert_allclose(in_logits, out.grad + pathwise[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(in_scale, pathwise[1], rtol=1e-4)
    tangents = jnp.cos(jnp.arange(float(logits.size))).reshape(logits.shape), jnp.array(0.3)
    _, forward = jax.jit(lambda *t: jax.jvp(objective, (logits, scale), t))(*tangents)
    np.testing.assert_allclose(forward, jnp.sum(in_logits * tangents[0]) + in_scale * tangents[1], rtol=1e-4, atol=1e-5)


@every_estimator
def test_only_variance_loss_reaches_params(case):
    logits, key = case.logits(), jax.random.key(1)
    est, params = case.make(logits)
    stopped = jax.jit(jax.grad(lambda params: dj.expectation(est)(params, key, logits, case.f).sum()))(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(stopped))
    learnt = jax.jit(jax.grad(lambda params: dj.variance_loss(est)(params, key, logits, case.f)))(params)
    through_grad = jax.jit(jax.grad(lambda params: jnp.sum(est.apply(params, key, logits, case.f).grad ** 2)))(params)
    for gradients in (learnt, through_grad):
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(gradients))


@every_estimator
@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_logits(case, dtype):
    """No NaN at ±1e4 and −0.0, in any derivative; and bits that cannot flip have no gradient."""
    with jax.enable_x64(DTYPES[dtype]):
        logits = jnp.asarray(case.saturated, dtype)
        est, params = case.make(logits)

        @jax.jit
        def everything(key):
            out = est.apply(params, key, logits, case.f)
            through = jax.grad(lambda logits: dj.expectation(est)(params, key, logits, case.f).sum())(logits)
            return out, through, jax.grad(lambda params: dj.variance_loss(est)(params, key, logits, case.f))(params)

        for seed in range(5):
            out, through, learnt = everything(jax.random.key(seed))
            for leaf in jax.tree.leaves((out, through, learnt)):
                assert np.all(np.isfinite(leaf.astype(jnp.float32)))
            if case.name not in (
                "rebar",
                "relax",
            ):  # what their control variate says of it averages out, but is not zero
                assert not np.any(out.grad[3].astype(jnp.float32))


@every_estimator
def test_infinite_logits(case):
    """Bits that are certain and classes that are masked: value and derivatives are finite, theirs are zero."""
    certain = (0,) * (1 + len(case.event))
    value = -jnp.inf if len(case.event) == 2 else jnp.inf
    logits = case.logits((2,)).at[certain].set(value)
    est, params = case.make(logits)
    expectation = lambda logits, key: dj.expectation(est)(params, key, logits, case.f).sum()
    value, grad = jax.jit(jax.value_and_grad(expectation))(logits, jax.random.key(1))
    assert np.isfinite(value)
    assert np.all(np.isfinite(grad))
    assert grad[certain] == 0


@every_estimator
def test_nan_logits_are_not_hidden(case):
    """A comparison turns NaN into 0, so a broken network upstream would train on as if nothing had happened."""
    broken = (0,) * len(case.event) + (1,)
    logits = case.logits((2,)).at[broken].set(jnp.nan)
    est, params = case.make(logits)
    grad = jax.jit(lambda key: est.apply(params, key, logits, case.f).grad)(jax.random.key(1))
    assert np.isnan(grad[broken])
    assert np.all(np.isfinite(grad[1]))


@every_estimator
def test_evaluations_are_as_documented(case):
    """Rows that f receives per example, in one call for each kind of point."""
    logits = case.logits()
    est, params = case.make(logits)
    rows = []

    def counting_f(b):
        rows.append(b.shape[0])
        return case.f(b)

    jax.eval_shape(lambda key: est.apply(params, key, logits, counting_f), jax.random.key(1))
    info = case.info
    assert sum(rows) == {"D + 1": 4}.get(info.evaluations, info.evaluations)
    assert len(rows) == (2 if case.name in ELSEWHERE else 1)


@every_estimator
def test_keys_are_used_once(case):
    logits = case.logits()
    est = case.module.make_estimator(case.name)
    with jax.debug_key_reuse(True):
        params = est.init(jax.random.key(0), logits)
        jax.jit(lambda key: est.apply(params, key, logits, case.f))(jax.random.key(1))
        jax.jit(lambda key: dj.variance_loss(est)(params, key, logits, case.f))(jax.random.key(2))
        jax.jit(lambda key: dj.gradient_variance(est)(params, key, logits, case.f, 3))(jax.random.key(3))


@every_estimator
def test_sub_keys_differ(case):
    """Every draw of random bits inside one estimate comes from a key of its own."""
    logits = case.logits()
    est, params = case.make(logits)
    drawn = []

    def record(draw):
        def recorded(key, *args, **kwargs):
            drawn.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
            return draw(key, *args, **kwargs)

        return recorded

    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(jax.random, "bits", record(jax.random.bits))
        patch.setattr(jax.random, "uniform", record(jax.random.uniform))
        est.apply(params, jax.random.key(1), logits, case.f)
    assert len(drawn) >= 1
    assert len(set(drawn)) == len(drawn)


@every_black_box
def test_f_is_not_differentiated(case):
    """Also not by jax.grad or jvp of the expectation, in the logits and in parameters of f."""
    logits, scale = case.logits(), jnp.array(2.0)
    est, params = case.make(logits)

    def objective(logits, scale, params):
        return dj.expectation(est)(params, jax.random.key(1), logits, lambda b: scale * black_box(case.f)(b)).sum()

    jax.jit(jax.grad(objective, argnums=(0, 1, 2)))(logits, scale, params)
    jax.jit(lambda *args: jax.jvp(objective, args, jax.tree.map(jnp.ones_like, args)))(logits, scale, params)
    jax.jit(jax.grad(lambda params: dj.variance_loss(est)(params, jax.random.key(1), logits, black_box(case.f))))(
        params
    )


@every_black_box
def test_f_may_live_outside_of_jax(case):
    """A simulator behind `pure_callback`, and integer logic, under jit and grad."""
    logits = case.logits()
    est, params = case.make(logits)

    def simulator(b):
        shape = jax.ShapeDtypeStruct(case.flat(b).shape[:-1], jnp.float32)
        return jax.pure_callback(lambda b: np.asarray(case.f(jnp.asarray(b)), np.float32), shape, b)

    def branches(b):
        bits = case.flat(b).astype(jnp.int32)
        return jnp.where(bits[..., 0] == 1, bits[..., 1] << 3, 7 - bits[..., 2])

    for outside in (simulator, branches):

        @jax.jit
        def both(logits, outside=outside):
            def objective(logits):
                return dj.expectation(est)(params, jax.random.key(1), logits, outside).sum()

            return jax.grad(objective)(logits), est.apply(params, jax.random.key(1), logits, outside).grad

        through, grad = both(logits)
        np.testing.assert_array_equal(through, grad)
        assert np.any(grad)


@every_estimator
def test_auxiliary_outputs(case):
    """They come back one row per draw from q, and averaged from `expectation`; the samples themselves among them."""
    logits = case.logits()
    est, params = case.make(logits)

    def with_aux(b):
        return case.f(b), {"b": b, "kl": case.f(b) * 2}

    key = jax.random.key(1)
    out, aux = jax.jit(lambda: est.apply(params, key, logits, with_aux, has_aux=True))()
    value, mean = jax.jit(lambda: dj.expectation(est, has_aux=True)(params, key, logits, with_aux))()
    plain = jax.jit(lambda: est.apply(params, key, logits, case.f))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), out, plain)
    np.testing.assert_allclose(value, plain.value, rtol=1e-5)
    assert set(np.unique(aux["b"])) == {0.0, 1.0}
    assert aux["b"].shape[1:] == (5, *case.event)
    np.testing.assert_allclose(aux["kl"], 2 * case.f(aux["b"]), rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.mean(axis=0), b, rtol=1e-5), aux, mean)
    if case.info.objective == "expectation":
        np.testing.assert_allclose(mean["kl"], 2 * plain.value, rtol=1e-5)


@every_estimator
def test_a_wrong_f_is_named(case):
    logits = case.logits()
    est, params = case.make(logits)
    wrong = [
        (lambda b: b, ValueError, r"shape \(\d, 5\), got shape \(\d, 5, [\d, ]+\)"),
        (lambda b: case.f(b).mean(), ValueError, r"shape \(\d, 5\), got shape \(\)"),
        (lambda b: (case.f(b), b), TypeError, "has_aux=True.*tuple"),
        (lambda b: None, TypeError, "NoneType"),
        (lambda b: case.f(b).astype(jnp.complex64), TypeError, "complex64"),
    ]
    for bad_f, error, words in wrong:
        with pytest.raises(error, match=words):
            jax.eval_shape(lambda key, bad_f=bad_f: est.apply(params, key, logits, bad_f), jax.random.key(1))
    with pytest.raises(TypeError, match="pair"):
        est.apply(params, jax.random.key(1), logits, case.f, has_aux=True)
    with pytest.raises(ValueError, match=r"sample axis.*\(5,\)"):
        est.apply(params, jax.random.key(1), logits, lambda b: (case.f(b), jnp.zeros(5)), has_aux=True)


@every_estimator
@pytest.mark.parametrize(
    ("dtype", "error", "words"),
    [
        ("int32", TypeError, "int32"),
        ("complex64", TypeError, "complex64"),
        ("bool", TypeError, "bool"),
        ("float32", ValueError, "scalar"),
    ],
)
def test_wrong_logits_are_named(case, dtype, error, words):
    logits = np.zeros(() if words == "scalar" else (5, *case.event), dtype)
    est, params = case.make(case.logits())
    calls = (
        lambda: est.init(jax.random.key(0), logits),
        lambda: est.apply(params, jax.random.key(0), logits, case.f),
        lambda: dj.expectation(est)(params, jax.random.key(0), logits, case.f),
        lambda: dj.variance_loss(est)(params, jax.random.key(0), logits, case.f),
    )
    for call in calls:
        with pytest.raises(error, match=words):
            call()


@every_estimator
def test_logits_may_be_numpy_arrays_and_params_plain_numbers(case):
    est = case.module.make_estimator(case.name)
    params = est.init(jax.random.key(0), np.zeros((5, *case.event)))
    plain = jax.tree.map(lambda p: float(p) if p.ndim == 0 else p, params)
    for call in (est.apply, dj.expectation(est), dj.variance_loss(est)):
        jax.eval_shape(lambda key, call=call: call(plain, key, np.zeros((5, *case.event)), case.f), jax.random.key(1))


@every_estimator
def test_options_are_keyword_only(case):
    with pytest.raises(TypeError, match=rf"{case.name} takes keyword options only, got \(2,\); accepted: "):
        getattr(case.module, case.name)(2)
