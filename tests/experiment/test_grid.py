"""A grid of rates in one program: each member is the run alone to the bit, and fails alone."""

import json
import sys
import types

import jax
import numpy as np
import pytest

from disarm_jax.experiment import loop
from disarm_jax.experiment.config import ConfigError, resolve
from disarm_jax.experiment.evaluate import evaluate_run
from disarm_jax.experiment.fields import Config
from disarm_jax.experiment.grid import GRID_FIELDS, Member, at_point, members_of, numbers_of, point_text, points_of
from disarm_jax.experiment.load import load_members, load_run
from disarm_jax.experiment.loop import NonFiniteError, train
from disarm_jax.report.names import distinct_names
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs
from disarm_jax.report.tables import other_rows
from disarm_jax.run_directory.directory import RunDir, RunDirError
from disarm_jax.run_directory.record import summary_text
from disarm_jax.run_directory.rows import read_rows
from disarm_jax.run_directory.writers import Recorder
from disarm_jax.sweep import hyper
from disarm_jax.sweep.trials import main_command, make_trials
from tests.experiment.tiny import tiny_config

ENCODER, DECODER, PRIOR = (f"optimizer.{group}.learning_rate" for group in ("encoder", "decoder", "prior"))
SHORT = {"steps": 10, "eval.train_every": 10, "eval.test_every": 10, "checkpoint.every": 10, "writers": ()}


def rows_of(run_dir, point=None):
    """The rows of metrics.jsonl of one point, as if it had been trained alone."""
    rows = read_rows(run_dir.metrics_file)
    return [{k: v for k, v in row.items() if k != "point"} for row in rows if row.get("point") == point]


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


BITS = {
    "one layer": {},
    "a chain, a schedule and a norm that is clipped": {
        "model.latents": (4, 3),
        "optimizer.encoder.schedule": "cosine",
        "optimizer.encoder.warmup_steps": 2,
        "optimizer.encoder.clip": 0.5,
    },
    "a bound, with a prior that learns from sums": {
        "objective.name": "multisample",
        "estimator.name": "multisample_disarm",
        "objective.num_samples": 3,
    },
    "tunables with an optimiser": {"estimator.name": "relax", "model.hidden": (5,)},
}


def test_members_are_the_runs_alone_to_the_bit(tmp_path, monkeypatch):
    """Compiled as users do, who rely on it."""
    check_members(tmp_path, monkeypatch, "one layer", 3)


@pytest.mark.parametrize(("name", "num_devices"), list(zip(list(BITS)[1:], (1, 3, 1), strict=True)))
def test_other_members_are_the_runs_alone_to_the_bit(tmp_path, monkeypatch, quick_compile, name, num_devices):
    check_members(tmp_path, monkeypatch, name, num_devices)


def check_members(tmp_path, monkeypatch, name, num_devices):
    """Metrics, and all of the state: a rate of the encoder and one of all others, two seeds, on one device or more."""
    for figure in ("draw_curves", "draw_samples"):  # those of `finished` are enough
        monkeypatch.setattr(loop, figure, lambda *unused: None)
    settings = SHORT | BITS[name] | {"seeds": (3, 5)}
    together = f"{ENCODER},{DECODER}=0.003,0.01 {PRIOR},optimizer.tunables.learning_rate=0.02"
    if num_devices == 3:  # members lie otherwise on the devices
        together = together.replace("0.003,", "0.003,0.1,")
    config = tiny_config(tmp_path, **settings, grid=together)
    train(config, tmp_path / "grid", jax.devices()[:num_devices])
    point = {ENCODER: 0.01, DECODER: 0.01, PRIOR: 0.02, "optimizer.tunables.learning_rate": 0.02}
    number = points_of(resolve(config)).index(point)
    alone = tiny_config(tmp_path, **settings | point | {"seeds": (5,)})
    train(alone, tmp_path / "alone", jax.devices()[:1])

    found, expected = load_run(tmp_path / "grid", point=number), load_run(tmp_path / "alone")
    assert_same_bits(jax.tree.map(lambda leaf: leaf[1:], found.state), expected.state)
    assert found.config == resolve(tiny_config(tmp_path, **settings | point))
    rows = [row for row in rows_of(RunDir(tmp_path / "grid"), number) if row["seed"] == 5]
    assert rows == rows_of(RunDir(tmp_path / "alone"))
    assert len(rows) == 2 + 3
    assert rows[1]["learning_rate/prior"] == 0.02


