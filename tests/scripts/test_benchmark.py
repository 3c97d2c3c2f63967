"""The benchmark's counts and table; nothing here is timed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters.partial_eval import dce_jaxpr

from disarm_jax.experiment.build import make_model
from disarm_jax.experiment.load import make_experiment
from scripts import benchmark_cases as cases
from scripts import benchmark_torch
from scripts.benchmark import PROGRAMS, Timing, in_parts, in_turn, paired_ratios, timing
from scripts.benchmark_figure import draw
from scripts.benchmark_table import as_markdown, targets


def products_of_a_step(config: dict) -> int:
    """Operations of all matrix products in the compiled step, read off XLA's own program before optimisation."""
    model = make_model(config["model"], cases.PIXELS, np.full(cases.PIXELS, 0.13))
    experiment = make_experiment(config, model)
    state = jax.eval_shape(experiment.init, jnp.uint32(0))
    images = jax.ShapeDtypeStruct((100, cases.PIXELS), jnp.uint8)
    jaxpr = jax.make_jaxpr(cases.step_of(experiment))(state, images).jaxpr
    jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))  # as XLA leaves out what nobody uses

    def count(jaxpr) -> int:
        total = 0
        for equation in jaxpr.eqns:
            if equation.primitive is lax.dot_general_p:
                ((contracted, _), _), shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
                total += 2 * equation.outvars[0].aval.size * int(np.prod([shape[axis] for axis in contracted]))
            for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(parameter, "jaxpr", parameter)
                total += count(inner) if hasattr(inner, "eqns") else 0
        return total

    return count(jaxpr)


@pytest.mark.parametrize(
    ("file", "fields", "expected"),
    [
        # Of 50 · 784 · 200 multiplications: the encoder forward and backward, the pair forward, a fresh sample both.
        ("elbo_linear", {}, 6 * 15.68e6),
        ("elbo_linear", {"objective__generative_samples": "shared"}, 6 * 15.68e6),  # the pair forward and backward
        ("elbo_linear", {"estimator__options__num_pairs": 4}, (2 + 8 + 2) * 15.68e6),
        ("elbo_nonlinear", {}, 169.76e6),
        ("multisample:disarm,10", {"model__hidden": ()}, 20 * 31.36e6 + 31.36e6),
        ("layers:2", {}, 94.08e6 + 9 * 4e6),  # the upper layer: 3 rows up, 4 down, 1 and 1 backward
        ("layers:4", {}, 94.08e6 + (9 + 11 + 13) * 4e6),
        ("layers:4", {"objective__generative_samples": "shared"}, 94.08e6 + (9 + 12 + 15) * 4e6),
    ],
)
def test_operations_by_hand_are_those_of_the_program(file, fields, expected):
    """What the step computes is what it cannot do without, but for products with a vector (the prior's)."""
    config = cases.config_of(file, **fields)
    assert cases.flops_by_hand(config) == pytest.approx(expected, rel=1e-3)
    assert products_of_a_step(config) == pytest.approx(expected, rel=0.01)


def test_operations_of_estimators_that_differentiate_f_are_not_counted_by_hand():
    assert cases.flops_by_hand(cases.config_of("elbo_linear", estimator__name="relax")) is None


def test_products_of_the_quadratic_control_variate():
    """Beside DisARM's of 50 rows: the decoder at the mean, slope and diagonal; of the midpoint the slope alone."""
    for name, more in {"disarm_quadratic": 3, "disarm_midpoint": 1}.items():
        config = cases.config_of("elbo_linear", estimator__name=name)
        assert products_of_a_step(config) == pytest.approx(94.08e6 + more * 15.68e6, rel=0.01)


def test_every_estimator_is_measured():
    names = {(case.group, case.name) for case in cases.all_cases(quick=False)}
    assert {("linear", "relax"), ("nonlinear", "disarm"), ("4 layers", "arm")} <= names
    assert ("multi-sample, nonlinear", "vimco, 20 samples") in names
    assert len(names) == len(cases.all_cases(quick=False))


