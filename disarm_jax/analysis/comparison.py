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

import disarm_jax as dj
from disarm_jax.analysis.at_checkpoint import builder_of, fixed_batch, measure, split_names, tunables_of
from disarm_jax.experiment.build import parse_estimator
from disarm_jax.experiment.config import ConfigError, check_measured
from disarm_jax.experiment.fields import is_import_path, plain
from disarm_jax.experiment.load import Run, load_images
from disarm_jax.experiment.step import draw_gradients
from disarm_jax.report.times import evaluations_of

REFERENCE = "disarm"
EVERY_ONE = (
    "disarm, reinforce, reinforce_loo, arm, interpolated, muprop, double_cv, rodeo, bitflip, straight_through, "
    "gumbel_sigmoid, reinmax, rebar, relax, reinforce_loo(num_samples=3), arms(num_samples=3), "
    "double_cv(num_samples=3), disarm_taylor, disarm_quadratic, disarm_midpoint, reinforce_loo(num_samples=4), "
    "disarm(num_pairs=2), arms(num_samples=4), double_cv(num_samples=4), rodeo(num_samples=4), arms_interpolated, "
    "disarm_taylor_cross, ugc, disarm_quadratic(num_pairs=2), disarm_midpoint(num_pairs=2), arms_quadratic, "
    "reinforce_loo(num_samples=8), disarm(num_pairs=4), arms(num_samples=8), reinforce_loo_midpoint, arms_midpoint, leg"
)
EVERY_ONE_OF_A_CHAIN = (
    "disarm, reinforce_loo, arm, interpolated, relax, rebar, arms(num_samples=3), arms_interpolated(num_samples=3), "
    "disarm_taylor, disarm_quadratic, arms_quadratic(num_samples=3), disarm_midpoint, muprop, reinforce, ugc, bitflip, "
    "reinforce_loo_midpoint, arms_midpoint"
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


def chosen_estimators(run: Run, text: str | None) -> list[str]:
    """What a list of names holds, or all, with the reference first.

    Raises:
      ConfigError: if one of them is unknown or does not fit the run.
    """
    if run.config.objective.name != "elbo":
        raise ConfigError(f"objective.name is {run.config.objective.name!r}; accepted: elbo")
    text = text or (EVERY_ONE if len(run.model.latents) == 1 else EVERY_ONE_OF_A_CHAIN)
    names = [REFERENCE, *(name for name in split_names(text) if name != REFERENCE)]
    return check_measured(names, run.config, "--estimators")


def new_point(run: Run, budget: Budget) -> dict[str, Any]:
    """The record of a point of a run, without any estimator."""
    return {
        "dataset": run.config.dataset.name,
        "latents": plain(run.config.model.latents),
        "hidden": plain(run.config.model.hidden),
        "trained_with": run.experiment.labels[0],
        "step": run.step,
        "batch_size": run.config.batch_size,
        **budget._asdict(),
        "estimators": [],
    }


def measurer(run: Run, budget: Budget) -> Callable[[str], tuple[dict[str, Any], np.ndarray]]:
    """A function of an estimator's name that measures it at a point of a run, on the same batch as all others.

    Its row has `time` as a ratio to the reference, which is timed beside it; the mean of its logits' gradient comes
    with it.
    """
    dataset = load_images(run)
    # One fresh sample for decoder and prior under every estimator, so that the times differ by the estimators alone.
    params, objective = run.params[0], run.experiment.objective._replace(shared_samples=False)
    x, tune_key, draw_key = fixed_batch(run, dataset, 0, run.config.batch_size)
    reference = timer(objective, builder_of(run, REFERENCE), (), params, draw_key, x)

    def measured(label: str) -> tuple[dict[str, Any], np.ndarray]:
        build = builder_of(run, label)
        tuning = (budget.tune_steps, budget.tune_learning_rate)
        tunables = tunables_of(run, label, build, dataset, 0, tune_key, *tuning)
        taken = functools.partial(measure, objective, build, num_draws=budget.num_draws)
        # The bias is taken from means with independent noise, whichever else are compared.
        label_key = jax.random.fold_in(draw_key, zlib.crc32(label.encode()))
        found = jax.device_get(jax.jit(taken)(tunables, params, label_key, x))
        timed = timer(objective, build, tunables, params, draw_key, x)
        seconds = [(timed(), reference()) for _ in range(budget.rounds)]
        row = {"estimator": label, "evaluations": evaluations(run, label), "unbiased": is_unbiased(label)}
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
            row[group]["ratio"] = row[group]["variance"] / rows[REFERENCE][group]["variance"]
        if not row["unbiased"]:
            # Both means are noisy, independently of each other, which adds to the square of their distance.
            square = float(np.mean((means[row["estimator"]] - means[best["estimator"]]) ** 2))
            noise = (row["logits"]["variance"] + best["logits"]["variance"]) / point["num_draws"]
            row["bias"] = (square - noise) / rows[REFERENCE]["logits"]["variance"]


def timer(
    objective: Any, build: Callable, tunables: Any, params: dict, key: jax.Array, x: jax.Array, draws: int = 10
) -> Callable[[], float]:
    """A compiled loop of draws with all derivatives; run, it returns the seconds of one.

    The parameters move a little with every draw, as in training: XLA computes what stays the same only once.
    """

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
        start = time.perf_counter()
        jax.block_until_ready(loop(*arguments))
        return (time.perf_counter() - start) / draws

    run()  # compiles
    return run


def evaluations(run: Run, label: str) -> int | None:
    """Of f per image; None for a custom estimator, which does not say."""
    return evaluations_of({"estimator": parse_estimator(label)._asdict(), "model": run.config.model})


def is_unbiased(label: str) -> bool:
    """As the registry says; a custom estimator is believed to be."""
    name, options = parse_estimator(label)
    if options.get("later_layers") == "hard":  # of hierarchical RELAX
        return False
    return is_import_path(name) or dj.estimator_info(name).unbiased


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
