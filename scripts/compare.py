"""Which estimator is best for a trained model? Variance and time of all of them, at the same parameters and batch.

    python -m scripts.compare --workdir runs/linear --workdir runs/nonlinear --out runs/compare
    python -m scripts.compare --workdir runs/linear --steps 1000,10000,50000 --estimators "disarm, arms(num_samples=4)"
    python -m scripts.compare --workdir runs/linear --pairs 1,2,10,20

For each run, at its newest checkpoint or at those of `--steps` (a run keeps `config.checkpoint.keep` of them): the
variance of one estimate of the inference network's gradient, averaged over its parameters, and of the gradient with
respect to the logits; the time of one estimate with all derivatives a training step takes, where decoder and prior
learn from fresh samples whatever the estimator; their product, which is what a fixed time of averaging leaves of the
variance. The gradient is that of the ELBO; of the multi-sample bound with `--pairs`, or if the run was trained on one.
Ratios are to one pair of DisARM, for classes to one of DisARM-IW, for a bound to its local form with as many pairs. Of
biased estimators the squared distance of the mean from that of an unbiased one is given too. Tunables are the run's or
trained here, see `scripts.variance`. Writes `compare.md`, `compare.json` and a figure for each point to `--out`,
whenever another estimator has been measured; the same command once more measures what is missing.
"""

import contextlib
import json
import pathlib
import sys
import zipfile
from typing import Any

import jax
import numpy as np
from absl import flags

from disarm_jax import data
from disarm_jax.analysis.comparison import (
    Budget,
    Subject,
    add_ratios,
    as_markdown,
    chosen_estimators,
    file_name,
    measurer,
    new_point,
    subjects_of,
)
from disarm_jax.command_line import flags_only, memory_errors, run_script
from disarm_jax.experiment.fields import ConfigError
from disarm_jax.experiment.load import load_run
from disarm_jax.files import expand_user, whole_file, write_text
from disarm_jax.progress import ProgressBar
from disarm_jax.run_directory.checkpoint import CheckpointError
from disarm_jax.run_directory.directory import RunDirError
from scripts.compare_figure import draw_comparison

MOST = 2**31 - 1  # a counter of draws is an int32


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_multi_string("workdir", None, "A run directory; repeatable.", required=True, **options)
    flags.DEFINE_bool("allow_imports", False, "Import the custom parts that a run's config names.", **options)
    flags.DEFINE_list("steps", [], "Steps whose checkpoints to use; default the newest.", **options)
    flags.DEFINE_list("pairs", [], "Compare on the multi-sample bounds of so many pairs each.", **options)
    flags.DEFINE_string("estimators", None, "Names, as in config.variance.estimators; default all.", **options)
    flags.DEFINE_string("out", "runs/compare", "Folder for table, JSON and figures.", **options)
    flags.DEFINE_integer("num_draws", 400, "Draws of each estimator.", lower_bound=2, upper_bound=MOST, **options)
    flags.DEFINE_integer("tune_steps", 2000, "Steps that train tunables not in the run.", lower_bound=0, **options)
    rate = "Learning rate of these steps; a run's own is for many more of them."
    flags.DEFINE_float("tune_learning_rate", 1e-2, rate, lower_bound=0, **options)
    flags.DEFINE_integer("rounds", 5, "Rounds of timing, all estimators in turn.", lower_bound=2, **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures every point, and writes whenever another estimator is known."""
    try:
        flags_only(argv)
        steps = numbers("steps", values.steps, "1000,50000") or [None]
        pairs, allow = numbers("pairs", values.pairs, "1,10"), values.allow_imports
        runs = [load_run(workdir, step, allow_imports=allow) for workdir in values.workdir for step in steps]
        subjects = [subject for run in runs for subject in subjects_of(run, pairs)]
        labels = [chosen_estimators(subject, values.estimators) for subject in subjects]
        budget = Budget(values.num_draws, values.tune_steps, values.tune_learning_rate, values.rounds)
        out = expand_user(values.out)
        with memory_errors():
            measure_all(subjects, labels, budget, out)
    except (CheckpointError, ConfigError, OSError, RunDirError, data.DataError) as error:
        sys.exit(f"error: {error}")
    print(f"in {out}: compare.md, compare.json, a figure for each point")


def numbers(flag: str, texts: list[str], example: str) -> list[int]:
    """The numbers that a flag lists."""
    bad = [text for text in texts if not text.isdecimal() or not int(text)]
    if bad:
        raise ConfigError(f"--{flag}: {bad[0]!r} is not one; accepted: positive numbers, as in {example}")
    return list(map(int, texts))


def measure_all(subjects: list[Subject], labels: list[list[str]], budget: Budget, out: pathlib.Path) -> None:
    """Measures what is not in `out` yet; the first of the labels is the reference."""
    references = [names[0] for names in labels]
    new = [new_point(subject, reference, budget) for subject, reference in zip(subjects, references, strict=True)]
    points = [taken_up(out, point) for point in new]
    missing = [
        [label for label in names if label not in means] for names, (_, means) in zip(labels, points, strict=True)
    ]
    progress = ProgressBar(sum(map(len, missing)), "estimator")
    out.mkdir(parents=True, exist_ok=True)
    for subject, reference, names, (point, means) in zip(subjects, references, missing, points, strict=True):
        measured = measurer(subject, reference, budget)
        for label in names:
            progress.describe(label)
            with jax.default_matmul_precision(subject.run.config.matmul_precision):
                row, means[label] = measured(label)
            point["estimators"].append(row)
            add_ratios(point, means)
            with whole_file(out / f"{file_name(point)}.npz") as stream:
                np.savez(stream, **means)
            write(out, [known for known, _ in points if known["estimators"]])
            progress.update(progress.done + 1)
    progress.close()
    if not progress.total:
        write(out, [known for known, _ in points])


def taken_up(out: pathlib.Path, point: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is known of a point from a comparison with the same budget that was interrupted."""
    with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
        known = json.loads((out / "compare.json").read_text(encoding="utf-8"))
        for old in known:
            if {**old, "estimators": []} == point:
                with np.load(out / f"{file_name(point)}.npz") as arrays:
                    means = {row["estimator"]: arrays[row["estimator"]] for row in old["estimators"]}
                return old, means
    return point, {}


def write(out: pathlib.Path, points: list[dict[str, Any]]) -> None:
    """Writes table, JSON and figures of what is known."""
    write_text(out / "compare.json", json.dumps(points, indent=1) + "\n")
    write_text(out / "compare.md", as_markdown(points))
    for point in points:
        draw_comparison(point, out / f"{file_name(point)}.png")


if __name__ == "__main__":
    run_script(main, define_flags)
