"""Which run stands in which cell, what makes it comparable with the paper's number, and what it cost."""

import json
import math

import pytest
from synthetic import config_at, write_run

from disarm_jax.command_line import get_config
from disarm_jax.report import paper, tables
from disarm_jax.report.cells import compare
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs
from disarm_jax.report.times import evaluations_of

DISARM = Place("mnist", "linear", "disarm")  # the paper: train -116.30 ± 0.08, test -109.13 ± 0.04
CLOSE = [-116.4, -116.3, -116.2]  # mean -116.3, standard error 0.1 / √3


def compared(folder):
    runs, problems = read_runs([folder])
    assert not problems
    return compare(pool_runs(runs), get_config)


def cell_of(folder, place=DISARM, split="train"):
    return compared(folder).cells[place, split]


def test_the_difference_is_in_combined_standard_errors(tmp_path):
    write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1, 2)), CLOSE, [-109.0, -108.9, -108.8])
    comparison = compared(tmp_path)
    train, test = comparison.cells[DISARM, "train"], comparison.cells[DISARM, "test"]
    assert (train.verdict, train.reasons) == ("match", ())
    assert train.difference == pytest.approx(0.0, abs=1e-9)
    assert test.difference == pytest.approx(0.23 / math.sqrt(0.01 / 3 + 0.04**2))  # 3.27
    assert test.verdict == "differs"
    assert train.remarks == ("3 seeds instead of 5",)
    assert tables.difference(test) == "+3.3"
    assert tables.number(train.value.mean, train.value.stderr) == "-116.30 ± 0.06"


@pytest.mark.parametrize(("mean", "verdict"), [(-116.0, "match"), (-115.8, "differs")])
def test_a_single_seed_is_judged_by_the_papers_spread(tmp_path, mean, verdict):
    write_run(tmp_path / "run", config_at(DISARM, seeds=(3,)), [mean])
    cell = cell_of(tmp_path)
    assert (cell.verdict, cell.counts, tables.verdict(cell)) == (verdict, True, f"{verdict} (one seed)")
    assert cell.value.stderr is None
    assert cell.difference == pytest.approx((mean + 116.3) / (0.08 * math.sqrt(6)))
    assert tables.difference(cell).startswith("≈ +")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"steps": 100_000}, "100,000 steps instead of 1,000,000"),
        ({"steps": 2_000_000, "checkpoint.keep": 1}, "2,000,000 steps instead of 1,000,000"),
        ({"batch_size": 20}, "batch_size is 20 instead of 50"),
        ({"dataset.binarization": "threshold"}, "dataset.binarization is 'threshold' instead of 'dynamic'"),
        ({"model.latents": (50,)}, "model.latents is [50] instead of [200]"),
        ({"estimator.options.num_pairs": 4}, "estimator.options.num_pairs is 4 instead of the default"),
        ({"optimizer.encoder.learning_rate": 1e-3}, "optimizer.encoder.learning_rate is 0.001 instead of 0.0001"),
    ],
)
def test_other_steps_and_settings_are_not_comparable(tmp_path, overrides, reason):
    config = config_at(DISARM, seeds=(0, 1, 2), **overrides)
    path = write_run(tmp_path / "run", config, CLOSE)
    if config["steps"] > paper.STEPS:  # one that does not have the metric at the paper's steps
        rows = [row for row in (path / "metrics.jsonl").read_text().splitlines() if '"step": 1000000,' not in row]
        (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    cell = cell_of(tmp_path)
    assert (cell.verdict, cell.reasons, cell.difference) == ("not comparable", (reason,), None)
    assert cell.command == paper.command_of(DISARM)


def test_cadence_and_paths_do_not_matter(tmp_path):
    overrides = {"eval.train_every": 100_000, "log_every": 500, "checkpoint.keep": 1, "dataset.source": "files"}
    overrides |= {"variance.estimators": ("arm",), "dataset.path": "/somewhere"}
    write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1, 2), **overrides), CLOSE)
    assert cell_of(tmp_path).verdict == "match"


def test_a_longer_run_is_compared_at_the_papers_steps(tmp_path):
    write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1, 2), steps=2_000_000), [v + 50 for v in CLOSE])
    cell = cell_of(tmp_path)  # its bounds are 50 lower half way
    assert (cell.verdict, cell.value.step) == ("match", 1_000_000)


def test_other_images_under_the_same_name_are_not_comparable(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1, 2)), CLOSE)
    summary = json.loads((path / "summary.json").read_text())
    summary["data"]["sha256"]["train"] = "0" * 64
    (path / "summary.json").write_text(json.dumps(summary))
    cell = cell_of(tmp_path)
    assert cell.verdict == "not comparable"
    assert "another version of the data" in cell.reasons[0]


def test_a_missing_cell_says_which_command_fills_it(tmp_path):
    write_run(tmp_path / "run", config_at(DISARM), [-116.0] * 5)
    comparison = compared(tmp_path)
    place = Place("omniglot", "nonlinear", "multisample_disarm_10")
    cell = comparison.cells[place, "train"]
    assert (cell.verdict, cell.value, cell.difference) == ("missing", None, None)
    commands = tables.missing_commands(paper.TABLES[0], comparison)
    assert len(commands) == 59
    assert f"{cell.command}  # Omniglot, Nonlinear, DisARM 10-pairs" in commands


