"""The paper's claims are judged between runs that differ in nothing but the estimator, at the same step."""

import json

import pytest
from synthetic import config_at, write_run

from disarm_jax.command_line import get_config
from disarm_jax.report import claims, paper
from disarm_jax.report.cells import compare
from disarm_jax.report.claims import CLAIMS, Claim, judge
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs

DISARM, LOO, ARM, RELAX = (Place("mnist", "linear", name) for name in ("disarm", "reinforce_loo", "arm", "relax"))
VARIANCE = Claim("DisARM below LOO", "variance", ("disarm", "reinforce_loo"), claims.EVERY)
TRAIN = Claim("DisARM ahead of LOO", "train", ("disarm", "reinforce_loo"), claims.EVERY)
OVERTAKES = Claim("DisARM overtakes RELAX", "overtakes", ("disarm", "relax"), claims.NONLINEAR)
ORDER = Claim("test as train", "order", tuple(paper.ELBO), claims.EVERY)
TIME = Claim("RELAX twice as long", "time", ("relax",), claims.EVERY, (1.5, 2.5))


def judged(folder, claim, get=get_config):
    runs, problems = read_runs([folder])
    assert not problems
    return judge(claim, compare(pool_runs(runs), get))


def write(folder, place, train=-116.0, test=None, **more):
    overrides = more.pop("overrides", {})
    config = config_at(place, seeds=(0,), **overrides)
    name = "-".join([*place, str(len(list(folder.iterdir())))])
    return write_run(folder / name, config, [train], None if test is None else [test], **more)


@pytest.mark.parametrize(("variance", "verdict"), [(0.012, "holds"), (0.008, "does not hold")])
def test_variances(tmp_path, variance, verdict):
    write(tmp_path, DISARM, variance=0.01)
    write(tmp_path, LOO, variance=variance)
    judgement = judged(tmp_path, VARIANCE)
    assert judgement.verdict == verdict
    assert judgement.counts == f"holds on {int(verdict == 'holds')} of 1 run, 14 not run"
    assert judgement.in_paper is None
    (finding,) = judgement.findings
    assert f"DisARM over REINFORCE LOO: {0.01 / variance:.2f}" in str(finding)


@pytest.mark.parametrize(("train", "verdict"), [(-118.1, "holds"), (-115.9, "undecided"), (-114.0, "does not hold")])
def test_bounds(tmp_path, train, verdict):
    write(tmp_path, DISARM, -116.0)
    write(tmp_path, LOO, train)
    judgement = judged(tmp_path, TRAIN)
    assert judgement.verdict == verdict
    assert f"DisARM -116.00, REINFORCE LOO {train:.2f}: {-116 - train:+.2f} ± " in str(judgement.findings[0])
    assert "(paper +0.27)" in str(judgement.findings[0])


@pytest.mark.parametrize(("train", "note"), [(-115.9, " (1 within the noise)"), (-114.0, "")])
def test_a_failure_within_the_noise_says_so(tmp_path, train, note):
    write(tmp_path, DISARM, -116.0)
    write(tmp_path, LOO, train)
    assert judged(tmp_path, TRAIN).counts == f"holds on 0 of 1 run{note}, 14 not run"


def test_one_of_the_two_is_not_enough(tmp_path):
    write(tmp_path, DISARM)
    judgement = judged(tmp_path, TRAIN)
    assert (judgement.verdict, judgement.counts) == ("not run", "15 not run")


def test_other_settings_are_not_compared(tmp_path):
    write(tmp_path, DISARM)
    write(tmp_path, LOO, -120.0, overrides={"batch_size": 20})
    assert judged(tmp_path, TRAIN).verdict == "not run"


def test_shorter_runs_are_compared_at_a_common_step_and_do_not_count(tmp_path):
    write(tmp_path, DISARM, -116.0)
    write(tmp_path, LOO, -120.0, step=500_000)  # DisARM is at -166 there
    judgement = judged(tmp_path, TRAIN)
    assert judgement.verdict == "not run"
    assert judgement.counts == "1 too early to judge (holds on 0 so far), 14 not run"
    (finding,) = judgement.early
    assert "does not hold at step 500,000, too early to count; DisARM -166.00, REINFORCE LOO -120.00" in str(finding)


