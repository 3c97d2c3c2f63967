"""`dj.check`: every check sees an f that passes it and one that fails it."""

import dataclasses
import itertools
import math
import types
from typing import Any

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box
from cases import CASES, DTYPES, REPRESENTATIVES

import disarm_jax as dj
from disarm_jax.checking import measure
from disarm_jax.checking.facts import find_facts

LOGITS = jnp.array([[-1.0, 0.5, 3.0], [0.2, -0.3, 1.0]])
CLASSES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 3)), jnp.float32)

pytestmark = pytest.mark.usefixtures("quick_compile")


def smooth(b):
    return jnp.cos(b @ jnp.arange(1, b.shape[-1] + 1, dtype=b.dtype))


def of_classes(z):
    return smooth(z).sum(-1)


def quick(est, f=smooth, logits=LOGITS, *args, **options):
    return dj.check(est, f, logits, *args, **({"compare": False, "num_draws": 100} | options))


def custom(est, change=lambda out: out):
    """An estimator of which nothing is known."""
    return dj.Estimator(est.init, lambda *args: change(est.apply(*args)))


def with_info(est, **facts):
    @dataclasses.dataclass(frozen=True)
    class Known(dj.Estimator):
        info: Any = None

    info = {"name": "known", "objective": "expectation", "unbiased": True, "needs_grad": False}
    return Known(est.init, est.apply, info=types.SimpleNamespace(**(info | facts)))


# The report.


def test_a_good_f_has_no_problems_and_the_report_is_printed(capsys):
    report = quick(dj.disarm())
    assert report.ok
    assert {finding.level for finding in report.findings} == {"ok"}
    assert [finding.topic for finding in report.findings] == [
        *("estimator", "params", "shape", "purity", "rows", "finite", "slope", "exact")
    ]
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert printed.startswith("dj.check: 0 problems, 0 notes, 8 findings\n")
    assert all(len(line) <= 110 for line in printed.splitlines())


def test_the_report_is_the_same_for_the_same_key():
    assert quick(dj.disarm()) == quick(dj.disarm(), key=jax.random.key(0)) != quick(dj.disarm(), key=jax.random.key(1))


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="num_draws must be at least 16, got 5"):
        dj.check(dj.disarm(), smooth, LOGITS, num_draws=5)


# The estimator, its params and the logits.


@pytest.mark.parametrize(
    ("est", "advice"),
    [
        ("disarm", "Pass dj.make_estimator('disarm')"),
        (dj.disarm, "Call it: disarm()"),
        (3, "Pass for instance dj.disarm()"),
    ],
)
def test_what_is_no_estimator(est, advice):
    report = quick(est)
    assert report.level("estimator") == "problem"
    assert len(report.findings) == 1
    assert advice in report.text("estimator")


def test_missing_params_are_made():
    assert quick(dj.disarm_midpoint(init_scale=1.0)).level("params") == "note"
    report = quick(dj.disarm_midpoint(init_scale=1.0), smooth, LOGITS, ())
    assert report.level("params") == "note"
    assert "params = est.init(key, logits)" in report.text("params")


def test_given_params_must_fit():
    est = dj.disarm_midpoint(init_scale=1.0)
    params = est.init(jax.random.key(0), LOGITS)
    assert quick(est, smooth, LOGITS, params).level("params") == "ok"
    assert quick(est, smooth, LOGITS, {"other": jnp.ones(())}).level("params") == "problem"
    assert quick(est, smooth, LOGITS, jax.tree.map(lambda x: jnp.ones((2,)), params)).level("params") == "problem"
    assert quick(est, smooth, LOGITS, jax.tree.map(lambda x: x * jnp.nan, params)).level("params") == "problem"
    assert quick(dj.disarm(), smooth, LOGITS, jnp.ones(3)).level("params") == "note"


def test_given_params_are_used():
    """The gradient of this estimator is right for the params of init only."""
    est = dj.disarm()
    scaled = dj.Estimator(
        lambda key, logits: jnp.ones(()),
        lambda params, *args: (out := est.apply((), *args))._replace(grad=params * out.grad),
    )
    assert quick(scaled, smooth, LOGITS, jnp.ones(())).level("exact") == "ok"
    assert quick(scaled, smooth, LOGITS, jnp.full((), 5.0), num_draws=400).level("exact") == "problem"


