"""Runs of one configuration, pooled, whether their seeds were trained together or apart.

A seed that was trained twice counts once: its metrics are functions of config, seed, step and code. Runs made by
different code are pooled too, with a remark that names the commits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from disarm_jax.experiment.build import default_option
from disarm_jax.experiment.config import CADENCE
from disarm_jax.experiment.fields import flat
from disarm_jax.report import paper
from disarm_jax.report.origin import differing_codes, listed_codes
from disarm_jax.report.runs import Run

# Beside `CADENCE`: which seeds, where the data lies, and what is measured without a part in training.
_NOT_LEARNT = ("seeds", "dataset.source", "dataset.data_dir", "dataset.path", "variance.estimators")


class Value(NamedTuple):
    """A metric of a pool at one step.

    Attributes:
      mean: over seeds.
      stderr: of the mean, None for a single seed.
      step: at which it is taken.
      seeds: that count.
      reached: the last step at which each seed of the pool has the metric, 0 if it has not got there yet.
    """

    mean: float
    stderr: float | None
    step: int
    seeds: tuple[int, ...]
    reached: dict[int, int]


class Pool(NamedTuple):
    """All runs of one configuration.

    Attributes:
      config: of one of them; the others have other seeds, and perhaps another length.
      settings: the fields that decide what is learnt, by dotted name.
      runs: the longest first.
      series: value by metric, seed and step.
      sources: the run that these values are taken from, by metric and seed.
    """

    config: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    series: dict[str, dict[int, dict[int, float]]]
    sources: dict[str, dict[int, Run]]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(sorted({seed for run in self.runs for seed in run.config["seeds"]}))

    @property
    def repeated(self) -> tuple[int, ...]:
        """Seeds that more than one run directory has."""
        seeds = [seed for run in self.runs for seed in run.config["seeds"]]
        return tuple(seed for seed in self.seeds if seeds.count(seed) > 1)

    def code_remarks(self, metric: str) -> tuple[str, ...]:
        """What to know of the code behind the values of a metric; nothing if all are made by the same code."""
        counted = list({run.path: run for run in self.sources.get(metric, {}).values()}.values())
        remarks = [
            f"{run.name} was continued by other code: {listed_codes(run.codes)}"
            for run in counted
            if len(run.codes) > 1
        ]
        if codes := differing_codes(run.codes[-1] for run in counted):
            remarks.append(f"seeds made by different code: {listed_codes(codes)}")
        for seed, source in self.sources.get(metric, {}).items():
            others = [run for run in self.runs if run is not source and seed in run.config["seeds"]]
            if differing_codes(run.codes[-1] for run in (source, *others)):
                rest = ", ".join(f"{run.name} ({run.codes[-1]})" for run in others)
                remarks.append(f"seed {seed} counts from {source.name} ({source.codes[-1]}), not from {rest}")
        return tuple(remarks)

    def value(self, metric: str) -> Value | None:
        """A metric at the paper's number of steps if a seed has got there, else at the last step that most seeds share.

        Seeds that do not have it there are left out. None if no seed has it yet.
        """
        by_seed = self.series.get(metric, {})
        if not by_seed:
            return None
        counts: dict[int, int] = {}
        for steps in by_seed.values():
            for step in steps:
                counts[step] = counts.get(step, 0) + 1
        step = paper.STEPS if paper.STEPS in counts else max(counts, key=lambda step: (counts[step], step))
        seeds = tuple(sorted(seed for seed, steps in by_seed.items() if step in steps))
        mean, stderr = mean_and_stderr([by_seed[seed][step] for seed in seeds])
        reached = {seed: max(by_seed.get(seed, {}), default=0) for seed in self.seeds}
        return Value(mean, stderr, step, seeds, reached)

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, means and standard errors (NaN for a single seed) of the seeds that count in `value`."""
        value = self.value(metric)
        if value is None:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        series = [self.series[metric][seed] for seed in value.seeds]
        steps = sorted(set.intersection(*map(set, series)))
        found = [mean_and_stderr([one[step] for one in series]) for step in steps]
        means, errors = zip(*found, strict=True)
        return np.array(steps), np.array(means), np.array(errors, float)


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean of independent values and its standard error, which a single value does not tell.

    >>> mean_and_stderr([-1.0, -3.0]), mean_and_stderr([5.0])
    ((-2.0, 1.0), (5.0, None))
    """
    stderr = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return float(np.mean(values)), stderr


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a resolved config that decide what is learnt, without options that have their default anyway.

    The path of an npz file says which data set it is, so it counts.
    """
    settings = {}
    for field, value in flat(config):
        custom_data = field == "dataset.path" and config["dataset"]["name"] == "npz"
        if field.split(".")[0] in CADENCE or (field in _NOT_LEARNT and not custom_data) or value == {}:
            continue
        option = field.removeprefix("estimator.options.")
        if option == field or value != default_option(config["estimator"]["name"], option, config["model"]["latents"]):
            settings[field] = value
    return settings


def pool_runs(runs: Iterable[Run]) -> list[Pool]:
    """Runs that differ in nothing but seeds, length and cadence, together."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(settings_of(run.config), sort_keys=True), []).append(run)
    pools = []
    for group in groups.values():
        group.sort(key=_precedence)
        pools.append(Pool(group[0].config, settings_of(group[0].config), tuple(group), *_series(group)))
    return pools


def _precedence(run: Run) -> tuple:
    """The longest run first, then one whose code is known, then one whose code is that of a commit, then the name."""
    code = run.codes[-1]
    return -run.step, code.commit is None, bool(code.dirty), run.name


def _series(runs: Sequence[Run]) -> tuple[dict[str, dict[int, dict[int, float]]], dict[str, dict[int, Run]]]:
    """Values by metric, seed and step, each seed's from the run that has the metric up to the latest step; this run."""
    series: dict[str, dict[int, dict[int, float]]] = {}
    sources: dict[str, dict[int, Run]] = {}
    for run in runs:
        own: dict[str, dict[int, dict[int, float]]] = {}
        for row in run.rows:
            for metric, value in row.items():
                if metric not in ("step", "seed"):
                    own.setdefault(metric, {}).setdefault(row["seed"], {})[row["step"]] = value
        for metric, by_seed in own.items():
            for seed, steps in by_seed.items():
                best = series.setdefault(metric, {})
                if max(steps) > max(best.get(seed, {}), default=-1):
                    best[seed] = steps
                    sources.setdefault(metric, {})[seed] = run
    return series, sources
