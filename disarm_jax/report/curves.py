"""The figures of the paper from our runs: bounds and gradient variance against steps, and a bound against time.

One figure for each data set and family of models. The band is one standard error over seeds; colours are those of
`palette`. Curves of the paper's experiments have the paper's final numbers as horizontal lines. A row of panels has
bounds of one number of samples only.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from disarm_jax.experiment.evaluate import bound_name, split_samples
from disarm_jax.report import palette, paper
from disarm_jax.report.names import dataset_name, distinct_names, estimator_name, model_name
from disarm_jax.report.origin import differing_codes, listed_codes
from disarm_jax.report.pools import Pool
from disarm_jax.report.times import evaluations_of, step_times

MAX_NAME = 50  # letters of the name of a figure, each of up to 4 bytes
FAMILIES = {"elbo": "ELBO, one stochastic layer", "layers": "ELBO, several layers", "multisample": "multi-sample bound"}


class Drawing(NamedTuple):
    """A figure, the name of its files, and what it shows."""

    name: str
    title: str
    figure: Figure


def draw_all(pools: Sequence[Pool]) -> Iterator[Drawing]:
    """Every figure that our runs have data for."""
    groups: dict[tuple[str, str, str], list[Pool]] = {}
    for pool in pools:
        if pool.series:
            dataset = pool.config["dataset"]
            file = dataset["path"] or "" if dataset["name"] == "npz" else ""
            groups.setdefault((dataset["name"], file, _family(pool.config)), []).append(pool)
    for (dataset, file, family), group in sorted(groups.items()):
        name = _file_name("_".join(filter(None, [dataset, file, family])))
        title = f"{dataset_name(group[0].config)}: {FAMILIES.get(family, palette.own_name(family))}"
        yield Drawing(name, title, _curves(title, group))
        if measuring := [pool for pool in group if _measured(pool)]:
            title = f"{title}, variances along one trajectory"
            yield Drawing(f"{name}_variance", title, _trajectories(title, measuring))


def _file_name(text: str) -> str:
    """A text as the name of a file, with a checksum in the place of the end of a long one: file systems take 255 bytes.

    >>> _file_name("npz_/data/my images.npz_elbo")
    'npz__data_my_images_npz_elbo'
    """
    name = re.sub(r"[^\w-]+", "_", text)
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _family(config: Mapping[str, Any]) -> str:
    """A key of `FAMILIES`, or the import path of a custom objective."""
    name = config["objective"]["name"]
    return name if name != "elbo" else "elbo" if len(config["model"]["latents"]) == 1 else "layers"


def _measured(pool: Pool) -> list[str]:
    return [metric for metric in pool.series if metric.startswith("gradient_variance/")]


def _curves(title: str, pools: Sequence[Pool]) -> Figure:
    """Bounds, variance, and train bound by time; one row for each model and number of samples of the bounds."""
    rows = _rows(pools)
    for group in rows.values():
        group.sort(key=lambda pool: _rank(pool.config))
    clocks = {key: _clock(group) for key, group in rows.items()}
    styles = _styles(pools)
    columns = 4 if any(clock for _, clock in clocks.values()) else 3
    with matplotlib.rc_context(palette.FIGURE):
        figure = Figure(figsize=(3.6 * columns, 0.8 + 2.9 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), columns, squeeze=False)
        for axes, (key, group) in zip(panels, sorted(rows.items()), strict=True):
            by_step, by_time, (device, clock) = axes[:3], axes[3:], clocks[key]
            metrics = _metrics(group[0].config)
            for number, pool in enumerate(group):
                style = styles[id(pool)]
                curves = [pool.curve(metric) for metric in metrics]
                for ax, curve in zip(by_step, curves, strict=True):
                    _draw(ax, curve, style)
                if number in clock:
                    steps, mean, stderr = curves[0]
                    _draw(by_time[0], (steps * clock[number] / 60, mean, stderr), style)
            train, test = map(palette.bound_title, metrics[:2])
            titles = (f"{key[-1]}: {train}", test, "gradient variance of the encoder", f"{train}, by time")
            for ax, text in zip(axes, titles, strict=False):
                ax.set_title(_plain(text))
            for ax in axes[:2]:
                _without_start(ax)
            _finish(by_step, "steps", log=axes[2:3])
            _finish(by_time, f"minutes of training / seeds\n{_plain(device)}", missing="no times to compare")
            for ax, split, metric in zip(axes, ("train", "test"), metrics, strict=False):
                _draw_paper(ax, group, split, metric)
            for ax in by_time:
                ax.set_ylim(axes[0].get_ylim())
            axes[0].set_ylabel("nats")
        return _with_legend(figure, title)


def _draw_paper(ax: Axes, pools: Sequence[Pool], split: str, metric: str) -> None:
    """The paper's final number and its standard error as a line and a band, for each estimator that was drawn."""
    found = (paper.place_of(pool.config) for pool in pools if metric in pool.series)
    places = dict.fromkeys(place for place in found if place is not None)
    numbers = {place: paper.NUMBERS[place, split] for place in places if paper.metric_of(place, split) == metric}
    ends, (low, high) = ax.get_xlim(), ax.get_ylim()
    for place, (mean, stderr) in numbers.items():
        color = palette.style_of(paper.estimator_of(place)).color
        ax.hlines(mean, *ends, color=color, linewidth=0.8, linestyle="--")
        ax.fill_between(ends, mean - stderr, mean + stderr, color=color, alpha=0.12, linewidth=0)
        low, high = min(low, mean - 3 * stderr), max(high, mean + 3 * stderr)
    ax.set(xlim=ends, ylim=(low, high))


