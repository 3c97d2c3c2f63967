"""The figure of `scripts.benchmark`: its results in, a PNG out."""

import pathlib
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from disarm_jax.report import palette
from scripts.benchmark_table import rates_of_all_seeds


def draw(results: dict[str, Any], file: pathlib.Path) -> None:
    """Steps by model and estimator as bars, beside them how the step grows."""
    peak = results["sgemm_flops_per_second"]
    bars = [row for row in results["steps"] if row["axis"] is None]
    grown = [row for row in results["steps"] if row["axis"] is not None]
    growths = {row["group"]: [other for other in grown if other["group"] == row["group"]] for row in grown}
    figure = Figure(figsize=(13, max(4.0, 0.19 * len(bars) + 1.5)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.5, 1))
    _draw_bars(left.subplots(), bars, peak)
    axes = right.subplots(len(growths) + 1, 1)
    axes = [axes] if not growths else list(axes)
    for ax, (name, rows) in zip(axes, growths.items(), strict=False):
        _draw_growth(ax, name, rows, peak)
    _draw_cores(axes[-1], results)
    figure.savefig(file, dpi=120)


def _draw_bars(ax: Axes, rows: list[dict], peak: float) -> None:
    places, place, groups = [], 0.0, set()
    for row in rows:
        place += 0.8 if row["group"] not in groups else 0  # a gap between models
        groups.add(row["group"])
        places.append(place)
        place += 1
    colors = [palette.style_of(_estimator(row)).color for row in rows]
    milliseconds = [1e3 * row["seconds"] for row in rows]
    ax.barh(places, milliseconds, xerr=[1e3 * row["spread"] for row in rows], color=colors, alpha=0.75, height=0.8)
    limits = [1e3 * (row["flops_by_hand"] or row["flops_by_xla"]) / peak for row in rows]
    ax.plot(
        limits,
        places,
        linestyle="",
        marker="|",
        color=palette.LIMIT,
        markersize=8,
        label="sgemm time of its operations",
    )
    ax.set_yticks(places, [_name(row) for row in rows], fontsize=7)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="milliseconds per step, one core")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(left=0.5 * min(limits))
    ax.margins(y=0.01)
    ax.grid(axis="x", which="both", alpha=0.3)
    ax.legend(loc="upper right", fontsize=8)


def _estimator(row: dict) -> str:
    """The estimator of a row such as "vimco, 2 samples"."""
    return row["name"].partition(",")[0]


def _name(row: dict) -> str:
    """Model and estimator in words."""
    _, comma, size = row["name"].partition(",")
    size = "1 pair" if size.strip() == "1 pairs" else size.strip()
    return f"{row['group']}: {palette.style_of(_estimator(row)).name}" + (f", {size}" if comma else "")


def _draw_growth(ax: Axes, name: str, rows: list[dict], peak: float) -> None:
    values = [row["axis"] for row in rows]
    ax.plot(
        values, [1e3 * row["seconds"] for row in rows], marker="o", color=palette.style_of("disarm").color, label="step"
    )
    ax.plot(
        values, [1e3 * row["flops_by_hand"] / peak for row in rows], color=palette.LIMIT, linestyle=":", label="sgemm"
    )
    ax.set(xlabel=name, ylabel="ms", xscale="log", yscale="log")
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)


def _draw_cores(ax: Axes, results: dict[str, Any]) -> None:
    rates = rates_of_all_seeds(results)
    ax.barh(range(len(rates)), list(rates.values()), color=palette.style_of("disarm").color, alpha=0.75)
    ax.set_yticks(range(len(rates)), list(rates), fontsize=7)
    ax.invert_yaxis()
    ax.set(xlabel="steps/s of all seeds, linear DisARM")
    ax.grid(axis="x", alpha=0.3)
