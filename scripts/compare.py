"""Which estimator is best for a trained model? Variance and time of all of them, at the same parameters and batch.

    python -m scripts.compare --workdir runs/linear --workdir runs/nonlinear --out results/compare
    python -m scripts.compare --workdir runs/linear --steps 1000,10000,50000 --estimators "disarm, arms(num_samples=4)"

For each run, at its newest checkpoint or at those of `--steps` (a run keeps `config.checkpoint.keep` of them): the
variance of one estimate of the inference network's gradient, averaged over its parameters, and of the gradient with
respect to the logits; the time of one estimate with all derivatives a training step takes, where decoder and prior
learn from one fresh sample whatever the estimator; their product, which is what a fixed time of averaging leaves of the
variance. Ratios are to one pair of DisARM. Of biased estimators the squared distance of the mean from that of an
unbiased one is given too. Tunables are the run's or trained here, see `scripts.variance`. Writes `compare.md`,
`compare.json` and a figure for each point to `--out`.
"""

import functools
import json
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from jax import lax

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.experiment import choices
from disarm_jax.experiment.checkpoint import CheckpointError
from disarm_jax.experiment.config import ConfigError, check_measured
from disarm_jax.experiment.gradients import draw_gradients
from disarm_jax.experiment.run import Run, load_run
from disarm_jax.experiment.rundir import RunDirError, write_text
from disarm_jax.experiment.variance import measure
from disarm_jax.report.times import evaluations_of
from scripts.compare_figure import draw_comparison
from scripts.variance import builder_of, fixed_batch, split_names, tunables_of