def test_groups_are_measured_together():
    chosen = cases.all_cases(quick=False)
    parts = in_parts(chosen)
    assert [case for part in parts for case in part] == chosen
    assert len(parts) > 1
    assert all(0 < len(part) <= PROGRAMS for part in parts)
    groups = [{case.group for case in part} for part in parts]
    assert len(set.union(*groups)) == sum(map(len, groups))


def test_a_case_trains():
    config = cases.config_of("elbo_linear", model__latents=(3,), batch_size=2)
    training = cases.Training(config, cases.images(10))
    assert training.run() > 0
    assert training.xla_flops > cases.flops_by_hand(config)


def test_the_reference_for_pytorch_is_a_gradient():
    """Against differences of the loss along the gradient of decoder and prior, at the same samples."""
    config = cases.config_of("elbo_nonlinear", model__latents=(3,), model__hidden=(4,), batch_size=2)
    found = cases.reference(config)
    assert found["pair"].shape == (2, 2, 3)
    assert {f"encoder/{n}/kernel" for n in range(2)} <= found.keys()
    assert found.keys() >= {f"expected/{name}" for name in found if name.partition("/")[0] in ("encoder", "prior")}
    bernoulli = lambda logits, b: np.sum(b * logits - np.logaddexp(0, logits), -1)

    def loss(prior, bias):
        hidden = (2 * found["fresh"] - 1) @ found["decoder/0/kernel"] + found["decoder/0/bias"]
        pixels = np.where(hidden > 0, hidden, 0.3 * hidden) @ found["decoder/1/kernel"] + bias
        return -np.mean(bernoulli(pixels, found["x"]) + bernoulli(prior, found["fresh"]))

    prior, bias = (found[name].astype(np.float64) for name in ("prior", "decoder/1/bias"))
    grads = found["expected/prior"], found["expected/decoder/1/bias"]
    ahead, behind = (loss(prior + h * grads[0], bias + h * grads[1]) for h in (1e-3, -1e-3))
    np.testing.assert_allclose((ahead - behind) / 2e-3, sum(np.sum(g**2) for g in grads), rtol=1e-3)
    json.dumps({name: array.tolist() for name, array in found.items()}, allow_nan=False)


@pytest.mark.parametrize("version", benchmark_torch.VERSIONS)
@pytest.mark.parametrize("file", ["elbo_linear", "elbo_nonlinear"])
def test_pytorch_computes_the_same(file, version):
    """Where PyTorch is installed, which is no requirement."""
    pytest.importorskip("torch")
    case = cases.reference(cases.config_of(file, batch_size=5))
    benchmark_torch.Step(case, version).check(case)
    case["expected/decoder/0/bias"][0] += 1
    with pytest.raises(AssertionError, match="decoder/0/bias"):
        benchmark_torch.Step(case, version).check(case)


def test_timings():
    runs = iter([3.0, 1.0, 2.0, 5.0, 4.0])
    assert in_turn({"a": lambda: next(runs)}, 5) == {"a": Timing(3.0, 1.0)}
    assert timing([1.0, 1.0]) == Timing(1.0, 0.0)


def test_ratios_are_taken_within_rounds():
    own, other = iter([1.0, 9.0, 3.0]), iter([2.0, 18.0, 3.0])
    runs = {"own": lambda: next(own), "other": lambda: next(other)}
    assert paired_ratios(runs, "other", 3) == {"own": 0.5, "other": 1.0}


