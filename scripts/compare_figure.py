"""The figure of `scripts.compare`: one point's results in, a PNG out."""

import itertools
import pathlib
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox

from disarm_jax.analysis.comparison import kind_of
from disarm_jax.report import palette

FAR = 10  # times the reference's
_RINGS = [(radius, angle) for radius in (14, 20, 28, 38, 50, 65, 85) for angle in np.arange(0, 2 * np.pi, np.pi / 8)]
_OFFSETS = [(6, 0), (-6, 0), (0, 8), (0, -8), (6, 6), (6, -6), (-6, 6), (-6, -6)]
_OFFSETS += [(radius * np.cos(angle), radius * np.sin(angle)) for radius, angle in _RINGS]


def draw_comparison(point: dict[str, Any], file: pathlib.Path) -> None:
    """Variance against time, both relative to the reference; along a dotted line their product is the same."""
    figure = Figure(figsize=(9, 6.5), dpi=120, layout="constrained")
    ax = figure.subplots()
    # What is far off would squeeze the rest, and is named below instead.
    near = [row["time"] <= FAR and row["encoder"]["ratio"] <= FAR for row in point["estimators"]]
    rows = list(itertools.compress(point["estimators"], near))
    times = np.array([row["time"] for row in rows])
    variances = np.array([row["encoder"]["ratio"] for row in rows])
    ends = np.array([0.7 * times.min(), 1.5 * times.max()])
    for product in 10.0 ** np.arange(-3, 4):
        ax.plot(ends, product / ends, color=palette.NEUTRAL, linestyle=":", linewidth=0.8)
    labels = []
    for row, x, y in zip(rows, times, variances, strict=True):
        error = row["encoder"]["stderr"] / row["encoder"]["variance"] * y
        color = palette.style_of(palette.spec_of(row["estimator"]).name).color
        ax.errorbar(x, y, yerr=2 * error, marker="o" if row["unbiased"] else "x", color=color, markersize=5)
        labels.append((palette.label_name(row["estimator"]), x, y, color))
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([0.2, 0.5, 1, 2, 5, 10])
    ax.set(xlim=ends, ylim=(0.5 * variances.min(), 2 * variances.max()))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_title(f"{palette.own_name(point['dataset'])}, {kind_of(point)}, {palette.count(point['step'], 'step')}")
    reference = palette.label_name(point["reference"])
    far = [row for row, is_near in zip(point["estimators"], near, strict=True) if not is_near]
    names = {row["estimator"]: palette.label_name(row["estimator"]) for row in far}
    beyond = [f"{names[row['estimator']]} at {row['time']:.2g}, {row['encoder']['ratio']:.3g}" for row in far]
    beyond = textwrap.fill(f"beyond (time, variance): {'; '.join(beyond)}", 95) if far else ""
    xlabel = f"time of an estimate ÷ that of {reference}; crosses are biased\n{beyond}".rstrip()
    ax.set(xlabel=xlabel, ylabel=f"variance of the encoder's gradient ÷ that of {reference}")
    write_labels(ax, labels)
    figure.savefig(file)


def write_labels(
    ax: Axes,
    labels: list[tuple[str, float, float, str]],
    others: Iterable[tuple[float, float]] = (),
    fontsize: float = 7,
) -> None:
    """Names beside their points, each in the nearest place where it covers no point, of `others` too, and no name."""
    figure = ax.figure
    figure.draw_without_rendering()  # settles where the points are
    scale, inside = figure.dpi / 72, ax.get_window_extent()
    points = [ax.transData.transform(point) for point in [*others, *((x, y) for _, x, y, _ in labels)]]
    taken = [Bbox.from_bounds(x - 3 * scale, y - 3 * scale, 6 * scale, 6 * scale) for x, y in points]
    for label, x, y, color in sorted(labels, key=lambda entry: -entry[2]):
        place = {"xytext": (0, 0), "textcoords": "offset points", "va": "bottom"}
        text = ax.annotate(label, (x, y), **place, fontsize=fontsize, color=color)
        size, at = text.get_window_extent(), ax.transData.transform((x, y))
        for dx, dy in _OFFSETS:  # of the nearer edge of the text from the point, in points
            left = at[0] + scale * dx - (size.width if dx < 0 else size.width / 2 if dx == 0 else 0)
            box = Bbox.from_bounds(left, at[1] + scale * dy - size.height / 2, size.width, size.height)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not box.padded(3 * scale, scale).count_overlaps(taken):
                break
        taken.append(box)
        text.set_position(((box.x0 - at[0]) / scale, (box.y0 - at[1]) / scale))
        if np.hypot(dx, dy) > 12:
            end = ax.transData.inverted().transform((np.clip(at[0], box.x0, box.x1), np.clip(at[1], box.y0, box.y1)))
            ax.plot([x, end[0]], [y, end[1]], color=color, linewidth=0.5)
