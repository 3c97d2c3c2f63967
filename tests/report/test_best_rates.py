"""`python -m scripts.best_rates`: each estimator at the rate that the validation set prefers, by step and by time."""

import json

import pytest
from absl import flags
from synthetic import write_run

from configs import base
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.evaluate import bound_name
from disarm_jax.experiment.fields import plain
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.run_directory.rows import append_rows
from scripts import best_rates


def trained(folder, estimator, rate, train, validation, num_samples=1):
    """A finished run of a bound of one pair, 1,000 steps, whose bounds rise by 10 nats in each tenth of it."""
    config = base.get_config()
    config.update_from_flattened_dict(
        {
            "steps": 1000,
            "seeds": (0,),
            "objective.name": "multisample",
            "objective.num_samples": num_samples,
            "objective.generative_samples": "independent",
            "estimator.name": estimator,
            "optimizer.encoder.learning_rate": rate,
        }
    )
    config = plain(resolve(config))
    path = write_run(folder / f"{estimator},{rate}", config, (train,), (train + 5,))
    name = bound_name("validation", config["eval"]["test_samples"])
    append_rows(RunDir(path).metrics_file, [{"step": 1000, "seed": 0, name: validation}])
    return path


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    trained(folder, "multisample_disarm", 1e-4, -120.0, -121.0)
    trained(folder, "multisample_disarm", 1e-3, -118.0, -119.0)
    trained(folder, "multisample_disarm", 1e-2, -117.0, -125.0)  # ahead in training, not on the validation set
    trained(folder, "multisample_disarm_midpoint", 1e-3, -114.0, -115.0)
    trained(folder, "multisample_disarm_midpoint", 1e-2, -112.0, -113.0)
    trained(folder, "vimco", 1e-3, -119.0, -120.0, num_samples=2)
    return folder


@pytest.fixture
def benchmark(tmp_path):
    names = {"multisample_disarm, 1 pairs": 1e-3, "multisample_disarm_midpoint, 1 pairs": 1.25e-3}
    rows = [{"group": "multi-sample, linear", "name": name, "seconds": seconds} for name, seconds in names.items()]
    file = tmp_path / "benchmark.json"
    file.write_text(json.dumps({"steps": [*rows, {"group": "linear", "name": "vimco, 2 samples", "seconds": 1.0}]}))
    return file


def run(*arguments):
    values = flags.FlagValues()
    best_rates.define_flags(values)
    best_rates.main(values(["best_rates", *arguments]), values)


def test_the_best_rate_by_step_and_by_time(runs, benchmark, tmp_path, capsys):
    run(f"--runs={runs}", f"--benchmark={benchmark}", f"--out={tmp_path / 'trained.md'}")
    text = (tmp_path / "trained.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    title, best, _, rates = text.strip().split("\n\n")
    assert title == "## mnist, linear, latents 200, bound of 1 pair, 1,000 steps"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in best.splitlines()[2:]]
    # After 800 steps of 1,000, which take the time of 1,000 of the plain estimator, the bound is 20 nats lower.
    midpoint = ["0.01 (at the end of those tried)", "−112.00", "−107.00", "0.02", "1.25", "−132.00"]
    assert rows[0] == ["Multi-sample DisARM midpoint", *midpoint]
    assert rows[1] == ["Multi-sample DisARM", "0.001", "−118.00", "−113.00", "0.02", "1.00", "−118.00"]
    assert rows[2] == ["VIMCO", "0.001", "−119.00", "−114.00", "0.02", "–", "–"]
    assert "| Multi-sample DisARM | −120.00 / −121.00 | −118.00 / −119.00 | −117.00 / −125.00 |" in rates
    assert "| VIMCO | – | −119.00 / −120.00 | – |" in rates


def test_biased_estimators_are_said_to_be():
    assert all(map(best_rates.is_biased, ("reinmax(temperature=0.5)", "gumbel_softmax", "straight_through")))
    assert not any(map(best_rates.is_biased, ("vimco(baseline='geometric')", "disarm_iw_midpoint", "mine:estimator")))


def test_bad_input(runs, benchmark, tmp_path):
    with pytest.raises(Exception, match="--runs must name a folder"):
        run()
    with pytest.raises(Exception, match="there is no finished run"):
        run(f"--runs={tmp_path / 'nothing'}")
    metrics = RunDir(runs / "vimco,0.001").metrics_file
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if "validation" not in line))
    with pytest.raises(Exception, match=r"vimco,0\.001: the validation set was not evaluated at step 1,000"):
        run(f"--runs={runs}", f"--benchmark={benchmark}")