def test_a_run_without_the_bound_yet_is_missing_and_says_where_it_is(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0,)), [-150.0], step=10)
    (path / "metrics.jsonl").write_text('{"step": 1000, "seed": 0, "objective": -200.0}\n')
    cell = cell_of(tmp_path)
    assert (cell.verdict, cell.remarks) == ("missing", ("at step 1,000, without train_elbo yet",))


def test_the_run_closest_to_the_papers_stands_in_the_table_and_the_others_below(tmp_path):
    write_run(tmp_path / "far", config_at(DISARM, seeds=(0, 1, 2, 3), batch_size=10, steps=10_000), [-140.0] * 4)
    write_run(tmp_path / "near", config_at(DISARM, seeds=(0,)), [-116.0])
    write_run(tmp_path / "elsewhere", config_at(DISARM, **{"dataset.name": "mnist5k"}), [-100.0] * 5)
    comparison = compared(tmp_path)
    assert comparison.cells[DISARM, "train"].value.mean == -116.0
    assert sorted(pool.runs[0].path.name for pool in comparison.others) == ["elsewhere", "far"]
    assert [cell.pool.runs[0].path.name for cell in comparison.cells.values() if cell.pool] == ["near", "near"]


def test_remarks_on_lengths_and_repeated_seeds(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0, 1, 2, 3)), [0.0] * 4, step=100_000)
    write_run(tmp_path / "b", config_at(DISARM, seeds=(3, 4)), [0.0] * 2, step=200_000)
    remarks = cell_of(tmp_path).remarks
    assert remarks == (
        "taken at the last common step of seeds that are at 100,000 to 200,000",
        "seed 3: in several run directories, counted once",
    )


@pytest.mark.parametrize(
    ("place", "evaluations"),
    [
        (DISARM, 2),
        (Place("mnist", "nonlinear", "relax"), 3),
        (Place("mnist", "layers_3", "reinforce_loo"), 4),
        (Place("mnist", "layers_4", "relax"), 9),
        (Place("mnist", "linear", "multisample_disarm_1"), 2),
        (Place("mnist", "linear", "vimco_20"), 20),
    ],
)
def test_evaluations_of_f(place, evaluations):
    assert evaluations_of(config_at(place)) == evaluations


@pytest.mark.parametrize(
    ("name", "options", "latents", "evaluations"),
    [
        ("arms", {"num_samples": 3}, (200,), 3),
        ("arms", {"num_samples": 3}, (200, 200), 5),
        ("leg", {}, (200,), 201),
        ("relax", {"later_layers": "hard"}, (200, 200), 5),
        ("mine:estimator", {}, (200,), None),
        ("disarm", {"an_option_of_later": 1}, (200,), None),
    ],
)
def test_evaluations_of_f_beyond_the_paper(name, options, latents, evaluations):
    config = {"estimator": {"name": name, "options": options}, "model": {"latents": latents}}
    assert evaluations_of(config) == evaluations


def test_times_are_relative_to_disarm_on_the_same_model_and_device(tmp_path):
    relax, other = Place("mnist", "linear", "relax"), Place("mnist", "nonlinear", "relax")
    write_run(tmp_path / "disarm", config_at(DISARM), [0.0] * 5, seconds_per_step=0.01)
    write_run(tmp_path / "relax", config_at(relax), [0.0] * 5, seconds_per_step=0.025, spread=0.04)
    write_run(tmp_path / "other", config_at(other), [0.0] * 5, seconds_per_step=0.025)
    arm = write_run(tmp_path / "arm", config_at(Place("mnist", "linear", "arm")), [0.0] * 5)
    summary = json.loads((arm / "summary.json").read_text())
    (arm / "summary.json").write_text(json.dumps(summary | {"device": summary["device"] | {"kind": "gpu"}}))
    cells = compared(tmp_path).cells
    assert cells[DISARM, "train"].time.ratio == 1.0
    assert cells[other, "train"].time is None
    assert cells[Place("mnist", "linear", "arm"), "train"].time is None
    time = cells[relax, "train"].time  # of nine chunks four are 4% longer and five 4% shorter
    assert (time.ratio, time.low, time.high) == pytest.approx((2.4, 2.4, 2.6))
    assert time.device == "1 × cpu, a processor, 2 cores"
    assert str(time) == "2.40 (2.40 to 2.60)"


def test_times_of_a_shared_machine_are_left_out_with_a_note(tmp_path):
    write_run(tmp_path / "disarm", config_at(DISARM), [0.0] * 5, seconds_per_step=0.01, spread=0.06)
    cell = cell_of(tmp_path)
    assert cell.time is None
    assert "no time: the machine was shared" in cell.remarks[-1]


def test_times_of_multisample_bounds_are_relative_to_as_many_evaluations(tmp_path):
    for column, seconds in (("multisample_disarm_1", 0.01), ("multisample_disarm_10", 0.04), ("vimco_20", 0.02)):
        config = config_at(Place("mnist", "linear", column))
        write_run(tmp_path / column, config, [0.0] * 5, seconds_per_step=seconds)
    cells = compared(tmp_path).cells
    assert cells[Place("mnist", "linear", "vimco_20"), "test"].time.ratio == pytest.approx(0.5)


def test_a_run_that_measures_others_tells_no_time(tmp_path):
    config = config_at(DISARM, **{"variance.estimators": ("arm",)})
    write_run(tmp_path / "run", config, [0.0] * 5, measured={"arm": 0.1})
    assert cell_of(tmp_path).time is None
