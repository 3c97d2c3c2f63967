"""The rows of the paper's Table 1 beside ours with the preset of `configs/fast.py`, from committed metrics.

    python -m scripts.collect --runs runs/fast --out results/fast/cells
    python -m scripts.fast_table                          # writes results/fast/table.md

Every row has the paper's best estimator after 1,000,000 steps, our estimator after as many steps as its runs have, and
the same settings with the paper's estimators, so that one sees what the estimator gives and what the settings give. A
row is "reached" if our mean is at least the paper's, and "within the error" if it is below by no more than two combined
standard errors. Minutes are those of one core for one seed, training and evaluation.
"""

import math
import pathlib
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from absl import app, flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.files import write_text
from disarm_jax.report import paper
from disarm_jax.report.paper import Number
from disarm_jax.report.runs import Run, read_runs

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("disarm_midpoint", "multisample_disarm_midpoint")
OTHERS = ("disarm", "relax", "multisample_disarm", "vimco")
BOUNDS = {"ELBO": tuple(paper.ELBO), "1 pair": ("multisample_disarm_1", "vimco_2")}
BOUNDS |= {"10 pairs": ("multisample_disarm_10", "vimco_20")}


class Row(NamedTuple):
    """A row of Table 1: keys of `BOUNDS`, `paper.MODELS` and `paper.DATASETS`."""

    bound: str
    model: str
    dataset: str

    def paper_best(self, split: str) -> tuple[str, Number]:
        """The column of the paper with the highest number of a split, "train" or "test"."""
        places = (paper.Place(self.dataset, self.model, column) for column in BOUNDS[self.bound])
        found = {place.column: paper.NUMBERS[place, split] for place in places if (place, split) in paper.NUMBERS}
        column = max(found, key=lambda column: found[column].mean)
        return column, found[column]

    def metric(self, split: str) -> str:
        """What runs call the number of a split."""
        return paper.metric_of(paper.Place(self.dataset, self.model, BOUNDS[self.bound][0]), split)


class Result(NamedTuple):
    """What runs of one estimator came to: a number for each seed and split, and minutes of one core for each run."""

    values: dict[str, list[float]]
    steps: int
    minutes: list[float]

    def number(self, split: str) -> Number:
        """Mean and standard error; the latter is not a number for a single seed."""
        values = self.values[split]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return Number(statistics.fmean(values), error)


def row_of(run: Run) -> Row | None:
    """The row that a run belongs to; None if Table 1 has none like it."""
    model, objective, estimator = run.config["model"], run.config["objective"], run.config["estimator"]["name"]
    depth = len(model["latents"])
    kind = "nonlinear" if model["hidden"] else "linear" if depth == 1 else f"layers_{depth}"
    pairs = objective["num_samples"] // 2 if estimator == "vimco" else objective["num_samples"]
    bound = "ELBO" if objective["name"] == "elbo" else "1 pair" if pairs == 1 else f"{pairs} pairs"
    row = Row(bound, kind, run.config["dataset"]["name"])
    known = bound in BOUNDS and (paper.Place(row.dataset, kind, BOUNDS[bound][0]), "train") in paper.NUMBERS
    return row if known else None


def read_results(folders: Iterable[pathlib.Path]) -> dict[Row, dict[str, Result]]:
    """Finished runs by row and estimator, their seeds together.

    Raises:
      ValueError: if runs of a row and estimator have different lengths.
    """
    results: dict[Row, dict[str, Result]] = {}
    for run in read_runs(folders)[0]:
        row, name = row_of(run), run.config["estimator"]["name"]
        if not run.finished or row is None or name not in OURS + OTHERS:
            continue
        steps = run.config["steps"]
        result = results.setdefault(row, {}).setdefault(name, Result({"train": [], "test": []}, steps, []))
        if result.steps != steps:
            raise ValueError(f"{run.name} has {steps:,} steps, others like it {result.steps:,}")
        last = [line for line in run.rows if line["step"] == steps]
        for split, values in result.values.items():
            values.extend(line[row.metric(split)] for line in last if row.metric(split) in line)
        times = run.summary["times"]
        seconds = (times["train_seconds"] + times["evaluation_seconds"]) / run.num_members
        result.minutes.append(seconds * run.summary["device"]["count"] / 60)
    return results


def _signed(number: Number) -> str:
    error = "" if math.isnan(number.stderr) else f" ± {number.stderr:.2f}"
    return f"{number.mean:.2f}{error}".replace("-", "−")


def verdict(ours: Number, theirs: Number) -> str:
    """In words: whether the paper's number is reached."""
    if ours.mean >= theirs.mean:
        return "reached"
    error = math.hypot(0 if math.isnan(ours.stderr) else ours.stderr, theirs.stderr)
    return "within the error" if theirs.mean - ours.mean <= 2 * error else "not reached"


def table(results: dict[Row, dict[str, Result]]) -> str:
    """All rows that have been run, as Markdown."""
    header = "| bound | model | data | | the paper's best | ours | | minutes | DisARM | RELAX or VIMCO |"
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    order = [Row(bound, model, data) for bound in BOUNDS for model in paper.MODELS for data in paper.DATASETS]
    for row in (row for row in order if set(results.get(row, {})) & set(OURS)):
        found = results[row]
        (ours,) = (found[name] for name in OURS if name in found)
        for split in ("train", "test"):
            column, theirs = row.paper_best(split)
            name = (paper.ELBO | paper.MULTISAMPLE)[column]
            number = ours.number(split)
            same = [_signed(found[name].number(split)) if name in found else "–" for name in OTHERS]
            disarm, other = (same[0], same[1]) if row.bound == "ELBO" else (same[2], same[3])
            cells = [row.bound, paper.MODELS[row.model], paper.DATASETS[row.dataset], split]
            cells += [f"{_signed(theirs)} ({name})", f"**{_signed(number)}**", verdict(number, theirs)]
            lines.append(f"| {' | '.join([*cells, f'{statistics.fmean(ours.minutes):.1f}', disarm, other])} |")
    return "\n".join(lines)


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_multi_string(
        "runs", [str(ROOT / "results/fast/cells")], "A folder with run directories; repeatable.", flag_values=values
    )
    flags.DEFINE_string("out", str(ROOT / "results/fast/table.md"), "The file to write.", flag_values=values)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Writes the table and prints it."""
    flags_only(argv)
    results = read_results(map(pathlib.Path, values.runs))
    if not results:
        raise app.UsageError(f"--runs={', '.join(values.runs)}: there is no finished run of a row of Table 1")
    text = table(results)
    write_text(pathlib.Path(values.out), text + "\n")
    print(text)


if __name__ == "__main__":
    run_script(main, define_flags)