@pytest.mark.parametrize(
    ("logits", "topic", "text"),
    [
        (LOGITS.at[0, 0].set(jnp.nan), "logits", "contain NaN"),
        (jnp.ones((2, 3), int), "estimator", "must be real floating-point numbers"),
        (jnp.ones(()), "estimator", "must have the shape [*batch, D]"),
    ],
)
def test_bad_logits(logits, topic, text):
    report = quick(dj.disarm(), smooth, logits)
    assert report.level(topic) == "problem"
    assert text in report.text(topic)


def test_traced_logits_are_not_checked():
    reports = []
    jax.eval_shape(lambda logits: reports.append(quick(dj.disarm(), smooth, logits)), LOGITS)
    assert reports[0].level("logits") == "problem"


def test_infinite_logits_are_fine():
    assert quick(dj.disarm(), smooth, LOGITS.at[0, 0].set(jnp.inf)).ok
    assert quick(dj.categorical.disarm_iw(), of_classes, CLASSES.at[0, 0, 0].set(-jnp.inf)).ok


@pytest.mark.parametrize("key", CASES)
def test_facts_are_found_by_tracing(key):
    """An estimator without info behaves as its entry in the registry says."""
    case = CASES[key]
    est, params = case.make(case.logits())
    facts = find_facts(dj.Estimator(est.init, est.apply), params, jax.random.key(1), case.logits())
    assert facts.event_ndim == len(case.event)
    assert facts.needs_grad == case.info.needs_grad
    assert facts.name is facts.unbiased is None
    found = find_facts(with_info(est, **case.info._asdict()), params, jax.random.key(1), case.logits())
    assert found[2] == case.info.objective
    assert found.unbiased == case.info.unbiased


@pytest.mark.parametrize(
    ("est", "num"),
    [
        (dj.vimco(num_samples=5, repeats=3), 5),
        (dj.multisample_disarm(num_pairs=3), 3),
        (dj.make_estimator("multisample_arms", num_samples=2, group_size=5), 2),
        (dj.vimco(num_samples=50), 50),
        (dj.arms(num_samples=7), 1),
        (dj.make_estimator("leg"), 1),
        (dj.relax(), 1),
    ],
)
def test_the_number_of_samples_of_a_bound_is_found(est, num):
    facts = find_facts(custom(est), est.init(jax.random.key(0), LOGITS), jax.random.key(1), LOGITS)
    assert facts.bound_samples == num
    assert facts.objective == ("bound" if num > 1 else "expectation")


# Shapes and dtypes.


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda b: b.sum(), "keep the leading axes"),
        (lambda b: b.sum(-1, keepdims=True), "Take away the last axis"),
        (lambda b: b.sum(-1)[0], "Keep the first axis"),
        (lambda b: b, "each sample has one value"),
        (lambda b: b.sum(-1)[:, :1], "keep all leading ones"),
        (lambda b: (b.sum(-1), b), "check `lambda b: f(b)[0]`"),
        (lambda b: b @ jnp.ones(7), "f failed for samples of shape (1, 2, 3)"),
        (lambda b: b.sum(-1).astype(complex), "real numbers"),
    ],
)
def test_wrong_shapes(f, text):
    report = quick(dj.disarm(), f)
    assert report.level("shape") == "problem"
    assert text in report.text("shape")


def test_a_shape_that_is_wrong_for_three_samples_only():
    assert quick(dj.disarm(), lambda b: b.sum(-1)[:2]).level("shape") == "problem"


def test_images_and_classes_given_to_an_estimator_for_bits():
    text = quick(dj.disarm(), lambda b: b.sum((-2, -1)), jnp.zeros((4, 7, 5))).text("shape")
    assert "flatten them to (4, 35)" in text
    assert "dj.categorical.disarm_iw()" in text


def test_classes():
    assert quick(dj.categorical.disarm_iw(), of_classes, CLASSES).ok
    report = quick(dj.categorical.disarm_iw(), smooth, CLASSES)
    assert "each sample has one value" in report.text("shape")


def test_integers_need_an_estimator_that_does_not_differentiate():
    def count(b):
        return jnp.sum(b > 0, axis=-1)

    assert quick(dj.disarm(), count).ok
    report = quick(dj.disarm_midpoint(), count)
    assert report.level("shape") == "problem"
    assert "dj.disarm()" in report.text("shape")