def synthetic_results() -> dict:
    def row(group, name, seconds, axis=None):
        counts = {"flops_by_hand": 94.08e6, "flops_by_xla": 104e6, "of_sgemm_time": 2.0, "temporary_bytes": 2e6}
        counts["compile_seconds"] = 1.5
        return {"group": group, "name": name, "axis": axis, "seconds": seconds, "spread": 1e-5} | counts

    rows = [row("linear", name, 1e-3) for name in ("disarm", "arm", "reinforce_loo")]
    rows += [row("linear", "relax", 3e-3), row("nonlinear", "disarm", 2e-3)]
    rows += [row("multi-sample, linear", "multisample_disarm, 1 pairs", 1e-3)]
    rows += [row("multi-sample, linear", "vimco, 2 samples", 1e-3)]
    rows += [row("batch size", f"{size}", size * 1e-5, size) for size in (25, 50)]
    cores = {"1 seed on one core": 1e-3, "5 seeds on one core": 5e-3, "1 seed per core, one process": 1.05e-3}
    start = {"import jax": 0.5, "import disarm_jax": 0.55, "first step, cached": 3.0}
    machine = {"processor": "a CPU", "cores": 2, "platform": "an OS", "jax": "1", "command": "a command"}
    evaluation = {"images": 10_000, "samples": 100, "seconds": 4.0, "of_sgemm_peak": 0.5}
    measured = {"sgemm_flops_per_second": 1e11, "sgemm_spread": 0.01, "copy_bytes_per_second": 1e10, "rounds": 3}
    over_disarm = {"arm": 1.04, "reinforce_loo": 0.97, "relax": 3.0, "disarm_midpoint": 1.2}
    measured |= {"over_linear_disarm": over_disarm, "peak_memory_bytes": 1e9}
    return measured | {
        "steps": rows, "cores": cores, "start": start, "machine": machine, "evaluation": evaluation
    }  # fmt: skip


def test_the_table_says_what_was_met(tmp_path):
    results = json.loads(json.dumps(synthetic_results()))  # as read from benchmark.json
    verdicts = {target.what: (target.measured, target.verdict()) for target in targets(results)}
    assert verdicts["linear RELAX over DisARM"] == (pytest.approx(3.0), "not met")
    assert verdicts["linear DisARM with slopes at midpoints over DisARM"] == (pytest.approx(1.2), "met")
    assert verdicts["throughput of 2 cores over that of one"] == (pytest.approx(2 / 1.05), "met")
    assert verdicts["LOO and ARM over DisARM, the largest distance from 1"] == (pytest.approx(0.04), "met")
    assert verdicts["T layers: time per T + 1 rows, 4 over 2 layers"] == (None, "not measured")
    deep = [row | {"group": group} for row, group in zip(results["steps"], ("2 layers", "4 layers"), strict=False)]
    deep[1] |= {"name": "disarm", "seconds": 2e-3, "flops_by_hand": 150e6}
    verdicts = {target.what: target.measured for target in targets(results | {"steps": results["steps"] + deep})}
    assert verdicts["T layers: time per T + 1 rows, 4 over 2 layers"] == pytest.approx(2 * 3 / 5)
    assert verdicts["T layers: time per operation by hand, 4 over 2 layers"] == pytest.approx(2 * 94.08 / 150)
    pytorch = {"version": "2", "steps": {"linear": {"ours": 1e-3, "eager, 1 core": 3e-3, "compiled, 2 cores": 1.7e-3}}}
    beside = as_markdown(results | {"torch": pytorch})
    assert "| linear | disarm | 1.00 | 0.01 | 1000 | 94 | 104 | 2.00 | 2.0 | 1.5 | 1.70 × |" in beside
    assert "| PyTorch's step over ours, linear | 1.7 | ≥ 2.2 | not met |" in beside
    assert "| linear | eager, 1 core | 3.00 |" in beside
    table = as_markdown(results)
    assert "PyTorch's" not in table
    assert "| linear | relax | 3.00 | 0.01 | 333 | 94 | 104 | 2.00 | 2.0 | 1.5 |" in table
    assert "| 1 seed per core, one process | 1.05 | 1905 |" in table
    draw(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
