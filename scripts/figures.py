"""Draws the figures of the README and the documentation from what is committed in `results/`.

    python -m scripts.figures                       # all of them; a few seconds
    python -m scripts.figures --out /tmp/figures    # elsewhere

Pictures for light and for dark backgrounds: `variance_against_time` has all estimators at a trained nonlinear model,
`elbo_against_time` how models learn with them at the paper's learning rate, `rates_against_time` how they learn at the
best of several rates. The report of the paper's cells and the other figures of `results/` are made by the commands that
`results/README.md` lists.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.report import palette
from scripts import best_rates
from scripts.compare_figure import write_labels

ROOT = pathlib.Path(__file__).parent.parent
# On a dark page dark lines are lightened and text is light; the page's own colour shows through.
DARK = {"text.color": "#e6e6e6", "axes.labelcolor": "#e6e6e6", "xtick.color": "#e6e6e6", "ytick.color": "#e6e6e6"}
DARK |= {"axes.edgecolor": "#888888", "grid.color": "#888888"}
LIGHTEN = 0.35

NAMED = ("disarm", "reinforce_loo", "arm", "relax", "rebar", "arms(num_samples=4)", "disarm(num_pairs=2)")
NAMED += (
    "disarm_midpoint",
    "disarm_midpoint(num_pairs=2)",
    "disarm_quadratic",
    "arms_quadratic",
    "arms_midpoint",
    "reinmax",
    "ugc",
    "double_cv",
)
FAR = 6  # times DisARM's
LINE_SPACING = 1.4  # nats between names at the ends of lines


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_string("out", str(ROOT / "docs/figures"), "The folder to write to.", flag_values=values)


def color_of(label: str, dark: bool) -> str:
    """The colour of an estimator in the project's palette, lighter for dark pages."""
    color = np.array(mpl.colors.to_rgb(palette.style_of(palette.spec_of(label).name).color))
    return mpl.colors.to_hex(color + LIGHTEN * (1 - color) if dark else color)


def variance_against_time(ax: Axes, point: dict[str, Any], dark: bool) -> None:
    """Every estimator of a comparison, those in `NAMED` by name; along a dotted line the product is the same."""
    inside = lambda row: row["time"] <= FAR and row["encoder"]["ratio"] <= FAR
    rows = [row for row in point["estimators"] if inside(row)]
    beyond = [palette.label_name(row["estimator"]) for row in point["estimators"] if not inside(row)]
    ends = np.array([0.6, FAR])
    for product in 10.0 ** np.arange(-2, 2):
        ax.plot(ends, product / ends, color="#888888", linestyle=":", linewidth=0.7)
    labels, others = [], []
    for row in rows:
        color, where = color_of(row["estimator"], dark), (row["time"], row["encoder"]["ratio"])
        ax.plot(*where, "o" if row["unbiased"] else "x", color=color, markersize=5)
        if row["estimator"] in NAMED:
            labels.append((palette.label_name(row["estimator"]), *where, color))
        else:
            others.append(where)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=(0.02, FAR))
    ax.set_xticks([1, 2, 5])
    ax.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="time per estimate, relative to DisARM", ylabel="variance of the gradient, relative to DisARM")
    ax.set_title(f"beyond the axes: {'; '.join(beyond)}", fontsize=7, loc="right")
    write_labels(ax, labels, others, fontsize=8)


class Run(NamedTuple):
    """A finished run.

    Attributes:
      label: of its estimator.
      steps: at which the train ELBO was measured.
      bounds: the train ELBO at these steps.
      test_bound: the 100-sample bound of the test set at the end.
      ratio: the time of a step in that of DisARM's.
    """

    label: str
    steps: np.ndarray
    bounds: np.ndarray
    test_bound: float
    ratio: float

    def bound_after(self, time: float) -> float:
        """The train ELBO after the time of so many steps of DisARM, between two measurements on a straight line."""
        return float(np.interp(time, self.ratio * self.steps, self.bounds))


def read_runs(folder: pathlib.Path = ROOT / "results/elbo_by_time") -> list[Run]:
    """The runs of a folder, the one that is ahead after the time of the shortest first."""
    ratios = json.loads((folder / "steps.json").read_text())["over_disarm"]
    runs = []
    for file in sorted(folder.glob("cells/*/config.json")):
        name = json.loads(file.read_text())["estimator"]["name"]
        lines = [json.loads(line) for line in (file.parent / "metrics.jsonl").read_text().splitlines()]
        measured = [(line["step"], line["train_elbo"]) for line in lines if "train_elbo" in line]
        steps, bounds = np.array(measured).T
        (*_, test_bound) = (line["test_100_sample_bound"] for line in lines if "test_100_sample_bound" in line)
        label = "arms(num_samples=4)" if name == "arms" else name
        runs.append(Run(label, steps.astype(int), bounds, test_bound, ratios[name]))
    return sorted(runs, key=lambda run: -run.bound_after(max(run.steps)))


