"""Run directories are read whatever state they are in; the same experiment is pooled, and no seed counts twice."""

import json

import numpy as np
import pytest
from synthetic import config_at, write_run

from disarm_jax.report.paper import Place
from disarm_jax.report.pools import mean_and_stderr, pool_runs
from disarm_jax.report.runs import read_run, read_runs

DISARM = Place("mnist", "linear", "disarm")


def pools_below(folder):
    runs, problems = read_runs([folder])
    assert not problems
    return pool_runs(runs)


def test_standard_error_by_hand():
    # mean 4; squares of deviations 9 + 1 + 1 + 9 = 20; variance 20 / 3; standard error √(20 / 3 / 4) = √(5 / 3)
    assert mean_and_stderr([1.0, 3.0, 5.0, 7.0]) == (4.0, pytest.approx(1.2909944487))
    assert mean_and_stderr([2.5]) == (2.5, None)


def test_seeds_trained_together_and_apart_are_one_pool(tmp_path):
    write_run(tmp_path / "a" / "together", config_at(DISARM, seeds=(0, 1)), [1.0, 3.0])
    write_run(tmp_path / "b", config_at(DISARM, seeds=(2,), **{"eval.train_every": 50_000}), [5.0])
    write_run(tmp_path / "c", config_at(DISARM, seeds=(7,), **{"dataset.data_dir": "/data"}), [7.0])
    (pool,) = pools_below(tmp_path)
    value = pool.value("train_elbo")
    assert pool.seeds == value.seeds == (0, 1, 2, 7)
    assert (value.mean, value.stderr, value.step) == (4.0, pytest.approx(1.2909944487), 1_000_000)


def test_another_setting_is_another_pool(tmp_path):
    for number, overrides in enumerate(({}, {"batch_size": 20}, {"dataset.binarization": "threshold"})):
        write_run(tmp_path / str(number), config_at(DISARM, seeds=(number,), **overrides), [1.0])
    assert len(pools_below(tmp_path)) == 3


def test_an_option_at_its_default_is_no_other_setting(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [1.0])
    write_run(tmp_path / "b", config_at(DISARM, seeds=(1,), **{"estimator.options.num_pairs": 1}), [1.0])
    write_run(tmp_path / "c", config_at(DISARM, seeds=(1,), **{"estimator.options.num_pairs": 2}), [1.0])
    assert sorted(len(pool.runs) for pool in pools_below(tmp_path)) == [1, 2]


def test_own_data_sets_are_told_apart_by_their_files(tmp_path):
    for name in ("a", "b"):
        overrides = {"dataset.name": "npz", "dataset.path": f"{name}.npz", "seeds": (0,)}
        write_run(tmp_path / name, config_at(DISARM, **overrides), [1.0])
    assert len(pools_below(tmp_path)) == 2


def test_a_seed_that_was_trained_twice_counts_once(tmp_path):
    write_run(tmp_path / "short", config_at(DISARM, seeds=(0, 1), steps=100_000), [-9.0, -9.0])
    write_run(tmp_path / "long", config_at(DISARM, seeds=(0, 1), steps=200_000), [1.0, 3.0])
    write_run(tmp_path / "copy", config_at(DISARM, seeds=(1,), steps=200_000), [3.0])
    (pool,) = pools_below(tmp_path)
    assert pool.repeated == (0, 1)
    value = pool.value("train_elbo")
    assert (value.mean, value.stderr, value.step, value.seeds) == (2.0, 1.0, 200_000, (0, 1))


def test_the_same_directory_given_twice_is_read_once(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [1.0])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    runs, problems = read_runs([tmp_path, tmp_path / "a", tmp_path / "link"])
    assert (len(runs), problems) == (1, [])


def test_seeds_of_different_lengths_are_taken_at_their_last_common_step(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [0.0], step=100_000)
    write_run(tmp_path / "b", config_at(DISARM, seeds=(1,)), [0.0], step=200_000)
    (pool,) = pools_below(tmp_path)
    value = pool.value("train_elbo")  # seed 0 is at its end, 0; seed 1 half way, at -50
    assert (value.step, value.mean, value.seeds) == (100_000, -25.0, (0, 1))
    assert value.reached == {0: 100_000, 1: 200_000}