@pytest.mark.parametrize(("dtype", "x64"), DTYPES.items())
def test_dtypes(dtype, x64):
    with jax.enable_x64(x64):
        for est, f, logits in (
            (dj.disarm_midpoint(), smooth, LOGITS),
            (dj.categorical.disarm_iw(), of_classes, CLASSES),
        ):
            report = quick(est, f, logits.astype(dtype))
            assert report.ok, str(report)


# Purity.


def impure(b, calls=[]):  # noqa: B006
    calls.append(None)
    return b.sum(-1) + len(calls)


def leaking(b, kept=[]):  # noqa: B006
    kept.append(b)
    return b.sum(-1)


def other_when_traced(b):
    return b.sum(-1) + (1.0 if isinstance(b, jax.core.Tracer) else 0.0)


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (impure, "Two calls of f"),
        (lambda b: b.sum(-1) + np.random.normal(), "Two calls of f"),
        (other_when_traced, "under jit"),
        (leaking, "keeps a traced array"),
        (lambda b: np.asarray(b).sum(-1), "jax.pure_callback"),
    ],
)
def test_impure_functions(f, text):
    report = quick(dj.disarm(), f)
    assert report.level("purity") == "problem"
    assert text in report.text("purity")


def test_printing_is_noted(capsys):
    def prints(b):
        print("here")
        return smooth(b)

    def debugs(b):
        jax.debug.print("{}", b[0, 0, 0])
        return smooth(b)

    assert "jax.debug.print" in quick(dj.disarm(), prints).text("purity")
    report = quick(dj.disarm(), debugs)
    assert report.level("purity") == "note"
    assert report.ok


def test_a_callback_is_pure():
    def f(b):
        shape = jax.ShapeDtypeStruct(b.shape[:-1], b.dtype)
        return jax.pure_callback(lambda b: np.asarray(b).sum(-1) ** 2, shape, b)

    report = quick(dj.disarm(), f)
    assert report.ok
    assert report.level("purity") == "ok"
    assert "cannot be differentiated" in report.text("slope")
    assert report.level("slope") == "ok"


# Rows.


def test_an_f_with_data_of_its_own_for_each_row():
    data = jnp.array([[1.0, 5.0]])
    assert quick(dj.disarm(), lambda b: (b.sum(-1) - data) ** 2).ok


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda b: b.sum(-1) - b.sum(-1).mean(0, keepdims=True), "with the other samples"),
        (lambda b: (b - b.mean(1, keepdims=True)).sum(-1), "other examples in the batch"),
        (lambda b: b.sum(-1) * jnp.arange(1.0, b.shape[0] + 1)[:, None], "its position along the first axis"),
    ],
)
def test_mixed_rows(f, text):
    report = quick(dj.disarm(), f)
    assert report.level("rows") == "problem"
    assert text in report.text("rows")
    assert report.level("exact") is None
    assert "Nothing was measured" in report.text("measure")


# Finite values.


def test_values_that_are_not_finite():
    assert quick(dj.disarm(), lambda b: jnp.log(b.sum(-1))).level("finite") == "problem"
    certain = jnp.full((2, 3), 30.0)
    report = quick(dj.disarm(), lambda b: jnp.log(b[..., 0]), certain)
    assert report.level("finite") == "note"
    assert report.level("exact") == "note"
    assert quick(dj.disarm(), lambda b: b[..., 0], certain).level("finite") == "ok"


# Slope.

TABLE = jnp.asarray(np.random.default_rng(2).normal(size=8), jnp.float32)


def lookup(b):
    return TABLE[jnp.sum(b.astype(int) * jnp.array([[[4, 2, 1]]]), axis=-1)]


@jax.custom_jvp
def misled(b):
    return smooth(b)


