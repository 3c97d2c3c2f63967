"""One palette and one table of names for every figure of the project."""

import pathlib
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from synthetic import config_at, write_run

import disarm_jax as dj
from disarm_jax.report import one_run as training_figures
from disarm_jax.report import palette
from disarm_jax.report.curves import draw_all
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs
from disarm_jax.run_directory.directory import RunDir
from scripts import benchmark_figure, compare_figure, toy_figure
from scripts.toy import Trace

ROOT = pathlib.Path(__file__).parent.parent.parent
DRAWING = sorted((ROOT / "disarm_jax" / "report").glob("*.py")) + sorted((ROOT / "scripts").glob("*_figure.py"))


def test_every_registered_estimator_has_an_entry():
    names = {*dj.estimator_names(), *dj.categorical.estimator_names()}
    assert names <= palette.STYLES.keys(), "add a line to disarm_jax/report/palette.py"


def test_no_two_estimators_look_or_are_called_the_same():
    styles = list(palette.STYLES.values())
    assert len({(style.color, style.line) for style in styles}) == len(styles)
    assert len({style.name for style in styles}) == len(styles)


def test_the_main_estimators_have_different_colours():
    main = ("disarm", "relax", "reinforce_loo", "arm", "vimco", "rebar", "disarm_midpoint", "disarm_quadratic", "arms")
    assert len({palette.STYLES[name].color for name in main}) == len(main)


def test_a_custom_estimator_has_a_colour_of_its_name():
    one, again, other = (palette.style_of(name) for name in ("mine:one", "mine:one", "mine:other"))
    assert one == again
    assert (one.color, one.line) != (other.color, other.line)
    assert one.color not in {style.color for style in palette.STYLES.values()}


@pytest.mark.parametrize("file", [file for file in DRAWING if file.name != "palette.py"], ids=lambda file: file.name)
def test_no_other_module_chooses_a_colour(file):
    text = re.sub(r'_CSS = """.*?"""', "", file.read_text(), flags=re.DOTALL)  # the page's own
    assert not re.findall(r"#[0-9A-Fa-f]{6}\b|\"tab:\w+\"|\"C\d\"|color=\"\w+\"", text)


@pytest.mark.parametrize("name", ["disarm", "relax", "disarm_midpoint", "mine:own"])
def test_an_estimator_has_the_same_colour_in_every_figure(tmp_path, monkeypatch, name):
    expected = palette.style_of(name).color.lower()
    colours = {"report": _in_a_report, "training": _while_training, "compare": _in_a_comparison}
    colours |= {"benchmark": _in_the_benchmark, "toy": _in_the_toy}
    for what, drawn in colours.items():
        (tmp_path / what).mkdir()
        assert drawn(name, tmp_path / what, monkeypatch) == expected, what


def _run(name, folder):
    config = config_at(Place("mnist", "linear", "disarm"), seeds=(0,), steps=1000)
    config["estimator"]["name"] = name
    return write_run(folder / "run", config, [-100.0])


def _in_a_report(name, folder, _):
    _run(name, folder)
    drawing = next(draw_all(pool_runs(read_runs([folder])[0])))
    lines = {line.get_label(): line for line in drawing.figure.axes[0].get_lines()}
    return to_hex(lines[palette.style_of(name).name].get_color())


def _caught(module, monkeypatch):
    """The figures that a module makes, instead of files."""
    figures = []
    original = module.Figure

    def make(*args, **kwargs):
        figures.append(original(*args, **kwargs))
        return figures[-1]

    monkeypatch.setattr(module, "Figure", make)
    return figures


def _while_training(name, folder, monkeypatch):
    figures = _caught(training_figures.figures, monkeypatch)
    training_figures.draw_curves(RunDir(_run(name, folder)))
    colours = {to_hex(line.get_color()) for ax in figures[-1].axes for line in ax.get_lines()}
    (colour,) = colours
    return colour


def _in_a_comparison(name, folder, monkeypatch):
    group = {"variance": 1.0, "stderr": 0.01, "ratio": 1.0}
    rows = [{"estimator": name, "unbiased": True, "time": 1.0, "encoder": group, "logits": group}]
    point = {"dataset": "mnist", "hidden": [], "latents": [200], "step": 1, "reference": "disarm", "estimators": rows}
    figures = _caught(compare_figure, monkeypatch)
    compare_figure.draw_comparison(point, folder / "compare.png")
    (ax,) = figures[-1].axes
    assert ax.get_title() == "mnist, linear, 1 step"
    return to_hex(ax.containers[0].lines[0].get_color())


def _in_the_benchmark(name, folder, monkeypatch):
    row = {"group": "linear", "name": name, "axis": None, "seconds": 1e-3, "spread": 1e-5, "flops_by_hand": 1e8}
    results = {"sgemm_flops_per_second": 1e11, "steps": [row], "cores": {"1 seed on one core": 1e-3}}
    figures = _caught(benchmark_figure, monkeypatch)
    benchmark_figure.draw(results | {"machine": {"cores": 2}}, folder / "benchmark.png")
    return to_hex(figures[-1].axes[0].containers[-1][0].get_facecolor())


def _in_the_toy(name, folder, monkeypatch):
    values = np.linspace(0.1, 0.9, 10)
    trace = Trace(*[values] * len(Trace._fields))
    figure = toy_figure.plot({(0.49, name): trace}, {0.49: (values, values)}, {}, np.arange(10))
    return to_hex(figure.axes[0].get_lines()[0].get_color())


def test_labels_of_a_comparison_do_not_cover_each_other(tmp_path, monkeypatch):
    names = sorted(name for name in palette.STYLES if "multisample" not in name)[:24]
    rows = []
    for number, name in enumerate(names):
        group = {"variance": 1.0, "stderr": 0.01, "ratio": 1 + 0.1 * (number % 5)}
        rows.append({"estimator": name, "unbiased": True, "time": 1 + 0.1 * (number // 5), "encoder": group})
    point = {"dataset": "mnist", "hidden": [], "latents": [200, 200], "step": 2000}
    point |= {"reference": "disarm", "estimators": rows}
    figures = _caught(compare_figure, monkeypatch)
    compare_figure.draw_comparison(point, tmp_path / "compare.png")
    boxes = [text.get_window_extent() for text in figures[-1].axes[0].texts]
    assert len(boxes) == len(names)
    assert not any(box.count_overlaps(boxes[:number]) for number, box in enumerate(boxes))
