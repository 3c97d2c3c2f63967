"""`python -m scripts.fast_table`: our rows stand beside the paper's numbers, and say whether they reach them."""

import json

import pytest
from absl import flags
from synthetic import write_run

from configs import fast
from configs.sweeps import fast as fast_sweep
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.fields import plain
from disarm_jax.report.paper import Number
from disarm_jax.sweep import hyper
from disarm_jax.sweep.trials import make_trials
from scripts import fast_table


def config_of(argument, **fields):
    """The preset with some fields set."""
    config = fast.get_config(argument)
    config.seeds = (0, 1)
    config.update_from_flattened_dict(fields)
    return plain(resolve(config))


def run(*arguments):
    values = flags.FlagValues()
    fast_table.define_flags(values)
    fast_table.main(values(["fast_table", *arguments]), values)


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    fashion, digits = {"dataset.name": "fashion_mnist"}, {"dataset.name": "mnist5k"}
    vimco = {"estimator.name": "vimco", "objective.num_samples": 2}
    write_run(folder / "linear", config_of("linear"), (-112.0, -113.0), (-107.0, -107.0))
    write_run(folder / "disarm", config_of("linear", **{"estimator.name": "disarm"}), (-118.0, -119.0))
    write_run(folder / "layers", config_of("3", **fashion), (-239.4, -239.5), (-238.0, -238.0))
    write_run(folder / "bound", config_of("linear,1"), (-114.2, -114.3), (-113.8, -113.8))
    write_run(folder / "vimco", config_of("linear,1", **vimco), (-116.0, -116.0))
    write_run(folder / "digits", config_of("linear", **digits), (-100.0, -100.0))
    write_run(folder / "unfinished", config_of("nonlinear"), (-100.0, -100.0), step=20_000)
    for file in folder.glob("*/summary.json"):
        times = {"times": {"train_seconds": 100.0, "evaluation_seconds": 20.0}}
        file.write_text(json.dumps(json.loads(file.read_text()) | times))
    return folder


def test_rows(runs, tmp_path, capsys):
    run(f"--runs={runs}", f"--out={tmp_path / 'table.md'}")
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert {len(row) for row in rows} == {10}  # the line below the header too: else it is no table
    _, _, *rows = rows
    linear, _, layers, _, bound, bound_test = rows
    names = ["ELBO", "Linear", "Dynamic MNIST", "train", "−115.93 ± 0.15 (RELAX)"]
    assert linear == [*names, "**−112.50 ± 0.50**", "reached", "1.0", "−118.50 ± 0.50", "–"]
    assert layers[4:7] == ["−239.41 ± 0.07 (RELAX)", "**−239.45 ± 0.05**", "within the error"]
    assert bound[4:7] == ["−114.06 ± 0.13 (DisARM 1-pair)", "**−114.25 ± 0.05**", "within the error"]
    assert bound_test[3:7] == ["test", "−113.63 ± 0.13 (DisARM 1-pair)", "**−113.80 ± 0.00**", "within the error"]
    assert bound[-2:] == ["–", "−116.00 ± 0.00"]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (Number(-1.0, 0.1), Number(-1.0, 0.1), "reached"),
        (Number(-1.25, 0.1), Number(-1.0, 0.1), "within the error"),
        (Number(-1.3, 0.1), Number(-1.0, 0.1), "not reached"),
        (Number(-1.25, float("nan")), Number(-1.0, 0.1), "not reached"),  # one seed has no error of its own
    ],
)
def test_verdicts(ours, theirs, words):
    assert fast_table.verdict(ours, theirs) == words


def test_what_is_refused(runs, tmp_path):
    with pytest.raises(Exception, match="there is no finished run of a row of Table 1"):
        run(f"--runs={tmp_path / 'nothing'}")
    write_run(runs / "longer", config_of("linear", steps=60_000), (-1.0, -1.0))
    with pytest.raises(ValueError, match="has 60,000 steps, others like it 50,000"):
        run(f"--runs={runs}")


@pytest.mark.parametrize("argument", ["linear", "nonlinear", "2", "linear,1", "nonlinear,10"])
def test_the_preset(argument):
    config = resolve(fast.get_config(argument))
    model, _, pairs = argument.partition(",")
    assert config.steps == 50_000
    assert config.estimator.name == ("multisample_disarm_midpoint" if pairs else "disarm_midpoint")
    assert (config.eval.train_samples, config.eval.test_samples) == ((2 * int(pairs),) * 2 if pairs else (1, 100))
    rates = {config.optimizer[group].learning_rate for group in ("encoder", "decoder", "prior")}
    assert len(rates) == 1
    assert bool(config.model.hidden) == (model == "nonlinear")


def test_the_preset_with_another_estimator():
    """As many evaluations for a bound as with ours; several pairs only where the estimator is made of pairs."""
    assert resolve(fast.get_config("nonlinear,disarm")).estimator.options["num_pairs"] == 4
    assert "num_pairs" not in resolve(fast.get_config("nonlinear,relax")).estimator.options
    vimco = resolve(fast.get_config("linear,10,vimco"))
    assert (vimco.estimator.name, vimco.objective.num_samples, vimco.eval.train_samples) == ("vimco", 20, 20)


def test_the_trials_of_the_sweep_are_the_preset():
    trials = make_trials(fast_sweep.get_config(), fast_sweep.get_hyper(hyper), {})
    assert len(trials) == 54
    for trial in trials:
        config = trial.config
        kind = "nonlinear" if config.model.hidden else "linear" if len(config.model.latents) == 1 else None
        parts = [kind or str(len(config.model.latents))]
        if config.objective.name == "multisample":
            parts.append(str(config.eval.test_samples // 2))
        preset = fast.get_config(",".join([*parts, config.estimator.name]))
        preset.dataset.name = config.dataset.name
        assert plain(resolve(preset)) == plain(config), trial.name


@pytest.mark.parametrize("argument", ["curved", "1", "linear,", "linear,0", "linear,1,vimco,2", "-2"])
def test_what_the_preset_refuses(argument):
    with pytest.raises(ValueError, match="accepted: linear, nonlinear, or a number of layers"):
        fast.get_config(argument)