@misled.defjvp
def _misled_jvp(primals, tangents):
    return misled(*primals), -3 * jax.jvp(smooth, primals, tangents)[1]


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lookup, "slope 0 everywhere"),
        (lambda b: jnp.round(b).sum(-1), "slope 0 everywhere"),
        (lambda b: jnp.where(b > 0.5, 2.0, 1.0).prod(-1), "slope 0 everywhere"),
        (misled, "little to do"),
        (lambda b: jnp.sqrt(b).sum(-1), "∇f is infinite"),
        (lambda b: jnp.where((b == 0) | (b == 1), b, jnp.nan).sum(-1), "f is infinite or NaN"),
    ],
)
def test_useless_slopes(f, text):
    for est, level in ((dj.disarm_midpoint(), "problem"), (dj.disarm(), "ok")):
        report = quick(est, f)
        assert report.level("slope") == level
        assert text in report.text("slope")


@pytest.mark.parametrize("f", [smooth, lambda b: jax.nn.relu(b @ jnp.array([1.0, -2.0, 1.5])), lambda b: b[..., 0]])
def test_useful_slopes(f):
    report = quick(dj.disarm_midpoint(), f)
    assert report.level("slope") == "ok"
    assert "explains" in report.text("slope")


def test_slopes_of_classes():
    est = dj.categorical.straight_through()
    assert quick(est, of_classes, CLASSES).level("slope") == "ok"
    report = quick(est, lambda z: jnp.argmax(z, -1).sum(-1).astype(jnp.float32), CLASSES)
    assert report.level("slope") == "problem"
    assert "dj.categorical.disarm_iw()" in report.text("slope")


# Structure. The tests of affinity use a stand-in, whatever `dj.Composed` takes.


@dataclasses.dataclass
class Declared:
    inner: Any
    affine: Any = None

    def __call__(self, b):
        return self.inner(b).sum(-1)


@pytest.mark.parametrize(
    ("inner", "affine", "level"),
    [
        (lambda b: b * 2 + 1, True, "ok"),
        (lambda b: jnp.tanh(b @ jnp.eye(3) * 3), True, "problem"),
        (lambda b: jnp.tanh(b @ jnp.eye(3) * 3), None, "ok"),
    ],
)
def test_declared_structure(inner, affine, level):
    assert quick(dj.disarm(), Declared(inner, affine)).level("structure") == level


def test_an_inner_without_rows():
    class Summed(Declared):
        def __call__(self, b):
            return b.sum(-1)

    assert quick(dj.disarm(), Summed(lambda b: b[0])).level("structure") == "problem"
    assert quick(dj.disarm(), Summed(lambda b: b)).level("structure") == "ok"


def test_a_plain_function_has_no_structure():
    assert quick(dj.disarm()).level("structure") is None


# Bounds.


def log_weights(logits):
    return lambda b: smooth(b) - dj.bernoulli.log_prob(logits, b)


def stopped(logits):
    return log_weights(jax.lax.stop_gradient(logits))


@pytest.mark.parametrize(
    ("f_of_logits", "level"),
    [(log_weights, "ok"), (stopped, "problem"), (lambda logits: log_weights(2 * logits), "problem"), (None, "note")],
)
def test_log_w_must_depend_on_the_logits(f_of_logits, level):
    report = quick(dj.multisample_disarm(num_pairs=2), log_weights(LOGITS), f_of_logits=f_of_logits)
    assert report.level("bound") == level
    assert report.level("exact") == "ok"


def test_an_expectation_does_not_ask_for_f_of_logits():
    assert quick(dj.disarm(), log_weights(LOGITS)).level("bound") is None
    assert quick(dj.disarm(), log_weights(LOGITS), f_of_logits=stopped).level("bound") == "note"


# The exact gradient.


def test_the_exact_gradient_of_bits():
    logits, f = np.array([[0.3, -1.2, 2.0], [0.1, 0.2, -0.4]]), exact.table_function(3)
    b = measure._outcomes((3,))
    found = measure.exact_gradient(logits, b, np.stack([f(b), 2 * f(b)], axis=1), 1)
    np.testing.assert_allclose(found, [exact.gradient(logits[0], f), 2 * exact.gradient(logits[1], f)], rtol=1e-12)


def test_the_exact_gradient_of_classes():
    logits, f = np.asarray(CLASSES, np.float64), exact_classes.table_function(2, 3)
    z = measure._outcomes((2, 3))
    found = measure.exact_gradient(logits, z, np.stack([f(z)] * 2, axis=1), 1)
    np.testing.assert_allclose(found, [exact_classes.gradient(row, f) for row in logits], rtol=1e-12)


