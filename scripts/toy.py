"""The paper's toy problem: climb E[(b − p0)²] over the logit φ of one bit, with one gradient estimate per step.

    python -m scripts.toy                                        # 20 seconds on 2 cores
    python -m scripts.toy --estimators=disarm,relax --p0=0.49    # any estimator of an expectation, at its defaults

Prints a summary and writes `toy.png`, `toy.pdf` and `toy.csv` to `--out`. The figure has the layout of the paper's
appendix, and below it the variance against σ(φ): estimators compare at equal φ, and each follows its own. The ascent
starts at φ = 0.

At each step the variance of the gradient is measured with `--num_samples` draws, around the exact gradient (around the
draws' mean for a biased estimator). Near φ = 0 the values of REINFORCE LOO lie so evenly about their mean that a
variance around the draws' mean has χ² errors, which no standard error describes. Likewise `variance_stderr` comes from
the exact moments where they are known, and from the draws elsewhere. Tunables (interpolated, rebar, relax) are
trained online by Adam on `variance_loss`, with the draw that also moves φ.
"""

import csv
import functools
import math
import os
import pathlib
import tempfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

import disarm_jax as dj
from disarm_jax.command_line import flags_only, run_script
from disarm_jax.experiment.step import descend, project
from disarm_jax.progress import ProgressBar
from scripts.toy_exact import exact_ascent, exact_gradient, exact_variance, sigmoid
from scripts.toy_figure import plot

MAX_POINTS = 200  # of each trace, in the CSV and in the figure
TUNABLES_RATE = 0.01


class Trace(NamedTuple):
    """One ascent: arrays of one entry per step, all at that step's φ, and σ(φ) after the last step."""

    probability: np.ndarray
    gradient: np.ndarray
    exact_gradient: np.ndarray
    variance: np.ndarray
    variance_stderr: np.ndarray
    exact_variance: np.ndarray | None  # None if not in closed form
    final_probability: float


def make_ascent(name: str, learning_rate: float, num_samples: int) -> tuple[Callable, Callable]:
    """An ascent's start, `key -> state`, and a run of steps, `(state, key, p0, first, length) -> (state, trace)`."""
    est, unbiased = dj.make_estimator(name), dj.estimator_info(name).unbiased
    # Adam's usual eps would drown these gradients: they are squares of numbers as small as 1 − 2 p0
    optimizer = optax.adam(TUNABLES_RATE, eps=1e-30)

    def start(key):
        params = est.init(key, jnp.zeros(1))
        return jnp.zeros(()), params, optimizer.init(params)

    @functools.partial(jax.jit, static_argnames="length")
    def run(state, key, p0, first, length):
        def f(b):
            return (b[..., 0] - p0) ** 2

        def step(state, index):
            phi, params, opt_state = state
            ascent_key, measure_key = jax.random.split(jax.random.fold_in(key, index))
            gradient = est.apply(params, ascent_key, phi[None], f).grad[0]
            draws = est.apply(params, measure_key, jnp.full((num_samples, 1), phi), f).grad[:, 0]
            exact = (1 - 2 * p0) * jax.nn.sigmoid(phi) * jax.nn.sigmoid(-phi)
            squares = (draws - (exact if unbiased else jnp.mean(draws))) ** 2
            variance = jnp.sum(squares) / (num_samples if unbiased else num_samples - 1)
            if jax.tree.leaves(params):
                grads = jax.grad(dj.variance_loss(est))(params, ascent_key, phi[None], f)
                params, opt_state = descend(optimizer, params, opt_state, grads)
                params = project(params)
            trace = (phi, gradient, variance, jnp.std(squares) / math.sqrt(num_samples))
            return (phi + learning_rate * gradient, params, opt_state), trace

        return jax.lax.scan(step, state, first + jnp.arange(length))

    return start, run


def run_trace(
    name: str, p0: float, seed: int, steps: int, num_samples: int, ascent: tuple, advance: Callable[[int], None]
) -> Trace:
    """One ascent, in float64: at p0 = 0.4999 float32 keeps four digits of f(1) − f(0).

    It tells `advance` how many more steps are done.
    """
    start, run = ascent
    with jax.enable_x64(True):
        # A trace depends on its own estimator and p0, not on what else was asked for
        root = jax.random.fold_in(jax.random.key(seed), zlib.crc32(f"{name} {p0!r}".encode()))
        init_key, key = jax.random.split(root)
        state, parts, size = start(init_key), [], math.ceil(steps / 10)
        for first in range(0, steps, size):
            length = min(size, steps - first)
            state, part = run(state, key, jnp.asarray(p0), jnp.asarray(first), length)
            parts.append(jax.device_get(part))
            advance(length)
        final_phi = float(state[0])
    phi, gradient, variance, stderr = (np.concatenate(column) for column in zip(*parts, strict=True))
    exact, deviation = exact_variance(name, p0, phi) or (None, None)
    if exact is not None:
        # At φ = 0 the squared error of LOO and of DisARM is a constant: only the rounding of f is left
        stderr = deviation / math.sqrt(num_samples) + np.finfo(np.float64).eps
    return Trace(sigmoid(phi), gradient, exact_gradient(p0, phi), variance, stderr, exact, float(sigmoid(final_phi)))


def shown(steps: int) -> np.ndarray:
    """The steps that are written and drawn: all of them, or MAX_POINTS evenly spaced ones."""
    return np.unique(np.linspace(0, steps - 1, min(steps, MAX_POINTS)).round().astype(int))


