"""The report as a whole: its files, its page, and what it says when there is nothing to report."""

import csv
import html.parser
import json
import pathlib
import re
import subprocess
import sys

import pytest
from absl import flags
from synthetic import config_at, write_run

from disarm_jax.report import paper
from disarm_jax.report.paper import Place
from scripts.report import define_flags, main, make_report

ROOT = pathlib.Path(__file__).parent.parent.parent
DISARM = Place("mnist", "linear", "disarm")
EVIL = "<script>alert(1)</script> & 'x' $y_z$"
TABLE_NAMES = [table.name for table in paper.TABLES]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A match, one that is not comparable, one that is running, one of the paper's other objectives, an own one."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out") / "new" / "report"
    measuring = config_at(DISARM, seeds=(0, 1, 2), **{"variance.estimators": ("arm", "disarm(num_pairs=2)")})
    measured = {"arm": 0.02, "disarm(num_pairs=2)": 0.005}
    write_run(runs / "measured", measuring, [-116.4, -116.3, -116.2], measured=measured, samples=True)
    write_run(runs / "short", config_at(Place("mnist", "linear", "arm"), steps=10_000), [-117.6, -117.7] * 2 + [-117.6])
    write_run(runs / "running", config_at(Place("mnist", "linear", "relax"), seeds=(0,)), [-130.0], step=100_000)
    write_run(runs / "bound", config_at(Place("mnist", "linear", "vimco_2"), seeds=(0,)), [-115.8])
    own = config_at(DISARM, seeds=(0,), steps=1000, **{"dataset.name": "mnist5k"})
    own["dataset"]["name"] = own["estimator"]["name"] = f"mine:{EVIL}"
    write_run(runs / "<img src=x onerror=alert(1)>", own, [-1.0])
    (runs / "damaged").mkdir()
    (runs / "damaged" / "config.json").write_text("{")
    line = make_report([str(runs)], out)
    return line, out


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_all_files_are_there(report):
    line, out = report
    assert line == "5 runs, 5 configurations, 8 of 168 numbers of the paper"
    figures = ["mnist_elbo", "mnist_elbo_variance", "mnist_multisample"]
    names = {f"{name}.{kind}" for name in TABLE_NAMES for kind in ("md", "csv", "tex")}
    names |= {f"{name}.{kind}" for name in figures for kind in ("png", "pdf")}
    names |= {"other_runs.md", "other_runs.csv", "index.html", "verdict.md", "differences.png", "differences.pdf"}
    found = {file.name for file in out.iterdir()}
    assert names <= found
    assert all(name.startswith("mine_") for name in found - names)  # the figure of the own estimator
    for name in figures:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_csv_has_every_cell_and_its_marks(report):
    for table in paper.TABLES:
        rows = read_csv(report[1] / f"{table.name}.csv")
        assert len(rows) == sum(len(block.rows) * len(block.columns) for block in table.blocks)  # no variants here
        assert all(row["paper_mean"] and row["paper_stderr"] and row["command"] for row in rows)
    rows = read_csv(report[1] / "table_1.csv")
    verdicts = {row["estimator"]: row["verdict"] for row in rows if row["ours_mean"]}
    assert verdicts == {"disarm": "match", "arm": "not comparable", "relax": "not comparable", "vimco_2": "match"}
    arm = next(row for row in rows if row["verdict"] == "not comparable" and row["estimator"] == "arm")
    assert (arm["seeds"], arm["steps"], arm["difference"]) == ("5", "10000", "")
    assert arm["reasons"] == "10,000 steps instead of 1,000,000"