REFERENCE = "disarm"
EVERY_ONE = (
    "disarm, reinforce, reinforce_loo, arm, interpolated, muprop, double_cv, rodeo, bitflip, straight_through, "
    "gumbel_sigmoid, reinmax, rebar, relax, reinforce_loo(num_samples=3), arms(num_samples=3), "
    "double_cv(num_samples=3), disarm_taylor, disarm_quadratic, disarm_midpoint, reinforce_loo(num_samples=4), "
    "disarm(num_pairs=2), arms(num_samples=4), double_cv(num_samples=4), rodeo(num_samples=4), arms_interpolated, "
    "disarm_taylor_cross, ugc, disarm_quadratic(num_pairs=2), disarm_midpoint(num_pairs=2), arms_quadratic, "
    "reinforce_loo(num_samples=8), disarm(num_pairs=4), arms(num_samples=8), leg"
)
EVERY_ONE_OF_A_CHAIN = (
    "disarm, reinforce_loo, arm, interpolated, relax, rebar, arms(num_samples=3), arms_interpolated(num_samples=3), "
    "disarm_taylor, disarm_quadratic, arms_quadratic(num_samples=3), disarm_midpoint, muprop, reinforce, ugc, bitflip"
)


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_multi_string("workdir", None, "A run directory; repeatable.", required=True, **options)
    flags.DEFINE_list("steps", [], "Steps whose checkpoints to use; default the newest.", **options)
    flags.DEFINE_string("estimators", None, "Names, as in config.variance.estimators; default all.", **options)
    flags.DEFINE_string("out", "results/compare", "Folder for table, JSON and figures.", **options)
    flags.DEFINE_integer("num_draws", 400, "Draws of each estimator.", lower_bound=2, **options)
    flags.DEFINE_integer("tune_steps", 2000, "Steps that train tunables not in the run.", lower_bound=0, **options)
    rate = "Learning rate of these steps; a run's own is for many more of them."
    flags.DEFINE_float("tune_learning_rate", 1e-2, rate, lower_bound=0, **options)
    flags.DEFINE_integer("rounds", 5, "Rounds of timing, all estimators in turn.", lower_bound=2, **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures every point, then writes."""
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected arguments {argv[1:]}; accepted: flags only")
        bad = [step for step in values.steps if not step.isdecimal()]
        if bad:
            raise ConfigError(f"--steps: {bad[0]!r} is no step; accepted: numbers, as in 1000,50000")
        steps = [int(step) for step in values.steps] or [None]
        runs = [load_run(workdir, step) for workdir in values.workdir for step in steps]
        labels = [chosen_estimators(run, values.estimators) for run in runs]
        points, budget = [], (values.num_draws, values.tune_steps, values.tune_learning_rate, values.rounds)
        for run, names in zip(runs, labels, strict=True):
            with jax.default_matmul_precision(run.config["matmul_precision"]):
                points.append(compare(run, names, *budget))
    except (CheckpointError, ConfigError, OSError, RunDirError, data.DataError) as error:
        sys.exit(f"error: {error}")
    out = pathlib.Path(values.out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "compare.json", json.dumps(points, indent=1) + "\n")
    write_text(out / "compare.md", as_markdown(points))
    for point in points:
        draw_comparison(point, out / f"{file_name(point)}.png")
    print(f"in {out}: compare.md, compare.json, {', '.join(f'{file_name(point)}.png' for point in points)}")


def chosen_estimators(run: Run, text: str | None) -> list[str]:
    """What `--estimators` names, or all, with the reference first."""
    if run.config["objective"]["name"] != "elbo":
        raise ConfigError(f"objective.name is {run.config['objective']['name']!r}; accepted: elbo")
    text = text or (EVERY_ONE if len(run.model.latents) == 1 else EVERY_ONE_OF_A_CHAIN)
    names = [REFERENCE, *(name for name in split_names(text) if name != REFERENCE)]
    return check_measured(names, run.config, "--estimators")


def compare(
    run: Run, labels: list[str], num_draws: int, tune_steps: int, tune_learning_rate: float, rounds: int
) -> dict[str, Any]:
    """Variances, biases and times of estimators at one point of a run."""
    dataset = choices.load_dataset(run.config["dataset"])
    # One fresh sample for decoder and prior under every estimator, so that the times differ by the estimators alone.
    params, objective = run.params[0], run.experiment.objective._replace(shared_samples=False)
    x, tune_key, draw_key = fixed_batch(run, dataset, 0, run.config["batch_size"])
    found, timed = {}, {}
    for number, label in enumerate(labels):
        print(f"{number + 1} of {len(labels)}: {label}", file=sys.stderr)
        build = builder_of(run, label)
        tunables = tunables_of(run, label, build, dataset, 0, tune_key, tune_steps, tune_learning_rate)
        taken = functools.partial(measure, objective, build, num_draws=num_draws)
        own_key = jax.random.fold_in(draw_key, number)  # the bias is taken from means with independent noise
        found[label] = jax.device_get(jax.jit(taken)(tunables, params, own_key, x))
        timed[label] = timer(objective, build, tunables, params, draw_key, x)
    seconds: dict[str, list[float]] = {label: [] for label in labels}
    for _ in range(rounds):
        for label in labels:
            seconds[label].append(timed[label]())
    reference = found[REFERENCE]
    rows = []
    for label in labels:
        row = {"estimator": label, "evaluations": evaluations(run, label), "unbiased": is_unbiased(label)}
        row["seconds"] = statistics.median(seconds[label])
        row["time"] = row["seconds"] / statistics.median(seconds[REFERENCE])
        for group in ("encoder", "logits"):
            row[group] = {"variance": float(found[label][group].variance), "stderr": float(found[label][group].stderr)}
            row[group]["ratio"] = row[group]["variance"] / float(reference[group].variance)
        if not row["unbiased"]:
            row["bias"] = squared_bias(found, label, num_draws)
        rows.append(row)
    config = run.config
    return {
        "dataset": config["dataset"]["name"],
        "latents": list(config["model"]["latents"]),
        "hidden": list(config["model"]["hidden"]),
        "trained_with": run.experiment.labels[0],
        "step": run.step,
        "batch_size": config["batch_size"],
        "num_draws": num_draws,
        "estimators": rows,
    }


def timer(
    objective: Any, build: Callable, tunables: Any, params: dict, key: jax.Array, x: jax.Array, draws: int = 10
) -> Callable[[], float]:
    """A compiled loop of draws with all derivatives; run, it returns the seconds of one.

    The parameters move a little with every draw, as in training: XLA computes what stays the same only once.
    """

    @jax.jit
    def loop(tunables, params, keys, x):
        def step(at, key):
            drawn = draw_gradients(objective, build(x), *at, key, x)
            return jax.tree.map(lambda a, g: a - 1e-9 * g, at, (drawn.tunables, drawn.params)), None

        return lax.scan(step, (tunables, params), keys)[0]

    arguments = (tunables, params, jax.random.split(key, draws), x)

    def run() -> float:
        jax.block_until_ready(loop(*arguments))  # what ran before has left the caches full of its own
        start = time.perf_counter()
        jax.block_until_ready(loop(*arguments))
        return (time.perf_counter() - start) / draws

    run()  # compiles
    return run


def evaluations(run: Run, label: str) -> int | None:
    """Of f per image; None for an estimator of one's own, which does not tell."""
    return evaluations_of({"estimator": choices.parse_estimator(label)._asdict(), "model": run.config["model"]})


def is_unbiased(label: str) -> bool:
    """As the registry says; an estimator of one's own is believed to be."""
    name, options = choices.parse_estimator(label)
    if options.get("later_layers") == "hard":  # of hierarchical RELAX
        return False
    return choices.is_import_path(name) or dj.estimator_info(name).unbiased


def squared_bias(found: dict, label: str, num_draws: int) -> float:
    """The mean over logits of the squared bias, relative to the variance of one DisARM pair.

    Both means are noisy, independently of each other, which adds to the square of their distance: it is subtracted.
    """
    unbiased = {name: groups["logits"] for name, groups in found.items() if is_unbiased(name)}
    best = min(unbiased.values(), key=lambda group: float(group.variance))
    own = found[label]["logits"]
    pairs = zip(jax.tree.leaves(own.mean), jax.tree.leaves(best.mean), strict=True)
    squares = np.concatenate([np.ravel((a - b) ** 2) for a, b in pairs])
    noise = float(own.variance + best.variance) / num_draws
    return (float(squares.mean()) - noise) / float(found[REFERENCE]["logits"].variance)


def title(point: dict[str, Any]) -> str:
    """What was compared, in words."""
    kind = "nonlinear" if point["hidden"] else "linear"
    layers = f", {len(point['latents'])} layers" if len(point["latents"]) > 1 else ""
    return f"{point['dataset']}, {kind}{layers}, step {point['step']:,} with {point['trained_with']}"


def file_name(point: dict[str, Any]) -> str:
    """The title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "_", title(point).lower()).strip("_")


def as_markdown(points: list[dict[str, Any]]) -> str:
    """A table for each point, the least variance × time first."""
    lines = ["# Estimators compared", "", "Made by `python -m scripts.compare`; ratios to one pair of DisARM.", ""]
    for point in points:
        lines += [f"## {title(point)}", ""]
        lines += [f"One batch of {point['batch_size']} images, {point['num_draws']} draws of each estimator.", ""]
        lines += ["| estimator | evaluations | variance, parameters | logits | time | variance × time | |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for row in sorted(point["estimators"], key=lambda row: row["encoder"]["ratio"] * row["time"]):
            encoder, variances = row["encoder"], f"{with_error(row['encoder'])} | {with_error(row['logits'])}"
            note = "" if row["unbiased"] else f"biased: bias² {row['bias']:.3g}"
            lines.append(
                f"| {row['estimator']} | {row['evaluations'] or ''} | {variances} "
                f"| {row['time']:.2f} | {encoder['ratio'] * row['time']:.3g} | {note} |"
            )
        lines.append("")
    return "\n".join(lines)


def with_error(group: dict[str, float]) -> str:
    """A ratio and its standard error, DisARM's variance being taken as exact."""
    return f"{group['ratio']:.3g} ± {group['stderr'] / group['variance'] * group['ratio']:.1g}"


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    logging.set_verbosity(logging.WARNING)
    app.run(main)
