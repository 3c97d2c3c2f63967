"""The figure of `scripts.toy`: arrays in, figure out."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from disarm_jax.report import palette

Curve = tuple[np.ndarray, np.ndarray]


def plot(traces: dict, ascents: dict[float, Curve], curves: dict[tuple, Curve], points: np.ndarray) -> Figure:
    """One column for each p0; rows σ(φ), gradient and variance along the ascent, then variance against σ(φ).

    Args:
      traces: a `scripts.toy.Trace` for each pair (p0, estimator).
      ascents: for each p0, σ(φ) and gradient of the ascent that follows the exact gradient.
      curves: for each pair whose variance is known in closed form, σ(φ) and that variance.
      points: the steps of which estimates and Monte Carlo variances are drawn.
    """
    figure = Figure(figsize=(1.2 + 3.6 * len(ascents), 11), layout="constrained")
    axes = figure.subplots(4, len(ascents), squeeze=False)
    for p0, column in zip(ascents, axes.T, strict=True):
        for ax in column[:2]:
            ax.sharex(column[2])
            ax.tick_params(labelbottom=False)
        for (target, name), trace in traces.items():
            if target == p0:
                _draw(column, trace, palette.style_of(name), curves.get((p0, name)), points)
        for ax, exact in zip(column, ascents[p0], strict=False):
            ax.plot(exact, color=palette.LIMIT, linewidth=1, linestyle="--", label="exact gradient")
        column[0].set(title=f"$p_0$ = {p0:g}")
        column[2].set(xlabel="iteration")
        column[3].set(xlabel="σ(φ)")
        for ax in (column[1], column[3]):
            ax.ticklabel_format(axis="y", scilimits=(-2, 2))
        visited = np.concatenate([trace.probability for (target, _), trace in traces.items() if target == p0])
        column[3].set_xlim((visited.min() - 0.02, 1.01) if p0 < 0.5 else (-0.01, visited.max() + 0.02))
        variances = [trace.variance for (target, _), trace in traces.items() if target == p0]
        _log_scale(column[2], variances, floor=min(np.quantile(variance, 0.02) for variance in variances))
        peaks = [variance.max() for variance in variances]
        if max(peaks) > 30 * min(peaks):  # one estimator would flatten the others
            _log_scale(column[3], variances, floor=min(peaks) / 100)
    for ax, label in zip(axes[:, 0], ("σ(φ)", "gradient estimate", *["variance of the gradient"] * 2), strict=True):
        ax.set_ylabel(label)
    handles = axes[0, 0].get_legend_handles_labels()[0]
    handles.append(
        Line2D([], [], color=palette.NEUTRAL, linestyle="", marker=".", label="estimates; Monte Carlo variance")
    )
    handles.append(Line2D([], [], color=palette.NEUTRAL, label="exact variance"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 2 * len(ascents)), frameon=False)
    return figure


def _draw(column: np.ndarray, trace, style: palette.Style, curve: Curve | None, points: np.ndarray) -> None:
    """One estimator's lines and points in the four panels of one p0."""
    line = {"color": style.color, "linestyle": style.line, "linewidth": 1.3}
    dots = {"color": style.color, "linestyle": "", "marker": ".", "markersize": 4.5, "markeredgewidth": 0, "alpha": 0.6}
    column[0].plot(trace.probability, **line, label=style.name)
    column[1].plot(points, trace.gradient[points], **dots)
    column[2].plot(points, trace.variance[points], **dots)
    column[3].plot(trace.probability[points], trace.variance[points], **dots)
    if curve is not None:
        column[2].plot(trace.exact_variance, **line)
        column[3].plot(*curve, **line)


def _log_scale(ax: Axes, variances: list[np.ndarray], floor: float) -> None:
    """A logarithmic axis from the floor's decade: DisARM's variance is 0 at φ = 0 and would stretch it without end."""
    if floor > 0:
        ax.set_yscale("log")
        ax.set_ylim(10 ** np.floor(np.log10(floor)), 2 * max(variance.max() for variance in variances))
        ax.yaxis.set_minor_formatter(NullFormatter())
