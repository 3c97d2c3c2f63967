"""How models end that were trained with different estimators, each at the best of its learning rates, as Markdown.

    python -m scripts.sweep --config configs/sweeps/midpoint.py --out runs/midpoint
    python -m scripts.collect --runs runs/midpoint --out results/midpoint/cells
    python -m scripts.best_rates --runs results/midpoint/cells --out results/midpoint/trained.md

Runs that differ in nothing but estimator and learning rate stand in one table. The best rate of an estimator is the one
with the highest bound of the validation set at the end; a rate at the end of those that were tried is marked, because
another one might be better still. The time of a step comes from the benchmark's table, relative to the plain estimator
of pairs in the same table; "in its time" is the train bound at the step that the estimator has reached when the plain
one ends, on a straight line between two evaluations.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from absl import app, flags

from disarm_jax.categorical.catalogue import CLASSES
from disarm_jax.command_line import flags_only, run_script
from disarm_jax.estimators.registry import BITS
from disarm_jax.files import write_text
from disarm_jax.report import palette
from disarm_jax.report.runs import Run, read_runs

ROOT = pathlib.Path(__file__).parent.parent
PLAIN = ("disarm", "multisample_disarm", "disarm_iw")  # what times are relative to
HEADER = "| estimator | learning rate | train | test | gradient variance | step ÷ plain | train, in its time |"


class Setting(NamedTuple):
    """What the runs of one table share.

    Attributes:
      dataset: its name.
      latents, hidden: of the model.
      pairs: of the bound, in pairs of samples; 0 for the ELBO.
      steps: of training.
      shared: whether decoder and prior learn from the estimator's own samples.
    """

    dataset: str
    latents: str
    hidden: str
    pairs: int
    steps: int
    shared: bool

    @property
    def title(self) -> str:
        """In words."""
        model = "nonlinear" if self.hidden else "linear"
        bound = f"bound of {palette.count(self.pairs, 'pair')}" if self.pairs else "ELBO"
        samples = ", decoder and prior on the same samples" if self.shared else ""
        steps = palette.count(self.steps, "step")
        return f"{self.dataset}, {model}, latents {self.latents}, {bound}, {steps}{samples}"

    @property
    def group(self) -> str:
        """Of the benchmark's table."""
        model = "nonlinear" if self.hidden else "linear"
        if self.pairs:
            return f"multi-sample, {model}"
        return f"20 × 10 classes, {model}" if self.latents == "20 × 10" else model


class Trained(NamedTuple):
    """A finished run: estimator and options, rate, evaluations of the training set by step, and numbers at the end."""

    label: str
    rate: float
    steps: tuple[int, ...]
    train: tuple[float, ...]
    validation: float
    test: float
    variance: float


def setting_of(run: Run) -> Setting:
    """The table that a run belongs to."""
    config = run.config
    layers = [layer if isinstance(layer, list) else [layer] for layer in config["model"]["latents"]]
    latents = ", ".join(" × ".join(map(str, layer)) for layer in layers)
    pairs = 0
    if config["objective"]["name"] != "elbo":
        num_samples = config["objective"]["num_samples"]
        pairs = num_samples // 2 if config["estimator"]["name"] == "vimco" else num_samples
    hidden = ", ".join(map(str, config["model"]["hidden"]))
    shared = config["objective"]["generative_samples"] == "shared"
    return Setting(config["dataset"]["name"], latents, hidden, pairs, config["steps"], shared)


def label_of(run: Run) -> str:
    """The estimator with its options, but for those that the bound implies, as in "disarm(num_pairs=4)"."""
    config = run.config
    implied = () if config["objective"]["name"] == "elbo" else ("num_pairs", "num_samples")
    options = {name: value for name, value in config["estimator"]["options"].items() if name not in implied}
    name = config["estimator"]["name"]
    return f"{name}({', '.join(f'{option}={value!r}' for option, value in options.items())})" if options else name


def trained_of(run: Run) -> Trained:
    """The numbers of a finished run. Raises ValueError if it was not evaluated at its end."""
    steps = run.config["steps"]

    def ends(split: str) -> dict[int, float]:
        """Bounds of a split by step: means over seeds."""
        (name,) = {key for row in run.rows for key in row if key.startswith(f"{split}_") and _is_bound(key)} or {""}
        found: dict[int, list[float]] = {}
        for row in run.rows:
            if name in row:
                found.setdefault(row["step"], []).append(row[name])
        if steps not in found:
            raise ValueError(f"{run.name}: the {split} set was not evaluated at step {steps:,}")
        return {step: float(np.mean(values)) for step, values in sorted(found.items())}

    train = ends("train")
    variances = [row["gradient_variance"] for row in run.rows if row["step"] == steps and "gradient_variance" in row]
    rate = run.config["optimizer"]["encoder"]["learning_rate"]
    at_end = (ends("validation")[steps], ends("test")[steps], float(np.mean(variances)))
    return Trained(label_of(run), rate, tuple(train), tuple(train.values()), *at_end)