THREE = f"{ENCODER}=0.001,0.01,0.1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quick_compile):
    """Three rates, two seeds; and what `train` has returned."""
    folder = tmp_path_factory.mktemp("grid")
    config = tiny_config(folder, seeds=(0, 7), grid=THREE, **SHORT | {"writers": ("tensorboard",)})
    return folder / "run", resolve(config), train(config, folder / "run")


def test_each_point_has_its_numbers(finished):
    path, config, summary = finished
    assert members_of(config)[1:3] == (Member(7, 0), Member(0, 1))
    assert [point["fields"] for point in summary["points"]] == [{ENCODER: rate} for rate in (0.001, 0.01, 0.1)]
    last = [row for row in RunDir(path).read_metrics() if row["step"] == 10 and "objective" in row]
    for number, point in enumerate(summary["points"]):
        own = [row for row in last if row["point"] == number]
        assert [row["seed"] for row in own] == [0, 7]
        assert [row["learning_rate/encoder"] for row in own] == [point["fields"][ENCODER]] * 2
        assert point["metrics"]["objective"]["seeds"] == [row["objective"] for row in own]
        assert {"train_elbo", "test_3_sample_bound"} <= set(point["metrics"])
        assert point["diverged"] == []
        events = path / "points" / f"{number}-{point_text(point['fields'])}" / "tensorboard"
        assert {folder.name for folder in events.iterdir()} == {"seed_0", "seed_7"}
    assert len({point["metrics"]["objective"]["mean"] for point in summary["points"]}) == 3
    assert (path / "curves.png").exists()
    said = summary_text(summary)
    assert " encoder.learning_rate=0.01\n" in said
    assert said.count("test_3_sample_bound") == 3


def test_a_report_has_a_run_for_each_point(finished):
    path, config, summary = finished
    results = {
        "step": 10,
        "points": [{"metrics": {"test_elbo": {"mean": -n, "stderr": 1, "seeds": [0, 0]}}} for n in range(3)],
    }
    (path / "evaluation_9_samples.json").write_text(json.dumps(results))
    runs, problems = read_runs([path.parent])
    assert problems == []
    pools = pool_runs(runs)
    assert distinct_names(pools) == [f"DisARM, learning rate {rate}" for rate in (0.001, 0.01, 0.1)]
    for number, (pool, point) in enumerate(zip(pools, summary["points"], strict=True)):
        (run,) = pool.runs
        assert run.name == f"run (encoder.learning_rate={point['fields'][ENCODER]})"
        assert resolve(run.config) == at_point(config, point["fields"])
        value = pool.value("train_elbo")
        assert value.mean == pytest.approx(point["metrics"]["train_elbo"]["mean"])
        assert value.seeds == (0, 7)
        assert len(pool.curve("objective")[0]) == 2
        assert run.num_members == 6
        (found,) = [evaluation for evaluation in run.evaluations if "test_elbo" in evaluation.metrics]
        assert found.metrics["test_elbo"][0] == -number
    assert [row[3] for row in other_rows(pools) if row[4] == "train ELBO"] == distinct_names(pools)


