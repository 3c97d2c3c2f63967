"""Compares estimators at one point of a run: variance, bias and time of each, at the same parameters and batch.

What is known is a plain record that JSON can hold, and grows by one estimator at a time, so that a comparison may be
interrupted and taken up again.
"""

import functools
import re
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from disarm_jax.analysis.at_checkpoint import builder_of, fixed_batch, measure, split_names, tunables_of
from disarm_jax.experiment.build import parse_estimator, registry_for
from disarm_jax.experiment.config import check_measured, is_bound
from disarm_jax.experiment.fields import Config, ConfigError, has_classes, is_import_path, plain
from disarm_jax.experiment.load import Run, load_images
from disarm_jax.experiment.step import draw_gradients
from disarm_jax.objectives import Objective
from disarm_jax.report import palette
from disarm_jax.report.times import evaluations_of

# For each kind of gradient the estimators that are compared if none are named. The first one is the reference.
OF_THE_ELBO = (
    "disarm, reinforce, reinforce_loo, arm, interpolated, muprop, double_cv, rodeo, bitflip, straight_through, "
    "gumbel_sigmoid, reinmax, rebar, relax, reinforce_loo(num_samples=3), arms(num_samples=3), "
    "double_cv(num_samples=3), disarm_taylor, disarm_quadratic, disarm_midpoint, reinforce_loo(num_samples=4), "
    "disarm(num_pairs=2), arms(num_samples=4), double_cv(num_samples=4), rodeo(num_samples=4), arms_interpolated, "
    "disarm_taylor_cross, ugc, disarm_quadratic(num_pairs=2), disarm_midpoint(num_pairs=2), arms_quadratic, "
    "reinforce_loo(num_samples=8), disarm(num_pairs=4), arms(num_samples=8), reinforce_loo_midpoint, arms_midpoint, leg"
)
OF_A_CHAIN = (
    "disarm, reinforce_loo, arm, interpolated, relax, rebar, arms(num_samples=3), arms_interpolated(num_samples=3), "
    "disarm_taylor, disarm_quadratic, arms_quadratic(num_samples=3), disarm_midpoint, muprop, reinforce, ugc, bitflip, "
    "reinforce_loo_midpoint, arms_midpoint"
)
OF_CLASSES = (
    "disarm_iw, reinforce_loo, disarm_sb, disarm_tree, disarm_iw(num_pairs=2), reinforce_loo(num_samples=4), "
    "disarm_iw_midpoint, reinforce_loo_midpoint, disarm_sb_midpoint, disarm_tree_midpoint, "
    "disarm_iw_midpoint(num_pairs=2), reinmax, gumbel_softmax, straight_through"
)
# Of K pairs, with {pairs} for K and {samples} for 2 K.
OF_A_BOUND = (
    "multisample_disarm(num_pairs={pairs}), vimco(num_samples={samples}), "
    "vimco(num_samples={samples}, baseline='geometric'), multisample_arms(num_samples={pairs}), "
    "naive_multisample_disarm(num_pairs={pairs}), multisample_disarm_quadratic(num_pairs={pairs}), "
    "multisample_disarm_midpoint(num_pairs={pairs}), "
    "multisample_disarm(num_pairs={pairs}, configurations='cyclic'), "
    "multisample_disarm_midpoint(num_pairs={pairs}, configurations='cyclic')"
)
OF_A_BOUND_OF_CLASSES = (
    "multisample_disarm(num_pairs={pairs}), vimco(num_samples={samples}), "
    "vimco(num_samples={samples}, baseline='geometric'), multisample_disarm_midpoint(num_pairs={pairs})"
)


class Budget(NamedTuple):
    """How much is spent on each estimator.

    Attributes:
      num_draws: draws that its variance is of.
      tune_steps: steps that train tunables which are not in the run.
      tune_learning_rate: of these steps.
      rounds: of timing, each with the reference beside it.
    """

    num_draws: int
    tune_steps: int
    tune_learning_rate: float
    rounds: int


class Subject(NamedTuple):
    """What estimators are compared on.

    Attributes:
      run: at a checkpoint.
      pairs: K of the multi-sample bound whose gradient they estimate, from K pairs or 2 K samples; None for the ELBO.
    """

    run: Run
    pairs: int | None

    @property
    def config(self) -> Config:
        """The run's, with the objective of the comparison."""
        objective = {"name": "multisample", "num_samples": self.pairs} if self.pairs else {}
        return Config({**self.run.config, "objective": {**self.run.config.objective, **objective}})

    @property
    def objective(self) -> Objective:
        """With one fresh set of samples for decoder and prior under every estimator, so that times can be compared."""
        objective = self.run.experiment.objective._replace(shared_samples=False)
        return objective._replace(num_samples=self.pairs, stop_q=False) if self.pairs else objective