def _is_bound(metric: str) -> bool:
    return metric.endswith(("_elbo", "_bound"))


def read(folders: Iterable[pathlib.Path]) -> dict[Setting, dict[str, list[Trained]]]:
    """Finished runs by setting and estimator, in the order of their rates."""
    found: dict[Setting, dict[str, list[Trained]]] = {}
    for run in read_runs(folders)[0]:
        if run.finished:
            trained = trained_of(run)
            found.setdefault(setting_of(run), {}).setdefault(trained.label, []).append(trained)
    return {
        setting: {name: sorted(runs, key=lambda run: run.rate) for name, runs in by_name.items()}
        for setting, by_name in sorted(found.items())
    }


def step_times(setting: Setting, names: Iterable[str], file: pathlib.Path) -> dict[str, float]:
    """The seconds of a step of each estimator that the benchmark has measured."""
    rows = json.loads(file.read_text(encoding="utf-8"))["steps"]
    measured = {row["name"]: row["seconds"] for row in rows if row["group"] == setting.group}

    def label(name: str) -> str:
        if not setting.pairs:
            return name
        return f"vimco, {2 * setting.pairs} samples" if name == "vimco" else f"{name}, {setting.pairs} pairs"

    return {name: measured[label(name)] for name in names if label(name) in measured}


def relative(times: dict[str, float]) -> dict[str, float]:
    """The times of steps relative to the plain estimator's; empty if that was not measured."""
    plain = next((times[name] for name in PLAIN if name in times), None)
    return {} if plain is None else {name: seconds / plain for name, seconds in times.items()}


def best(by_name: dict[str, list[Trained]]) -> dict[str, Trained]:
    """Each estimator at the rate that is best by the validation set, the best estimator first."""
    chosen = {name: max(runs, key=lambda run: run.validation) for name, runs in by_name.items()}
    return dict(sorted(chosen.items(), key=lambda item: -item[1].train[-1]))


def table(setting: Setting, by_name: dict[str, list[Trained]], ratios: dict[str, float]) -> str:
    """One setting, the best estimator first."""
    lines = [HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
    for name, run in best(by_name).items():
        rates = [other.rate for other in by_name[name]]
        at_the_end = len(rates) > 1 and run.rate in (rates[0], rates[-1])
        shown = palette.label_name(name) + (", biased" if is_biased(name) else "")
        cells = [shown, f"{run.rate:g}" + (" (at the end of those tried)" if at_the_end else "")]
        cells += [f"{run.train[-1]:.2f}", f"{run.test:.2f}", f"{run.variance:.2g}"]
        if name in ratios:
            in_its_time = np.interp(setting.steps / ratios[name], run.steps, run.train)
            cells += [f"{ratios[name]:.2f}", f"{in_its_time:.2f}"]
        else:
            cells += ["–", "–"]
        lines.append(f"| {' | '.join(cells)} |".replace("| -", "| −"))
    return "\n".join(lines)


def is_biased(label: str) -> bool:
    """Whether a registered estimator, of bits or of classes, is biased; of a custom one that is not known."""
    name = palette.spec_of(label).name
    known = [registry.info(name) for registry in (BITS, CLASSES) if name in registry.names()]
    return any(not info.unbiased for info in known)


def every_run(by_name: dict[str, list[Trained]]) -> str:
    """All rates of one setting: train bound, and that of the validation set."""
    rates = sorted({run.rate for runs in by_name.values() for run in runs})
    lines = [f"| train / validation | {' | '.join(f'{rate:g}' for rate in rates)} |", "|---" * (len(rates) + 1) + "|"]
    for name, runs in by_name.items():
        found = {run.rate: f"{run.train[-1]:.2f} / {run.validation:.2f}".replace("-", "−") for run in runs}
        lines.append(f"| {palette.label_name(name)} | {' | '.join(found.get(rate, '–') for rate in rates)} |")
    return "\n".join(lines)


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_multi_string("runs", None, "A folder with run directories; repeatable.", flag_values=values)
    benchmark = str(ROOT / "results/benchmark/benchmark.json")
    measured = "The times of steps, as scripts.benchmark writes them."
    flags.DEFINE_string("benchmark", benchmark, measured, flag_values=values)
    flags.DEFINE_string("out", None, "The file to write; none: print only.", flag_values=values)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Writes the tables and prints them."""
    flags_only(argv)
    if not values.runs:
        raise app.UsageError("--runs must name a folder with run directories")
    try:
        found = read(map(pathlib.Path, values.runs))
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    if not found:
        raise app.UsageError(f"--runs={', '.join(values.runs)}: there is no finished run")
    parts = []
    for setting, by_name in found.items():
        ratios = relative(step_times(setting, by_name, pathlib.Path(values.benchmark)))
        parts += [f"## {setting.title}", table(setting, by_name, ratios), "All rates:", every_run(by_name)]
    text = "\n\n".join(parts) + "\n"
    if values.out:
        write_text(pathlib.Path(values.out), text)
    print(text, end="")


if __name__ == "__main__":
    run_script(main, define_flags)