def test_the_exact_gradient_of_a_bound():
    """All samples of the bound as one long vector of bits, whose gradients are summed."""
    logits, log_w = np.array([0.3, -1.2]), exact.table_function(2)
    b = measure._outcomes((2,))
    found = measure.exact_gradient(logits, b, log_w(b), 3)
    long = exact.gradient(
        np.tile(logits, 3), lambda b: exact.bound(np.stack([log_w(part) for part in np.split(b, 3, -1)]))
    )
    np.testing.assert_allclose(found, long.reshape(3, 2).sum(0), rtol=1e-12)


@pytest.mark.parametrize("key", [key for key in CASES if key in REPRESENTATIVES or not CASES[key].info.unbiased])
def test_registered_estimators_have_the_mean_they_say(key):
    case = CASES[key]
    logits = case.logits((2,))
    est, params = case.make(logits)
    report = quick(est, lambda b: jnp.sin(2 * case.f(b)), logits, params, num_draws=400)
    assert report.level("exact") == "ok" if case.info.unbiased else report.level("exact") in ("note", "problem")


def test_wrong_estimators_are_found():
    doubled = custom(dj.disarm(), lambda out: out._replace(grad=2 * out.grad))
    report = quick(doubled, num_draws=400)
    assert report.level("exact") == "problem"
    assert "less than one in a million" in report.text("exact")
    bound = custom(dj.vimco(num_samples=2), lambda out: out._replace(grad=2 * out.grad))
    assert quick(bound, num_draws=400).level("exact") == "problem"
    classes = custom(dj.categorical.disarm_iw(), lambda out: out._replace(grad=2 * out.grad))
    assert quick(classes, of_classes, CLASSES, num_draws=400).level("exact") == "problem"


def test_the_bias_of_a_biased_estimator_is_measured():
    """Twice the gradient is 100% off, within the noise that is stated."""
    doubled = custom(dj.make_estimator("leg"), lambda out: out._replace(grad=2 * out.grad))
    report = quick(with_info(doubled, unbiased=False), lambda b: b.sum(-1))  # for a linear f, leg has no variance
    assert report.level("exact") == "note"
    assert "a bias of 100% (± " in report.text("exact")


def test_too_many_outcomes_are_not_enumerated():
    assert measure._outcomes((10,)).shape == (1024, 10)
    assert measure._outcomes((11,)) is None
    assert measure._outcomes((5, 4)).shape == (1024, 5, 4)
    assert measure._outcomes((6, 4)) is None
    report = quick(dj.disarm(), smooth, jnp.zeros(11))
    assert report.level("exact") == "note"
    assert "too many outcomes" in report.text("exact")
    assert "too many outcomes" in quick(dj.vimco(num_samples=9), smooth, jnp.zeros(3)).text("exact")


# The comparison.


def rows_of(report):
    return {row.name: row for row in report.comparison}


def test_the_comparison_is_sorted_and_relative():
    report = quick(dj.reinforce_loo(), compare=("arms", "interpolated", "leg"), num_draws=400)
    products = [row.product for row in report.comparison]
    assert products == sorted(products)
    rows = rows_of(report)
    est = next(row for name, row in rows.items() if name.startswith("est"))
    assert (est.variance, est.time, est.product) == (1, 1, 1)
    assert {"arms", "interpolated", "leg"} < set(rows)
    assert all(math.isclose(row.product, row.variance * row.time) for row in rows.values())
    assert rows["interpolated"].trainable
    assert not rows["leg"].trainable
    assert all(name in str(report) for name in rows)


def test_variances_are_those_of_gradient_variance():
    report = quick(dj.disarm(), compare=("reinforce_loo",), num_draws=4000)
    expected = [
        dj.gradient_variance(est)((), jax.random.key(7), LOGITS, smooth, 4000)
        for est in (dj.reinforce_loo(), dj.disarm())
    ]
    ratio = float(expected[0].total / expected[1].total)
    error = ratio * math.hypot(*(float(found.total_stderr / found.total) for found in expected))
    assert abs(rows_of(report)["reinforce_loo"].variance - ratio) < 5 * math.sqrt(2) * error


