"""What a run leaves to look at: curves of its metrics, and a grid of images."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib import figure as figures
from matplotlib.axes import Axes

from disarm_jax import data
from disarm_jax.experiment import build
from disarm_jax.experiment.fields import plain
from disarm_jax.experiment.grid import point_text, points_of
from disarm_jax.experiment.load import Prepared
from disarm_jax.files import whole_file
from disarm_jax.report import palette
from disarm_jax.run_directory.directory import RunDir

COLUMNS = 20
MARKERS = ("o", "s", "^", "D")


def series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which all seeds have a metric, and its values `[steps, S]`."""
    by_step: dict[int, list[float]] = {}
    for row in rows:
        if name in row:
            by_step.setdefault(row["step"], []).append(row[name])
    num_seeds = len({row["seed"] for row in rows})
    whole = {step: values for step, values in by_step.items() if len(values) == num_seeds}
    return np.array(list(whole)), np.array(list(whole.values()))


def _save(figure: figures.Figure, file) -> None:
    with whole_file(file) as stream:
        figure.savefig(stream, format="png", dpi=150)


def draw_curves(run_dir: RunDir) -> None:
    """`curves.png`: objective and bounds, gradient variance on a log scale, tunables; bands are one standard error.

    The points of a grid are one below the other.
    """
    rows, config = run_dir.read_metrics(), run_dir.read_config()
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("step", "seed", "point")))
    tunables = [name for name in names if name.startswith("tunables/")]
    variances = [name for name in names if name.startswith("gradient_variance")]
    bounds = [name for name in names if name == "objective" or name.endswith(("_elbo", "_sample_bound"))]
    panels = {"objective and bounds, nats": bounds, "gradient variance of the encoder": variances}
    panels |= {"tunables of the estimator": tunables} if tunables else {}
    trained, options = config["estimator"]["name"], config["estimator"]["options"]
    own, labels = palette.style_of(trained), {"objective": "objective (running mean)"}
    points = points_of(config)
    with matplotlib.rc_context(palette.FIGURE):
        figure = figures.Figure(figsize=(4.6 * len(panels), 3.6 * len(points)), layout="constrained")
        grid = figure.subplots(len(points), len(panels), squeeze=False)
        cells = itertools.product(enumerate(points), panels.items())
        for axes, ((number_of_point, point), (title, shown)) in zip(grid.flat, cells, strict=True):
            of_point = [row for row in rows if row.get("point", 0) == number_of_point]
            means = []
            for number, name in enumerate(shown):
                label, style = labels.get(name) or name.partition("/")[2] or palette.bound_title(name), own
                line = palette.LINES[number % len(palette.LINES)]  # all of the same estimator
                if shown is variances:
                    measured = name.partition("/")[2] or str(build.EstimatorSpec(trained, options))
                    label, style = palette.label_name(measured), palette.style_of(palette.spec_of(measured).name)
                    line = style.line
                look = {"color": style.color, "linestyle": line, "marker": MARKERS[number % len(MARKERS)]}
                steps, values = series(of_point, name)
                if len(steps):  # not of a point that has diverged before
                    means.append(_draw(axes, steps, values, label=label, **look))
            if shown is bounds and means:  # the first steps would squeeze the rest
                axes.set_ylim(bottom=min(np.min(mean[len(mean) // 10 :]) for mean in means))
            if shown is variances:
                axes.set_yscale("log")
            axes.set(title=f"{title}\n{point_text(point)}" if point else title, xlabel="steps")
            if means:
                axes.legend(fontsize=8)
        latents, hidden = (str(plain(config.model[name]))[1:-1] or "none" for name in ("latents", "hidden"))
        dataset = palette.own_name(config["dataset"]["name"])
        figure.suptitle(f"{own.name} on {dataset}, latents {latents}, hidden {hidden}", fontsize=10)
        _save(figure, run_dir.curves)


def _draw(axes: Axes, steps: np.ndarray, values: np.ndarray, **style: Any) -> np.ndarray:
    """A curve of the mean over seeds, `values` being `[steps, S]`, with a band of one standard error; the mean."""
    mean = values.mean(axis=1)
    if len(steps) >= 30:
        style["marker"] = ""
    axes.plot(steps, mean, markersize=4, linewidth=1.4, **style)
    if values.shape[1] > 1:
        error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
        axes.fill_between(steps, mean - error, mean + error, color=style["color"], alpha=0.25, linewidth=0)
    return mean


def draw_samples(run_dir: RunDir, prepared: Prepared, params: dict) -> None:
    """`samples.png` of a member's parameters: test images, their reconstructions, and samples of the prior."""
    model = prepared.model
    binarize_key, encode_key, prior_key = jax.random.split(jax.random.key(0), 3)
    images = prepared.dataset.test[:COLUMNS]
    x = data.binarize(binarize_key, jnp.asarray(images), prepared.config["dataset"]["binarization"])
    logits = model.apply({"params": params}, 0, x, method="encode")
    b = model.law.sample(encode_key, logits, 1)[0]
    rebuilt = jax.nn.sigmoid(model.apply({"params": params}, b, method="decode"))
    drawn = model.apply({"params": params}, prior_key, 2 * COLUMNS, method="sample")
    blocks = {"data": np.asarray(x), "reconstructions": np.asarray(rebuilt), "prior samples": np.asarray(drawn)}
    shape = prepared.dataset.image_shape
    shape = shape if len(shape) == 2 else (1, prepared.dataset.train.shape[1])
    with matplotlib.rc_context({"font.size": 9}):
        figure = figures.Figure(figsize=(9, 2.6), layout="constrained")
        heights = [-(-len(block) // COLUMNS) for block in blocks.values()]
        for axes, (title, block) in zip(figure.subplots(3, 1, height_ratios=heights), blocks.items(), strict=True):
            axes.imshow(_grid(block, shape), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(title, fontsize=9, loc="left", pad=3)
            axes.set_axis_off()
        _save(figure, run_dir.samples)


def _grid(images: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Images `[N, D]` in rows of `COLUMNS`, with a line of white between them."""
    rows = -(-len(images) // COLUMNS)
    padded = np.zeros((rows * COLUMNS, shape[0] + 1, shape[1] + 1))
    padded[: len(images), :-1, :-1] = images.reshape(-1, *shape)
    return padded.reshape(rows, COLUMNS, *padded.shape[1:]).swapaxes(1, 2).reshape(rows * padded.shape[1], -1)