def test_markdown_and_latex_have_the_same_numbers(report):
    text = (report[1] / "table_1.md").read_text()
    assert "| Dynamic MNIST | Linear | DisARM | -116.30 ± 0.06 [" in text
    assert "missing" not in text
    assert text.count("| Linear |") == 4  # those that have a number
    assert "## 56 cells of this table have no run yet" in text
    assert "python -m main --config configs/layers.py:4 --config.dataset.name=omniglot  # Omniglot, 4-Layer" in text
    tex = (report[1] / "table_1.tex").read_text()
    assert r"Dynamic MNIST & Linear & DisARM & $-$116.30 $\pm$ 0.06 {[}2{]} & $-$116.30 $\pm$ 0.08 & " in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 2
    assert all(
        line.count("&") == 10 for line in tex.splitlines() if line.startswith(("Dynamic", "Fashion", "Omniglot"))
    )


class Page(html.parser.HTMLParser):
    """The tags of a page, those that were not closed, and where it points to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(report):
    page = Page((report[1] / "index.html").read_text())
    assert page.open == []
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert sum(tag == "img" for tag, _ in page.tags) == 6  # the histogram, four figures and the samples
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    targets = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {link[1:] for link in page.links if link.startswith("#")} == targets


def test_names_and_values_are_escaped(report):
    text = (report[1] / "index.html").read_text()
    assert "<script" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; " in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_only_comparable_cells_have_the_colour_of_a_match(report):
    text = (report[1] / "index.html").read_text()
    rows = re.findall(r'<tr class="([\w-]+)">(.*?)</tr>', text)
    matches = {content for name, content in rows if name == "match"}
    assert matches
    assert all("<td>match" in content and "<td>1,000,000</td>" in content for content in matches)
    assert {name for name, content in rows if "-117.64" in content} == {"not-comparable"}


def test_the_verdict_comes_first_then_curves_then_tables(report):
    text = (report[1] / "index.html").read_text()
    places = [text.index(f'id="{part}"') for part in ("verdict", "curves", "tables", "others", "samples", "runs")]
    assert places == sorted(places)
    for sentence in ("2 of 4 comparable numbers within 2", "2 of these rest on a single seed of ours"):
        assert sentence in text
        assert sentence in (report[1] / "verdict.md").read_text()


def test_what_is_missing_is_folded(report):
    text = (report[1] / "index.html").read_text()
    command = "python -m main --config configs/layers.py:4"
    assert command in text
    unfolded = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert command not in unfolded
    assert "missing" not in unfolded


def test_numbers_at_different_steps_are_marked(tmp_path):
    relax = Place("mnist", "linear", "relax")
    write_run(tmp_path / "runs" / "a", config_at(DISARM, seeds=(0,)), [-116.0])
    write_run(tmp_path / "runs" / "b", config_at(relax, seeds=(0,)), [-130.0], step=100_000)
    for number, (name, steps) in enumerate((("arms", 9000), ("arms", 10_000), ("rodeo", 2000))):
        config = config_at(DISARM, seeds=(number,), steps=steps, batch_size=10 + number, **{"estimator.name": name})
        write_run(tmp_path / "runs" / f"other_{number}", config, [-150.0])
    make_report([str(tmp_path / "runs")], tmp_path / "out")
    table = (tmp_path / "out" / "table_1.md").read_text()
    assert "| 1,000,000 |" in table
    assert "| 100,000 † |" in table
    assert "† Taken earlier than other numbers" in table
    lines = (tmp_path / "out" / "other_runs.md").read_text().splitlines()[4:]
    found = [(line.split(" | ")[2], line.split(" | ")[3]) for line in lines[::2]]
    expected = [("2,000", "RODEO"), ("9,000", "ARMS, batch size 10"), ("10,000", "ARMS, batch size 11")]
    assert found == expected


def test_custom_parts_have_their_own_names(tmp_path):
    config = config_at(DISARM, seeds=(0,), steps=1000)
    config["dataset"]["name"], config["estimator"]["name"] = "my.data:stripes", "my.code:quiet_pair"
    config["model"]["name"] = "my.models:QuietVAE"
    write_run(tmp_path / "runs" / "own, with a comma", config, [-1.0], samples=True)
    make_report([str(tmp_path / "runs")], tmp_path / "out")
    page, table = (tmp_path / "out" / "index.html").read_text(), (tmp_path / "out" / "other_runs.md").read_text()
    for name in ("stripes", "quiet_pair", "QuietVAE"):
        assert name in page
        assert name.replace("_", r"\_") in table
    assert "<figcaption>stripes, QuietVAE, Linear, quiet_pair: 1,000 steps</figcaption>" in page
    assert 'alt="stripes: ELBO, one stochastic layer"' in page


def test_custom_estimators_are_told_apart_by_their_options(tmp_path):
    for folder, options in {"scaled": {"factor": 0.5}, "plain": {}}.items():
        config = config_at(DISARM, seeds=(0,), steps=1000)
        config["estimator"] |= {"name": "my.code:quiet_pair", "options": options}
        write_run(tmp_path / "runs" / folder, config, [-1.0])
    make_report([str(tmp_path / "runs")], tmp_path / "out")
    names = {(row["runs"], row["estimator"]) for row in read_csv(tmp_path / "out" / "other_runs.csv")}
    assert names == {("scaled", "quiet_pair, factor 0.5"), ("plain", "quiet_pair, factor None")}


def test_evaluations_are_shown(tmp_path):
    path = write_run(tmp_path / "runs" / "a", config_at(DISARM, seeds=(0, 1)), [-116.0, -116.2])
    metrics = {"test_1000_sample_bound": {"mean": -107.25, "stderr": 0.03, "seeds": [-107.28, -107.22]}}
    (path / "evaluation_1000_samples.json").write_text(json.dumps({"step": 1_000_000, "metrics": metrics}))
    (path / "evaluation_7_samples.json").write_text('{"step": 1}')  # damaged
    make_report([str(tmp_path / "runs")], tmp_path / "out")
    for name in ("index.html", "other_runs.md", "other_runs.csv"):
        text = (tmp_path / "out" / name).read_text()
        assert "test 1000-sample bound" in text
        assert "-107.25 ± 0.03" in text


def test_runs_are_described_and_damaged_ones_named(report):
    text = (report[1] / "index.html").read_text()
    for expected in (
        "1 × cpu, a processor, 2 cores",
        "1,000 steps/s (1,000 to 1,000)",
        "at step 100,000 of 1,000,000",
        "batch_size = 50",
    ):
        assert expected in text
    assert "python -m main --config configs/base.py" in text
    assert "config.json is damaged" in text


@pytest.mark.parametrize(
    ("runs", "out", "expected"),
    [
        ("nowhere", "out", "error: --runs: no such folder: {}/nowhere"),
        ("runs nowhere", "out", "error: --runs: no such folder: {}/nowhere"),
        ("runs,nowhere", "out", "error: --runs: no such folder: {}/runs,nowhere"),
        ("empty", "out", "error: no run directory below {}/empty; one has a config.json in it"),
        ("runs", "file", "error: cannot write to --out={}/file: File exists"),
        ("runs", "file/out", "error: cannot write to --out={}/file/out: Not a directory"),
    ],
)
def test_bad_input_is_one_line(tmp_path, runs, out, expected):
    write_run(tmp_path / "runs" / "a", config_at(DISARM, seeds=(0,)), [-116.0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    values = flags.FlagValues()
    define_flags(values)
    folders = [f"--runs={tmp_path / name}" for name in runs.split()]
    values(["report", *folders, "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as stopped:
        main(["report"], values)
    assert stopped.value.code == expected.format(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "runs"]


def test_the_command_ends_with_status_1_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "scripts.report", "--runs", tmp_path, "--out", tmp_path / "out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: no run directory below {tmp_path}; one has a config.json in it\n"


def test_damaged_runs_alone_are_named_and_no_report_is_made(tmp_path, capsys):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no run directory below"):
        make_report([str(tmp_path)], tmp_path / "out")
    assert "skipped: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