def subjects_of(run: Run, pairs: list[int]) -> list[Subject]:
    """The run with the bounds of so many pairs each; with none named, with what it was trained for.

    Raises:
      ConfigError: if its objective is a custom one, or a bound of several layers is asked for.
    """
    name = run.config.objective.name
    if is_import_path(name):
        raise ConfigError(f"objective.name is {name!r}; accepted: elbo, multisample")
    if pairs and len(run.model.latents) > 1:
        raise ConfigError(f"--pairs: a model with {len(run.model.latents)} layers; accepted: one layer, for a bound")
    if not pairs and is_bound(run.config):
        by_pairs = "num_pairs" in run.config.estimator.options
        pairs = [run.config.objective.num_samples if by_pairs else max(1, run.config.objective.num_samples // 2)]
    return [Subject(run, number) for number in pairs or [None]]


def chosen_estimators(subject: Subject, text: str | None) -> list[str]:
    """What a list of names holds, or all, with the reference first.

    Raises:
      ConfigError: if one of them is unknown or does not fit.
    """
    classes = has_classes(subject.run.model.latents)
    if subject.pairs:
        every_one = OF_A_BOUND_OF_CLASSES if classes else OF_A_BOUND
        every_one = every_one.format(pairs=subject.pairs, samples=2 * subject.pairs)
    elif classes:
        every_one = OF_CLASSES
    else:
        every_one = OF_THE_ELBO if len(subject.run.model.latents) == 1 else OF_A_CHAIN
    reference = split_names(every_one)[0]
    named = check_measured(split_names(text or every_one), subject.config, "--estimators")
    (reference,) = check_measured([reference], subject.config, "--estimators")
    return [reference, *(name for name in named if name != reference)]


def new_point(subject: Subject, reference: str, budget: Budget) -> dict[str, Any]:
    """The record of what estimators are compared on, without any estimator."""
    run = subject.run
    return {
        "dataset": run.config.dataset.name,
        "latents": plain(run.config.model.latents),
        "hidden": plain(run.config.model.hidden),
        "trained_with": run.experiment.labels[0],
        "step": run.step,
        "batch_size": run.config.batch_size,
        "pairs": subject.pairs,
        "reference": reference,
        **budget._asdict(),
        "estimators": [],
    }


def measurer(subject: Subject, reference: str, budget: Budget) -> Callable[[str], tuple[dict[str, Any], np.ndarray]]:
    """A function of an estimator's name that measures it, on the same batch as all others.

    Its row has `time` as a ratio to the reference, which is timed beside it; the mean of its logits' gradient comes
    with it.
    """
    run, objective = subject.run, subject.objective
    dataset = load_images(run)
    params = run.params[0]
    x, tune_key, draw_key = fixed_batch(run, dataset, 0, run.config.batch_size)
    time_of_reference = timer(objective, builder_of(run, reference), (), params, draw_key, x)

    def measured(label: str) -> tuple[dict[str, Any], np.ndarray]:
        build = builder_of(run, label)
        tuning = (budget.tune_steps, budget.tune_learning_rate)
        tunables = tunables_of(run, label, build, dataset, 0, tune_key, *tuning, objective=objective)
        taken = functools.partial(measure, objective, build, num_draws=budget.num_draws)
        # The bias is taken from means with independent noise, whichever else are compared.
        label_key = jax.random.fold_in(draw_key, zlib.crc32(label.encode()))
        found = jax.device_get(jax.jit(taken)(tunables, params, label_key, x))
        timed = timer(objective, build, tunables, params, draw_key, x)
        seconds = [(timed(), time_of_reference()) for _ in range(budget.rounds)]
        row = {"estimator": label, "evaluations": evaluations(run, label)}
        row["unbiased"] = is_unbiased(label, run.model.latents)
        row["seconds"] = statistics.median(own for own, _ in seconds)
        row["time"] = row["seconds"] / statistics.median(other for _, other in seconds)
        for group in ("encoder", "logits"):
            row[group] = {"variance": float(found[group].variance), "stderr": float(found[group].stderr)}
        return row, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found["logits"].mean)])

    return measured