def test_a_point_is_loaded_by_its_number(finished):
    path, _, _ = finished
    everything, run = load_members(path), load_run(path, point=2)
    assert len(everything.params) == 6
    assert len(run.params) == 2
    assert (run.config.grid, run.config.optimizer.encoder.learning_rate) == ("", 0.1)
    assert_same_bits(run.params[1], everything.params[5])
    listed = r"0: encoder.learning_rate=0.001; 1: encoder.learning_rate=0.01; 2: encoder.learning_rate=0.1"
    for point in (None, 3, -1):
        with pytest.raises(RunDirError, match=f"point is {point}, but the run .* accepted: {listed}"):
            load_run(path, point=point)


def test_evaluation_of_all_points(finished, monkeypatch):
    path, _, summary = finished
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")  # as it is here already
    file, results = evaluate_run(path, 3)
    assert json.loads(file.read_text()) == results
    assert [point["fields"] for point in results["points"]] == [point["fields"] for point in summary["points"]]
    for found, point in zip(results["points"], summary["points"], strict=True):
        assert found["metrics"]["test_3_sample_bound"] == point["metrics"]["test_3_sample_bound"]


def test_every_point_has_writers(tmp_path, monkeypatch):
    """Each with the config of the point alone; a number that is not finite reaches none of them."""
    begun, logged = [], []

    def init(**options):
        begun.append(options)
        log = lambda values, step: logged.append((options["id"], step, values))
        return types.SimpleNamespace(log=log, finish=lambda: logged.append(options["id"]))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    config = resolve(tiny_config(tmp_path, grid=f"{ENCODER}=0.1,0.2", writers=("wandb",)))
    recorder = Recorder(RunDir(tmp_path / "run"), config, 0)
    recorder.metrics(5, {"objective": np.array([-1.0, np.inf]), "kl": np.array([2.0, 3.0])})
    recorder.metrics(6, {"kl": np.array([4.0, 5.0])}, diverged={Member(0, 1)})
    recorder.close()
    names = ["run-0-encoder.learning_rate=0.1", "run-1-encoder.learning_rate=0.2"]
    assert [options["id"] for options in begun] == names
    assert {options["reinit"] for options in begun} == {"create_new"}
    assert Config(begun[1]["config"]) == at_point(config, {ENCODER: 0.2})
    expected = [(names[0], 5, {"objective": -1.0, "kl": 2.0}), (names[1], 5, {"kl": 3.0}), (names[0], 6, {"kl": 4.0})]
    assert logged == [*expected, *reversed(names)]
    assert rows_of(RunDir(tmp_path / "run"), 1) == [
        {"step": 5, "seed": 0, "objective": None, "kl": 3.0},
        {"step": 6, "seed": 0, "kl": None},
    ]


