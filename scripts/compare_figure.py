"""The figure of `scripts.compare`: one point's results in, a PNG out."""

import itertools
import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

FAR = 10  # times DisARM's


def draw_comparison(point: dict[str, Any], file: pathlib.Path) -> None:
    """Variance against time, both relative to DisARM; along a dotted line their product is the same."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    ax = figure.subplots()
    # What is far off would squeeze the rest, and is named below instead.
    near = [row["time"] <= FAR and row["encoder"]["ratio"] <= FAR for row in point["estimators"]]
    rows = list(itertools.compress(point["estimators"], near))
    times = np.array([row["time"] for row in rows])
    variances = np.array([row["encoder"]["ratio"] for row in rows])
    ends = np.array([0.7 * times.min(), 1.5 * times.max()])
    for product in 10.0 ** np.arange(-3, 4):
        ax.plot(ends, product / ends, color="grey", linestyle=":", linewidth=0.8)
    labels = []
    for row, x, y in zip(rows, times, variances, strict=True):
        error = row["encoder"]["stderr"] / row["encoder"]["variance"] * y
        color = "tab:red" if row["estimator"] == "disarm" else "tab:blue" if row["unbiased"] else "tab:gray"
        ax.errorbar(x, y, yerr=2 * error, marker="o" if row["unbiased"] else "x", color=color, markersize=5)
        labels.append((_label(row), x, y, color))
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([0.2, 0.5, 1, 2, 5, 10])
    ax.set(xlim=ends, ylim=(0.5 * variances.min(), 2 * variances.max()))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    kind = "nonlinear" if point["hidden"] else "linear"
    ax.set_title(f"{point['dataset']}, {kind}, {len(point['latents'])} layer(s), step {point['step']:,}")
    far = [row for row, is_near in zip(point["estimators"], near, strict=True) if not is_near]
    beyond = "; ".join(f"{_label(row)} at {row['time']:.2g}, {row['encoder']['ratio']:.3g}" for row in far)
    xlabel = "time of an estimate ÷ DisARM's" + (f"\nbeyond (time, variance): {beyond}" if far else "")
    ax.set(xlabel=xlabel, ylabel="variance of the encoder's gradient ÷ DisARM's")
    figure.draw_without_rendering()  # settles where the points are
    _write_labels(ax, labels)
    figure.savefig(file, dpi=120)


def _label(row: dict[str, Any]) -> str:
    return row["estimator"].replace("num_samples", "K").replace("num_pairs", "pairs")


def _write_labels(ax: Axes, labels: list[tuple[str, float, float, str]]) -> None:
    """Names to the right of their points, from top to bottom, each moved down to where it covers none before it."""
    height, width = 8.5, 3.9  # of a line and of a letter, in points
    per_point = 72 / ax.figure.dpi
    placed: list[tuple[float, float, float]] = []
    for label, x, y, color in sorted(labels, key=lambda entry: -entry[2]):
        left, at = per_point * ax.transData.transform((x, y))
        left, right, bottom = left + 5, left + 5 + width * len(label), at - 2.5
        beside = [low for start, end, low in placed if start < right and left < end]
        while hits := [low for low in beside if abs(low - bottom) < height]:
            bottom = min(hits) - height
        placed.append((left, right, bottom))
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
        moved = line if at - bottom > height else None
        place = {"xytext": (5, bottom - at), "textcoords": "offset points", "fontsize": 7, "color": color}
        ax.annotate(label, (x, y), **place, arrowprops=moved)