def add_ratios(point: dict[str, Any], means: dict[str, np.ndarray]) -> None:
    """Ratios to the reference, and the bias of biased estimators, from all that is known by now."""
    rows = {row["estimator"]: row for row in point["estimators"]}
    best = min((row for row in rows.values() if row["unbiased"]), key=lambda row: row["logits"]["variance"])
    for row in rows.values():
        for group in ("encoder", "logits"):
            row[group]["ratio"] = row[group]["variance"] / rows[point["reference"]][group]["variance"]
        if not row["unbiased"]:
            # Both means are noisy, independently of each other, which adds to the square of their distance.
            square = float(np.mean((means[row["estimator"]] - means[best["estimator"]]) ** 2))
            noise = (row["logits"]["variance"] + best["logits"]["variance"]) / point["num_draws"]
            row["bias"] = (square - noise) / rows[point["reference"]]["logits"]["variance"]


def timer(
    objective: Any, build: Callable, tunables: Any, params: dict, key: jax.Array, x: jax.Array, draws: int = 10
) -> Callable[[], float]:
    """A compiled loop of draws with all derivatives; run, it returns the seconds of one.

    The parameters move a little with every draw, as in training: XLA computes what stays the same only once. On a CPU
    the seconds are those for which the processor has worked, so that other work on the machine disturbs them little.
    """
    now = time.process_time if jax.default_backend() == "cpu" else time.perf_counter

    @jax.jit
    def loop(tunables, params, keys, x):
        def step(at, key):
            tunables, params = at
            drawn = draw_gradients(objective, build(x), tunables, params, key, x)
            return jax.tree.map(lambda a, g: a - 1e-9 * g, at, (drawn.tunables, drawn.params)), None

        return lax.scan(step, (tunables, params), keys)[0]

    arguments = (tunables, params, jax.random.split(key, draws), x)

    def run() -> float:
        jax.block_until_ready(loop(*arguments))  # what ran before has left the caches full of its own
        start = now()
        jax.block_until_ready(loop(*arguments))
        return (now() - start) / draws

    run()  # compiles
    return run


def evaluations(run: Run, label: str) -> int | None:
    """Of f per image; None for a custom estimator, which does not say."""
    return evaluations_of({"estimator": parse_estimator(label)._asdict(), "model": run.config.model})


def is_unbiased(label: str, latents: tuple = ()) -> bool:
    """As the registry says, of bits or of the model's classes; a custom estimator is believed to be."""
    name, options = parse_estimator(label)
    if options.get("later_layers") == "hard":  # of hierarchical RELAX
        return False
    return is_import_path(name) or registry_for(latents).info(name).unbiased


def title(point: dict[str, Any]) -> str:
    """What was compared, in words."""
    return f"{point['dataset']}, {kind_of(point)}, step {point['step']:,} with {point['trained_with']}"


def kind_of(point: dict[str, Any]) -> str:
    """The model and the objective, in words.

    >>> kind_of({"hidden": [], "latents": [[20, 10]], "pairs": 5})
    'linear, 20 × 10 classes, bound of 5 pairs'
    """
    kinds = ["nonlinear" if point["hidden"] else "linear"]
    if has_classes(point["latents"]):
        kinds.append(" × ".join(map(str, point["latents"][0])) + " classes")
    if len(point["latents"]) > 1:
        kinds.append(f"{len(point['latents'])} layers")
    if point.get("pairs"):  # older results have none
        kinds.append(f"bound of {palette.count(point['pairs'], 'pair')}")
    return ", ".join(kinds)


def file_name(point: dict[str, Any]) -> str:
    """The title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "_", title(point).lower()).strip("_")


def as_markdown(points: list[dict[str, Any]]) -> str:
    """A table for each point, the least variance × time first."""
    lines = ["# Estimators compared", "", "Made by `python -m scripts.compare`.", ""]
    for point in points:
        lines += [f"## {title(point)}", ""]
        drawn = f"One batch of {point['batch_size']} images, {point['num_draws']} draws of each estimator"
        lines += [f"{drawn}; ratios to `{point['reference']}`.", ""]
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
    """A ratio and its standard error, the reference's variance being taken as exact."""
    return f"{group['ratio']:.3g} ± {group['stderr'] / group['variance'] * group['ratio']:.1g}"
