"""The figure of `scripts.compare`: one point's results in, a PNG out."""

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter


def draw_comparison(point: dict[str, Any], file: pathlib.Path) -> None:
    """Variance against time, both relative to DisARM; along a dotted line their product is the same."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    ax = figure.subplots()
    rows = point["estimators"]
    times = np.array([row["time"] for row in rows])
    variances = np.array([row["encoder"]["ratio"] for row in rows])
    ends = np.array([0.7 * times.min(), 1.5 * times.max()])
    for product in 10.0 ** np.arange(-3, 4):
        ax.plot(ends, product / ends, color="grey", linestyle=":", linewidth=0.8)
    for row, x, y in zip(rows, times, variances, strict=True):
        error = row["encoder"]["stderr"] / row["encoder"]["variance"] * y
        color = "tab:red" if row["estimator"] == "disarm" else "tab:blue" if row["unbiased"] else "tab:gray"
        ax.errorbar(x, y, yerr=2 * error, marker="o" if row["unbiased"] else "x", color=color, markersize=5)
        label = row["estimator"].replace("num_samples", "K").replace("num_pairs", "pairs")
        ax.annotate(label, (x, y), xytext=(5, 2), textcoords="offset points", fontsize=7, color=color)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=(0.5 * variances.min(), 2 * variances.max()))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    kind = "nonlinear" if point["hidden"] else "linear"
    ax.set_title(f"{point['dataset']}, {kind}, {len(point['latents'])} layer(s), step {point['step']:,}")
    ax.set(xlabel="time of an estimate ÷ DisARM's", ylabel="variance of the encoder's gradient ÷ DisARM's")
    figure.savefig(file, dpi=120)