def test_the_best_estimator_is_advised(monkeypatch):
    """At p = ½ the midpoint's gradient of this quadratic f is exact, so that the product is almost 0.

    All take the same time, also where other processes have the machine.
    """
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=itertools.count().__next__))
    report = quick(
        dj.make_estimator("reinforce"), lambda b: b.sum(-1) ** 2, jnp.zeros((2, 3)), compare=("disarm_midpoint",)
    )
    assert report.level("compare") == "note"
    assert "disarm_midpoint has" in report.text("compare")
    report = quick(dj.disarm_midpoint(), smooth, compare=("reinforce",))
    assert report.level("compare") == "ok"


def test_an_estimator_without_variance_cannot_be_beaten():
    report = quick(dj.disarm_midpoint(init_scale=1.0), lambda b: b.sum(-1) ** 2, jnp.zeros((2, 3)), compare=("disarm",))
    assert report.level("compare") == "ok"
    assert report.comparison == ()


def test_only_estimators_that_can_be_applied_are_measured():
    report = quick(dj.disarm(), lookup, compare=("arm", "relax", "vimco"))
    assert set(rows_of(report)) - {"arm"} in ({"est"}, {"est (disarm)"})
    assert "relax (needs ∇f)" in report.text("compare")
    assert "vimco (its objective is bound)" in report.text("compare")


def test_an_estimator_that_fails_on_f_is_named():
    """This f cannot be differentiated twice."""
    f, slope = jax.custom_jvp(smooth), black_box(jax.grad(lambda b: smooth(b).sum()))
    f.defjvp(lambda primals, tangents: (smooth(*primals), jnp.sum(slope(*primals) * tangents[0], axis=-1)))
    report = quick(dj.disarm(), f, compare=("disarm_midpoint", "disarm_quadratic"))
    assert "disarm_midpoint" in rows_of(report)
    assert "Not measured: disarm_quadratic (" in report.text("compare")


def test_bounds_are_compared_with_bounds_of_as_many_samples():
    report = quick(dj.vimco(num_samples=3), log_weights(LOGITS), compare=True)
    assert {"multisample_disarm", "multisample_arms"} < set(rows_of(report))
    est = measure._make("multisample_arms", find_facts(dj.vimco(num_samples=3), (), jax.random.key(0), LOGITS))
    assert find_facts(custom(est), (), jax.random.key(0), LOGITS).bound_samples == 3


def test_classes_are_compared_with_classes():
    report = quick(dj.categorical.straight_through(), of_classes, CLASSES, compare=True)
    assert {"disarm_iw", "disarm_sb", "disarm_tree", "reinforce_loo"} <= set(rows_of(report))


def test_the_choice_of_names():
    facts = find_facts(dj.disarm(), (), jax.random.key(0), LOGITS)._replace(name="disarm")
    short, left_out = measure.candidates(True, facts, True)
    assert "disarm_midpoint" in short
    assert "disarm" not in short
    assert left_out == []
    every = measure.candidates("all", facts, True)[0]
    infos = [dj.estimator_info(name) for name in every]
    assert set(short) < set(every)
    assert all(info.unbiased and info.objective == "expectation" for info in infos)
    for choice in ("disarm", 3):
        with pytest.raises(ValueError, match='compare must be True, False, "all" or a sequence of names'):
            measure.candidates(choice, facts, True)
    with pytest.raises(ValueError, match="unknown estimator 'nothing'"):
        measure.candidates(("nothing",), facts, True)


# Chains.


def test_chains_are_checked_by_one_call():
    def apply(params, key, chain, f):
        return dj.Estimate(f(chain), chain)

    est = dj.Estimator(lambda key, chain: (), apply)
    chain = (jnp.ones((2, 3)), jnp.ones((2, 4)))
    report = quick(est, lambda b: b[0].sum(-1), chain)
    assert report.level("chain") == "note"
    assert "(2, 3), (2, 4)" in report.text("chain")
    assert quick(est, lambda b: b[0].sum(-1) * jnp.nan, chain).level("chain") == "problem"
    assert "est.apply failed" in quick(est, lambda b: b[5], chain).text("chain")


def test_an_estimator_that_does_not_take_this_f():
    def apply(params, key, logits, f):
        if f is smooth:
            raise ValueError("no")
        return dj.disarm().apply(params, key, logits, f)

    report = quick(dj.Estimator(lambda key, logits: (), apply))
    assert "est.apply failed for this f: ValueError: no." in report.text("apply")
    assert quick(dj.disarm()).level("apply") is None
