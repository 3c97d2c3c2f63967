"""Measures the gradient variance of estimators at a run's newest checkpoint, on one batch, by group of parameters.

    python -m scripts.variance --workdir runs/mine --estimators arm,disarm,reinforce_loo,relax
    python -m scripts.variance --workdir runs/other --estimators "disarm(num_pairs=2), reinforce_loo(num_samples=4)"

Tunables of an estimator that the run has trained or measured are the run's; others are trained here for `--tune_steps`
steps at the checkpoint's parameters, which may be fewer than they would need. Prints a table and writes
`variance.json` to the run directory, or, for `--point 1` of a run with a grid, `variance_point_1.json`. Variances are
of the gradient of the mean over the batch, averaged over the parameters of a group; ratios are to the first estimator.
"""

import functools
import json
import sys
from typing import Any

import jax
from absl import flags

from disarm_jax import data
from disarm_jax.analysis.at_checkpoint import (
    GroupVariance,
    builder_of,
    fixed_batch,
    measure,
    split_names,
    tunables_of,
)
from disarm_jax.command_line import flags_only, memory_errors, run_script
from disarm_jax.experiment.config import check_measured
from disarm_jax.experiment.fields import ConfigError
from disarm_jax.experiment.load import Run, load_images, load_run
from disarm_jax.files import write_text
from disarm_jax.run_directory.checkpoint import CheckpointError
from disarm_jax.run_directory.directory import RunDir, RunDirError

MOST = 2**31 - 1  # a counter of draws is an int32


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "The run directory.", required=True, **options)
    flags.DEFINE_bool("allow_imports", False, "Import the custom parts that the run's config names.", **options)
    flags.DEFINE_string("estimators", None, "Names, as in config.variance.estimators.", required=True, **options)
    flags.DEFINE_integer("num_draws", 1000, "Draws of each estimator.", lower_bound=2, upper_bound=MOST, **options)
    rate = "Learning rate of these steps; a run's own is for many more of them."
    flags.DEFINE_float("tune_learning_rate", 1e-2, rate, lower_bound=0, **options)
    flags.DEFINE_integer("tune_steps", 2000, "Steps that train tunables not in the run.", lower_bound=0, **options)
    flags.DEFINE_integer(
        "batch_size", None, "Images in the batch; default the run's.", lower_bound=1, upper_bound=MOST, **options
    )
    flags.DEFINE_integer("seed", None, "Which seed's model; default the run's first.", lower_bound=0, **options)
    flags.DEFINE_integer("point", None, "Of a run with a grid: the number of the point.", lower_bound=0, **options)
    flags.DEFINE_integer("draw_seed", 0, "Of the batch and the draws.", lower_bound=0, **options)


def measure_run(
    run: Run,
    dataset: data.Dataset,
    labels: list[str],
    seed_number: int,
    draw_seed: int,
    batch_size: int,
    num_draws: int,
    tune_steps: int,
    tune_learning_rate: float,
) -> dict[str, dict[str, GroupVariance]]:
    """Variances by estimator and group, all at the same parameters and on the same batch."""
    params, objective = run.params[seed_number], run.experiment.objective
    x, tune_key, draw_key = fixed_batch(run, dataset, draw_seed, batch_size)
    found = {}
    for label in labels:
        build = builder_of(run, label)
        tunables = tunables_of(run, label, build, dataset, seed_number, tune_key, tune_steps, tune_learning_rate)
        taken = functools.partial(measure, objective, build, num_draws=num_draws)
        found[label] = jax.device_get(jax.jit(taken)(tunables, params, draw_key, x))
    return found


def table(found: dict[str, dict[str, GroupVariance]]) -> str:
    """One line per estimator and group."""
    first = next(iter(found.values()))
    width = max(map(len, found))
    lines = [f"{'estimator':<{width}}  {'group':<20} {'variance':>12} {'± stderr':>10} {'ratio':>8}"]
    for label, groups in found.items():
        for name, group in groups.items():
            ratio = group.variance / first[name].variance
            lines.append(f"{label:<{width}}  {name:<20} {group.variance:12.4e} {group.stderr:10.1e} {ratio:8.3f}")
    return "\n".join(lines)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures, prints and writes."""
    try:
        flags_only(argv)
        run = load_run(values.workdir, point=values.point, allow_imports=values.allow_imports)
        labels = check_measured(split_names(values.estimators), run.config, "--estimators")
        seeds = run.config.seeds
        seed = seeds[0] if values.seed is None else values.seed
        if seed not in seeds:
            raise ConfigError(f"--seed is {seed}; accepted: {', '.join(map(str, seeds))}")
        dataset = load_images(run)
        batch_size = values.batch_size or run.config.batch_size
        if batch_size > len(dataset.train):
            raise ConfigError(f"--batch_size is {batch_size}; accepted: at most {len(dataset.train)}")
        budget = (values.draw_seed, batch_size, values.num_draws, values.tune_steps, values.tune_learning_rate)
        with memory_errors(), jax.default_matmul_precision(run.config.matmul_precision):
            found = measure_run(run, dataset, labels, seeds.index(seed), *budget)
    except (CheckpointError, ConfigError, OSError, RunDirError, data.DataError) as error:
        sys.exit(f"error: {error}")
    print(f"{values.workdir} at step {run.step:,}, seed {seed}, batch of {batch_size}, {values.num_draws:,} draws")
    print(table(found))
    suffix = "" if values.point is None else f"_point_{values.point}"
    file = RunDir(values.workdir).path / f"variance{suffix}.json"
    write_text(file, json.dumps(record(run, seed, batch_size, values, found), indent=2) + "\n")
    print(f"written to {file}")


def record(run: Run, seed: int, batch_size: int, values: flags.FlagValues, found: dict) -> dict[str, Any]:
    """What is written: where it was measured, and the numbers."""
    variances = {
        label: {name: {"variance": float(g.variance), "stderr": float(g.stderr)} for name, g in groups.items()}
        for label, groups in found.items()
    }
    names = ("num_draws", "tune_steps", "tune_learning_rate", "draw_seed")
    settings = {name: values[name].value for name in names}
    return {"step": run.step, "seed": seed, "batch_size": batch_size} | settings | {"estimators": variances}


if __name__ == "__main__":
    run_script(main, define_flags)