def table(runs: list[Run]) -> str:
    """The ends of the runs as Markdown, with a proper minus sign."""
    last = max(runs[0].steps)
    lines = [
        f"| estimator | time of a step ÷ DisARM's | train ELBO after {last:,} steps | test 100-sample bound | "
        f"train ELBO in the time of {last:,} steps of DisARM |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        numbers = f"{run.ratio:.2f} | {run.bounds[-1]:.2f} | {run.test_bound:.2f} | {run.bound_after(last):.2f}"
        lines.append(f"| {palette.label_name(run.label)} | {numbers.replace('-', '−')} |")
    return "\n".join(lines)


def elbo_against_time(ax: Axes, runs: list[Run], dark: bool) -> None:
    """The train ELBO of every run, in the time of DisARM's steps, with the estimator's name at the end of its line."""
    last = max(runs[0].steps)
    height = np.inf
    for run in runs:  # the one that ends highest first
        inside = run.ratio * run.steps <= last
        times = [*(run.ratio * run.steps[inside]), last]
        style = palette.style_of(palette.spec_of(run.label).name)
        color, end = color_of(run.label, dark), run.bound_after(last)
        ax.plot(np.array(times) / 1000, [*run.bounds[inside], end], color=color, linestyle=style.line, linewidth=1.5)
        height = min(end, height - LINE_SPACING)
        name = {"va": "center", "fontsize": 8, "color": color, "annotation_clip": False}
        ax.annotate(palette.label_name(run.label), (last / 1000 * 1.02, height), **name)
    ax.set(xlabel="time, in units of 1,000 DisARM steps", ylabel="train ELBO, nats")
    ax.set(xlim=(2, last / 1000), ylim=(-165, -131))


class Panel(NamedTuple):
    """Runs that differ in nothing but estimator and learning rate, each estimator at the best of its rates."""

    model: str
    bound: str
    runs: list[Run]


def read_panels(folder: pathlib.Path) -> list[Panel]:
    """One panel for each setting of the runs in a folder. Raises KeyError if the benchmark lacks an estimator."""
    panels = []
    for setting, by_name in best_rates.read([folder]).items():
        ratios = best_rates.relative(best_rates.step_times(setting, by_name, ROOT / "results/benchmark/benchmark.json"))
        runs = [
            Run(name, np.array(run.steps), np.array(run.train), run.test, ratios[name])
            for name, run in best_rates.best(by_name).items()
        ]
        bound = f"bound of {palette.count(setting.pairs, 'pair')}" if setting.pairs else "ELBO"
        panels.append(Panel("nonlinear" if setting.hidden else "linear", bound, runs))
    return panels


def best_against_time(axes: Sequence[Axes], panels: list[Panel], dark: bool) -> None:
    """The train bound of every estimator at the best of its rates, in the time of the plain estimator's steps."""
    for ax, panel in zip(axes, panels, strict=True):
        for run in panel.runs:
            style, times = palette.style_of(palette.spec_of(run.label).name), run.ratio * run.steps / 1000
            line = {"color": color_of(run.label, dark), "linestyle": style.line, "linewidth": 1.5}
            ax.plot(times, run.bounds, **line, marker="o", markersize=3, label=palette.label_name(run.label))
        (plain,) = [run for run in panel.runs if run.label in best_rates.PLAIN]
        ax.set(xlabel=f"time, in units of 1,000 {palette.label_name(plain.label)} steps", title=f"{panel.model} model")
        ax.set_ylabel(f"train {panel.bound}, nats")
        ax.legend(loc="lower right", fontsize=8, frameon=False)


def draw(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes all figures into a folder and returns their files."""
    points = json.loads((ROOT / "results/compare/compare.json").read_text())
    (point,) = [p for p in points if p["dataset"] == "mnist" and p["hidden"] and len(p["latents"]) == 1]
    runs = read_runs()
    rates = read_panels(ROOT / "results/rates/cells")
    drawings = {
        "variance_against_time": (1, lambda axes, dark: variance_against_time(axes[0], point, dark)),
        "elbo_against_time": (1, lambda axes, dark: elbo_against_time(axes[0], runs, dark)),
        "rates_against_time": (len(rates), lambda axes, dark: best_against_time(axes, rates, dark)),
    }
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (num_panels, drawing) in drawings.items():
        for shade, settings in {"light": {}, "dark": DARK}.items():
            with mpl.rc_context(palette.FIGURE | settings):
                figure = Figure(figsize=(5.4 if num_panels == 1 else 3.6 * num_panels, 4), layout="constrained")
                axes = np.ravel(figure.subplots(1, num_panels))
                for ax in axes:
                    ax.set_facecolor("none")
                drawing(axes, shade == "dark")
                files.append(out / f"{name}_{shade}.png")
                figure.savefig(files[-1], dpi=160, transparent=True)
    return files


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Draws, and names the files."""
    flags_only(argv)
    for file in draw(pathlib.Path(values.out)):
        print(file)
    print(f"The table of docs/results.md:\n{table(read_runs())}")


if __name__ == "__main__":
    run_script(main, define_flags)