def test_a_member_that_diverges_leaves_the_others_alone(tmp_path, capsys, quick_compile):
    """Interrupted in the middle and resumed: the same files, and the others as if nothing had happened."""
    settings = SHORT | {"steps": 20, "optimizer.prior.name": "sgd", "seeds": (0,)}
    config = tiny_config(tmp_path, **settings, grid=f"{PRIOR}=0.01,1e38,0.02")
    summary = train(config, tmp_path / "run")
    assert [point["diverged"] for point in summary["points"]] == [[], [0], []]
    assert (
        "seed 0, prior.learning_rate=1e+38: the objective or its gradient is not finite at step"
        in capsys.readouterr().err
    )
    assert summary["points"][1]["metrics"].keys() <= {
        f"learning_rate/{group}" for group in ("encoder", "decoder", "prior")
    }
    rows = rows_of(RunDir(tmp_path / "run"), 1)
    assert rows[-1]["objective" if "objective" in rows[-1] else "test_3_sample_bound"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()

    first = tiny_config(tmp_path, **settings | {"steps": 10}, grid=f"{PRIOR}=0.01,1e38,0.02")
    train(first, tmp_path / "resumed")
    train(config, tmp_path / "resumed")
    for number in range(3):
        run, resumed = (rows_of(RunDir(tmp_path / name), number) for name in ("run", "resumed"))
        assert run == resumed
    assert_same_bits(load_members(tmp_path / "run").state, load_members(tmp_path / "resumed").state)
    with pytest.raises(NonFiniteError, match=r"seed 0, prior.learning_rate=[12]e\+38: .* the last checkpoint"):
        train(tiny_config(tmp_path, **settings, grid=f"{PRIOR}=1e38,2e38"), tmp_path / "all")


BAD = {
    "optimizer.encodr.learning_rate=1": r"has the field 'optimizer.encodr.*; did you mean 'optimizer.encoder.l",
    "batch_size=10,20": r"has the field 'batch_size'; accepted: numbers that a step takes as such",
    "optimizer.encoder.name=adam": r"has the field 'optimizer.encoder.name'; accepted: ",
    "1e-4": r"has the field '1e-4'; accepted: ",
    f"{ENCODER}": rf"sets {ENCODER} to ''; accepted: a number from 0 on, as in",
    f"{ENCODER}=": rf"sets {ENCODER} to ''; accepted: a number",
    f"{ENCODER}=1e-4,x": rf"sets {ENCODER} to 'x'; accepted: a number",
    f"{ENCODER}=1e-4,nan": rf"sets {ENCODER} to 'nan'; accepted: a number",
    f"{ENCODER}=-1": rf"sets {ENCODER} to '-1'; accepted: a number from 0 on",
    "optimizer.prior.clip=None": r"sets optimizer.prior.clip to 'None'; accepted: a positive number, as in",
    f"{ENCODER}=1,1.0": r"has '.*'; accepted: different numbers",
    f"{ENCODER}=1,2 {ENCODER}=3,4": rf"has the field '{ENCODER}' twice",
}


@pytest.mark.parametrize("grid", BAD)
def test_a_bad_grid_is_refused_by_name(tmp_path, grid):
    with pytest.raises(ConfigError, match=f"^grid {BAD[grid]}"):
        resolve(tiny_config(tmp_path, grid=grid))


def test_a_grid_is_written_in_one_way(tmp_path):
    config = resolve(tiny_config(tmp_path, grid=f"  {ENCODER}=1e-4,3e-4  optimizer.prior.clip,{PRIOR}=.5,2 "))
    assert config.grid == f"{ENCODER}=0.0001,0.0003 optimizer.prior.clip,{PRIOR}=0.5,2.0"
    assert points_of(config)[1] == {ENCODER: 0.0001, "optimizer.prior.clip": 2.0, PRIOR: 2.0}
    assert resolve(config) is config
    assert len(points_of(resolve(tiny_config(tmp_path)))) == 1


def test_a_sweep_sets_it(tmp_path):
    points = hyper.sweep("grid", [f"{ENCODER}=1e-4,3e-4", f"{PRIOR}=1e-4,3e-4"])
    trials = make_trials(tiny_config(tmp_path), points, {})
    assert [len(members_of(trial.config)) for trial in trials] == [2, 2]
    command = main_command("python", "configs/quickstart.py", trials[0], "runs/x")
    assert f"--config.grid={ENCODER}=1e-4,3e-4" in command


def test_a_custom_schedule_takes_a_rate_of_the_grid(tmp_path, quick_compile):
    """As an argument of the program; without a grid as the number that it is."""
    custom = {"optimizer.encoder.schedule": "optax:cosine_decay_schedule", "optimizer.encoder.name": "optax:adamw"}
    assert ENCODER not in numbers_of(resolve(tiny_config(tmp_path, **custom)))
    assert set(numbers_of(resolve(tiny_config(tmp_path)))) == {f for f in GRID_FIELDS if not f.endswith("clip")}
    train(tiny_config(tmp_path, **SHORT | custom, grid=f"{ENCODER}=1e-4,3e-4"), tmp_path / "run")
    train(tiny_config(tmp_path, **SHORT | custom | {ENCODER: 3e-4}), tmp_path / "alone")
    found, alone = (
        load_run(tmp_path / run, point=point, allow_imports=True) for run, point in (("run", 1), ("alone", None))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found.params, alone.params)