def test_runs_of_a_variant_are_compared_with_each_other_alone(tmp_path):
    def reference(name):
        config = get_config(name)
        config.objective.generative_samples = "independent"
        return config

    shared, independent = ({"objective.generative_samples": name} for name in ("shared", "independent"))
    write(tmp_path, DISARM, -116.0, overrides=shared)
    write(tmp_path, LOO, -120.0, overrides=independent)
    assert judged(tmp_path, TRAIN, reference).verdict == "not run"
    write(tmp_path, LOO, -110.0, overrides=shared)
    (finding,) = judged(tmp_path, TRAIN, reference).findings
    assert (finding.holds, finding.variant) == (False, "shared samples")
    write(tmp_path, DISARM, -111.0, overrides=independent)
    (finding,) = judged(tmp_path, TRAIN, reference).findings  # of the reference, where there are both
    assert (finding.holds, finding.variant) == (True, "")


def with_variances(path, variances):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "gradient_variance" in row:
            row["gradient_variance"] = variances[row["step"] > 500_000]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("relax", "verdict"), [((0.005, 0.02), "holds"), ((0.02, 0.02), "does not hold"), ((0.005, 0.005), "does not hold")]
)
def test_overtaking_needs_both_ends(tmp_path, relax, verdict):
    write(tmp_path, Place("mnist", "nonlinear", "disarm"), variance=0.01)
    with_variances(write(tmp_path, Place("mnist", "nonlinear", "relax")), relax)
    with_variances(tmp_path / "mnist-nonlinear-disarm-0", (0.01, 0.01))
    judgement = judged(tmp_path, OVERTAKES)
    assert judgement.verdict == verdict
    assert f"{0.01 / relax[0]:.2f} in the first tenth, {0.01 / relax[1]:.2f} in the last" in str(judgement.findings[0])


@pytest.mark.parametrize(("test", "verdict"), [(-109.2, "undecided"), (-105.0, "does not hold")])
def test_order_of_test_and_train(tmp_path, test, verdict):
    write(tmp_path, DISARM, -116.0, -108.0)
    write(tmp_path, LOO, -120.0, -109.5)
    assert judged(tmp_path, ORDER).verdict == "holds"
    write(tmp_path, ARM, -124.0, test)  # behind LOO in train; ahead of it, or of both, in test
    judgement = judged(tmp_path, ORDER)
    assert judgement.verdict == verdict
    expected = "DisARM > ARM > REINFORCE LOO" if verdict == "undecided" else "ARM > DisARM > REINFORCE LOO"
    assert f"train DisARM > REINFORCE LOO > ARM; test {expected}" in str(judgement.findings[0])


def test_the_order_after_all_steps_counts_before_an_early_one_of_more_estimators(tmp_path):
    for place in (DISARM, LOO):
        write(tmp_path, place, -116.0)
    for place in (ARM, RELAX, Place("mnist", "linear", "arm")):
        write(tmp_path, place, -116.0, step=100_000)
    (finding,) = judged(tmp_path, ORDER).findings
    assert "ARM >" not in finding.numbers.replace("DisARM", "")


@pytest.mark.parametrize(("seconds", "verdict"), [(0.02, "holds"), (0.03, "does not hold")])
def test_times(tmp_path, seconds, verdict):
    write(tmp_path, DISARM, seconds_per_step=0.01)
    write(tmp_path, RELAX, seconds_per_step=seconds)
    assert judged(tmp_path, TIME).verdict == verdict


def test_times_of_a_shared_machine_are_not_judged(tmp_path):
    write(tmp_path, DISARM, seconds_per_step=0.01)
    write(tmp_path, RELAX, seconds_per_step=0.02, spread=0.2)
    assert judged(tmp_path, TIME).verdict == "not run"


def test_the_papers_own_numbers(tmp_path):
    """What its tables say of its claims; two models of the multi-sample bound are its own exceptions."""
    write(tmp_path, DISARM)
    comparison = compare(pool_runs(read_runs([tmp_path])[0]), get_config)
    found = {claim.text: judge(claim, comparison) for claim in CLAIMS}
    kept = {text: (one.in_paper, one.models) for text, one in found.items() if one.in_paper is not None}
    assert {text: pair for text, pair in kept.items() if pair[0] != pair[1]} == {
        "Train multi-sample bound: DisARM with 1 pair ahead of VIMCO with 2 samples": (4, 6),
        "ELBO: test bounds have the order of train bounds": (14, 15),
        "20-sample bound: test bounds have the order of train bounds": (5, 6),
    }
    assert kept["Train ELBO: DisARM ahead of ARM"] == (15, 15)


def test_every_claim_is_about_columns_and_models_of_the_paper():
    for claim in CLAIMS:
        for column in claim.columns:
            for model in claim.models:
                assert (Place("mnist", model, column), "train") in paper.NUMBERS