def _clock(pools: Sequence[Pool]) -> tuple[str, dict[int, float]]:
    """The device that most pools have run on, with as many seeds at a time, and seconds of a step there by pool.

    A single one has nothing to be compared with.
    """
    times = [step_times(pool) for pool in pools]
    places = Counter(place for own in times for place in own)
    (place, count), *_ = places.most_common(1) or [(None, 0)]
    if place is None or count < 2:
        return "", {}
    return place[0], {number: own[place].median for number, own in enumerate(times) if place in own}


def _trajectories(title: str, pools: Sequence[Pool]) -> Figure:
    """The variances of several estimators along the training of one of them, one panel for each training."""
    with matplotlib.rc_context(palette.FIGURE):
        columns = min(2, len(pools))
        rows = -(-len(pools) // columns)
        figure = Figure(figsize=(1 + 5 * columns, 0.8 + 3.2 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for ax, pool in zip(panels, pools, strict=False):
            seen = []
            last = max(value.step for metric in _measured(pool) if (value := pool.value(metric)))
            for metric in ["gradient_variance", *_measured(pool)]:
                label = metric.partition("/")[2]
                style = palette.style_of(palette.spec_of(label).name if label else pool.config["estimator"]["name"])
                line = palette.LINES[(palette.LINES.index(style.line) + seen.count(style)) % len(palette.LINES)]
                label = palette.label_name(label) if label else f"{estimator_name(pool.config)} (trains)"
                steps, mean, stderr = pool.curve(metric)
                shown = steps <= last
                _draw(
                    ax,
                    (steps[shown], mean[shown], stderr[shown]),
                    {"color": style.color, "linestyle": line, "label": label},
                )
                seen.append(style)
            ax.set_title(_plain(f"{model_name(pool.config)}, trained with {estimator_name(pool.config)}"))
            _finish([ax], "steps", log=[ax])
        for ax in list(figure.axes)[len(pools) :]:
            ax.set_axis_off()
        return _with_legend(figure, title)


def _rows(pools: Sequence[Pool]) -> dict[tuple, list[Pool]]:
    """The pools of each row; those not a tenth as long as the longest have a row, and an axis, of their own."""
    rows: dict[tuple, list[Pool]] = {}
    for pool in sorted(pools, key=_length, reverse=True):
        key = _row(pool.config)
        longest = [group[0] for (*other, _, _), group in rows.items() if tuple(other) == key]  # of each row so far
        first = next((other for other in longest if _length(pool) >= 0.1 * _length(other)), pool)
        steps = f", {_short(_length(first))} steps" if longest and first is not longest[0] else ""
        rows.setdefault((*key, -_length(first), key[-1] + steps), []).append(pool)
    return rows


def _length(pool: Pool) -> int:
    return max(run.step for run in pool.runs)


def _row(config: Mapping[str, Any]) -> tuple:
    """Sorts the rows of a figure, one for each model and pair of bounds; the last entry is the row's title."""
    model, name, samples = config["model"], model_name(config), split_samples(config)
    size = evaluations_of(config) or 0 if config["objective"]["name"] == "multisample" else 0
    bounds = samples["train"], samples["test"]
    return len(model["latents"]), bool(model["hidden"]), size, *bounds, name + (f", {size} samples" if size else "")


def _rank(config: Mapping[str, Any]) -> tuple:
    """Sorts the curves of a row: the paper's estimators in its order, then others by name."""
    name = estimator_name(config)
    known = [*paper.ELBO.values(), *paper.MULTISAMPLE.values()]
    return known.index(name) if name in known else len(known), name


def _metrics(config: Mapping[str, Any]) -> tuple[str, str, str]:
    samples = split_samples(config)
    return bound_name("train", samples["train"]), bound_name("test", samples["test"]), "gradient_variance"


def _styles(pools: Sequence[Pool]) -> dict[int, dict[str, Any]]:
    """Label, colour and line by id of the pool; the label names the commits of runs made by different code."""
    pools = sorted(pools, key=_length, reverse=True)
    styles: dict[int, dict[str, Any]] = {}
    seen: dict[tuple, list[str]] = {}
    for pool, label in zip(pools, distinct_names(pools), strict=True):
        name, before = pool.config["estimator"]["name"], seen.setdefault(_row(pool.config), [])
        style = palette.style_of(name)
        line = palette.LINES[(palette.LINES.index(style.line) + before.count(name)) % len(palette.LINES)]
        before.append(name)
        codes = differing_codes(code for run in pool.runs for code in run.codes)
        label += f" [{listed_codes(codes)}]" if codes else ""
        styles[id(pool)] = {"color": style.color, "linestyle": line, "label": label}
    return styles


def _draw(ax: Axes, curve: tuple[np.ndarray, np.ndarray, np.ndarray], style: Mapping[str, Any]) -> None:
    steps, mean, stderr = curve
    if len(steps):
        ax.plot(steps, mean, marker="o" if len(steps) < 12 else "", markersize=3.5, linewidth=1.4, **style)
        ax.fill_between(steps, mean - stderr, mean + stderr, color=style["color"], alpha=0.2, linewidth=0)


def _without_start(ax: Axes) -> None:
    """Bounds from a tenth of the way on: the first steps would squeeze the rest."""
    lines = ax.get_lines()
    if lines:
        drawn = [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines]
        start = 0.1 * max(x[-1] for x, _ in drawn)
        late = np.concatenate([y[x >= start] for x, y in drawn])
        late = late[np.isfinite(late)]
        if late.size and np.ptp(late) > 0:
            ax.set_ylim(late.min() - 0.05 * np.ptp(late), late.max() + 0.05 * np.ptp(late))


def _finish(axes: Sequence[Axes], label: str, log: Sequence[Axes] = (), missing: str = "not evaluated yet") -> None:
    """The same x on all axes, and a logarithmic scale on some."""
    last = max((np.asarray(line.get_xdata())[-1] for ax in axes for line in ax.get_lines()), default=1)
    for ax in axes:
        if not ax.get_lines():
            ax.text(0.5, 0.5, missing, ha="center", va="center", transform=ax.transAxes, color=palette.NEUTRAL)
        elif ax in log and all(np.all(np.asarray(line.get_ydata()) > 0) for line in ax.get_lines()):
            ax.set_yscale("log")
        ax.set(xlabel=label, xlim=(0, 1.03 * last))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def _short(number: float) -> str:
    """Steps or minutes for an axis.

    >>> _short(1_000_000), _short(20_000), _short(500)
    ('1M', '20k', '500')
    """
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _with_legend(figure: Figure, title: str) -> Figure:
    """One legend for all panels."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if any(isinstance(drawn, LineCollection) for ax in figure.axes for drawn in ax.collections):
        line = Line2D([], [], color=palette.NEUTRAL, linewidth=0.8, linestyle="--")
        entries["paper (± s.e.)"] = (Patch(color=palette.NEUTRAL, alpha=0.2, linewidth=0), line)
    figure.suptitle(_plain(title), fontsize=11)
    if entries:
        columns = int(12 * figure.get_figwidth() / (10 + max(map(len, entries))))  # as many as fit
        place = {"loc": "outside lower center", "ncols": max(1, min(len(entries), columns)), "frameon": False}
        figure.legend(list(entries.values()), list(map(_plain, entries)), **place)
    return figure