def write_csv(path: pathlib.Path, traces: dict[tuple[float, str], Trace], points: np.ndarray) -> None:
    """One row for each p0, estimator and shown step; `exact_variance` is empty where there is no closed form."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["p0", "estimator", "step", *Trace._fields[:-1]])
        for (p0, name), trace in traces.items():
            for step in points:
                numbers = ["" if column is None else float(column[step]) for column in trace[:-1]]
                writer.writerow([p0, name, step, *numbers])


def summary(traces: dict[tuple[float, str], Trace], points: np.ndarray) -> str:
    """A table: where each ascent ended, its variance, and how far the Monte Carlo points are from the exact curve."""
    lines = ["      p0  estimator       final σ(φ)  mean variance       exact  exact at end  worst |z|"]
    beyond = count = 0
    for (p0, name), trace in traces.items():
        row = f"{p0:8g}  {name:<14} {trace.final_probability:11.4f} {trace.variance.mean():14.3e}"
        if (exact := trace.exact_variance) is not None:
            z = np.abs(trace.variance - exact) / trace.variance_stderr
            beyond, count = beyond + np.sum(z > 4), count + len(z)
            row += f" {exact.mean():11.3e} {exact[-1]:13.3e} {z[points].max():10.2f}"
        lines.append(row)
    lines.append("|z|: how many standard errors the Monte Carlo variances in the CSV are from the exact ones.")
    lines.append(f"Beyond 4 at all steps: {beyond} of {count}; by chance {6.3e-5 * count:.1f}.")
    return "\n".join(lines)


def parse_estimators(names: list[str]) -> list[str]:
    """The names, refused unless each is an estimator of an expectation, named once."""
    accepted = [name for name in dj.estimator_names() if dj.estimator_info(name).objective == "expectation"]
    for name in names:
        if name not in accepted:
            known = name in dj.estimator_names()
            what = "is for multi-sample bounds" if known else "is not an estimator"
            raise flags.ValidationError(f"{name!r} {what}; accepted: {', '.join(accepted)}")
    return _distinct(names)


def parse_p0(texts: list[str]) -> list[float]:
    """The values of p0, refused unless each is between 0 and 1, given once."""
    for text in texts:
        try:
            good = 0 < float(text) < 1
        except ValueError:
            good = False
        if not good:
            raise flags.ValidationError(f"bad value {text!r}; accepted: numbers between 0 and 1, both excluded")
    return _distinct([float(text) for text in texts])


def _distinct(values: list) -> list:
    if not values or len(set(values)) < len(values):
        raise flags.ValidationError(f"got {values}; accepted: at least one value, none of them twice")
    return values


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_list("estimators", "reinforce_loo,arm,disarm", "Estimators to compare.", **options)
    flags.DEFINE_list("p0", "0.49,0.499,0.4999", "Targets; the closer to 0.5, the harder.", **options)
    flags.DEFINE_integer("steps", 2000, "Steps of each ascent.", lower_bound=1, **options)
    flags.DEFINE_float("learning_rate", 1.0, "Step size of the ascent.", **options)
    flags.DEFINE_integer("num_samples", 5000, "Draws per step that measure the variance.", lower_bound=2, **options)
    flags.DEFINE_integer("seed", 0, "Seed of all randomness.", lower_bound=0, upper_bound=2**32 - 1, **options)
    flags.DEFINE_string("out", "runs/toy", "Directory for toy.png, toy.pdf and toy.csv.", **options)
    flags.register_validator("estimators", parse_estimators, **options)
    flags.register_validator("p0", parse_p0, **options)
    accepted = "accepted: positive finite numbers"
    flags.register_validator("learning_rate", lambda rate: 0 < rate < math.inf, accepted, **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Runs every ascent, then writes the three files."""
    flags_only(argv)
    names, targets, out = parse_estimators(values.estimators), parse_p0(values.p0), pathlib.Path(values.out)
    try:  # before the work, not after it
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise SystemExit(f"cannot write to --out={out}: {error.strerror}; accepted: a writable directory") from error
    traces, curves = {}, {}
    ascents = {name: make_ascent(name, values.learning_rate, values.num_samples) for name in names}
    progress = ProgressBar(values.steps * len(names) * len(targets), "step")
    for p0 in targets:
        for name in names:
            progress.describe(f"p0 = {p0:g}, {name}")
            budget = (values.seed, values.steps, values.num_samples)
            advance = lambda count: progress.update(progress.done + count)
            traces[p0, name] = run_trace(name, p0, *budget, ascents[name], advance)
            grid = np.linspace(-5, 5, 1001)
            if (exact := exact_variance(name, p0, grid)) is not None:
                curves[p0, name] = sigmoid(grid), exact[0]
    progress.close()
    points = shown(values.steps)
    figure = plot(traces, {p0: exact_ascent(p0, values.learning_rate, values.steps) for p0 in targets}, curves, points)
    with tempfile.TemporaryDirectory(dir=out, prefix=".toy-") as scratch:  # whole files or none
        paths = [pathlib.Path(scratch, f"toy.{kind}") for kind in ("png", "pdf", "csv")]
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1])
        write_csv(paths[2], traces, points)
        for path in paths:
            os.replace(path, out / path.name)
    print(summary(traces, points))
    print("wrote", *(out / path.name for path in paths))


if __name__ == "__main__":
    run_script(main, define_flags)