def test_seeds_at_the_papers_steps_do_not_wait_for_others(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0, 1)), [1.0, 3.0])
    write_run(tmp_path / "b", config_at(DISARM, seeds=(2,)), [0.0], step=100_000)
    (pool,) = pools_below(tmp_path)
    value = pool.value("train_elbo")
    assert (value.step, value.mean, value.seeds) == (1_000_000, 2.0, (0, 1))
    assert value.reached[2] == 100_000
    steps, mean, stderr = pool.curve("train_elbo")
    assert list(steps) == [100_000 * tenth for tenth in range(1, 11)]
    np.testing.assert_allclose(mean, 2.0 - 100 * (1 - steps / 1_000_000))
    np.testing.assert_allclose(stderr, 1.0)


def test_measured_estimators_are_no_other_experiment(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [1.0])
    measuring = config_at(DISARM, seeds=(0,), **{"variance.estimators": ("arm",)})
    write_run(tmp_path / "b", measuring, [1.0], measured={"arm": 0.02})
    (pool,) = pools_below(tmp_path)
    assert pool.value("train_elbo").seeds == (0,)
    assert pool.value("gradient_variance/arm").mean == pytest.approx(0.04)


def test_a_half_written_line_is_left_out(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1)), [1.0, 3.0], step=500_000)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 600000, "seed": 0, "train_elbo": 2.5}\n{"step": 600000, "seed": 1, "tra')
    (pool,) = pools_below(tmp_path)
    value = pool.value("train_elbo")
    assert (value.step, value.mean, value.reached) == (500_000, 2.0, {0: 600_000, 1: 500_000})


def test_a_run_that_has_just_begun_is_no_damaged_one(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM), [1.0] * 5, step=10)
    for name in ("metrics.jsonl", "timings.jsonl"):
        (path / name).unlink()
    run = read_run(path)
    assert (run.step, run.finished, run.devices, run.command, run.step_time) == (0, False, (), "", None)
    (pool,) = pool_runs([run])
    assert pool.value("train_elbo") is None
    assert len(pool.curve("train_elbo")[0]) == 0


@pytest.mark.parametrize(("steps", "finished"), [(1_000_000, True), (10_000, False)])
def test_a_copy_without_the_last_file_is_finished_if_its_summary_says_so(tmp_path, steps, finished):
    path = write_run(tmp_path / "run", config_at(DISARM), [1.0] * 5)
    (path / "DONE").unlink()
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"steps": steps}))
    assert read_run(path).finished is finished


def test_compilation_does_not_count_as_time(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0, 1)), [1.0, 1.0], seconds_per_step=0.004)
    rows = (path / "timings.jsonl").read_text().splitlines()
    slow = json.dumps(json.loads(rows[0]) | {"seconds": 1e9})
    (path / "timings.jsonl").write_text("\n".join([slow, *rows[1:]]) + "\n")
    run = read_run(path)
    assert run.step_time == pytest.approx((0.002,) * 3)  # of one seed
    assert run.command == "python -m main --config configs/base.py"
    assert run.devices == ("1 × cpu, a processor, 2 cores",)


def damage(path, name, text):
    if name == "config.json" and isinstance(text, dict):
        text = json.dumps(json.loads((path / name).read_text()) | text)
    (path / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"dataset": {"na'),
        ("config.json", "[]"),
        ("config.json", '{"hidden_size": 768}'),
        ("config.json", {"seeds": []}),
        ("config.json", {"seeds": "01"}),
        ("config.json", {"model": {"latents": 200}}),
        ("summary.json", '{"device": {"kind": "cpu"}}'),
        ("summary.json", '{"command": [3]}'),
    ],
)
def test_damaged_runs_are_named_and_skipped(tmp_path, name, text):
    write_run(tmp_path / "good", config_at(DISARM), [1.0] * 5)
    damage(write_run(tmp_path / "damaged", config_at(DISARM), [1.0] * 5), name, text)
    runs, (problem,) = read_runs([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    assert str(tmp_path / "damaged") in problem
    assert "damaged" in problem
    assert "\n" not in problem
