"""What the documentation says holds: every docstring example, every block of the pages, the tables of estimators."""

import csv
import doctest
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import disarm_jax as dj
from disarm_jax.categorical.catalogue import CLASSES
from disarm_jax.estimators.registry import BITS

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


BLOCKS = {block: name for name, page in PAGES.items() for block in python_blocks(page)}  # each block once
(KNAPSACK,) = [block for block in BLOCKS if 'print("packed", ' in block]
MODULES = ["disarm_jax", *(module.name for module in pkgutil.walk_packages(dj.__path__, "disarm_jax."))]

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(autouse=True)
def as_a_user(tmp_path, monkeypatch):
    """The examples run with JAX as it comes, not with the suite's strict settings, and leave the user's data alone."""
    monkeypatch.setenv("DISARM_DATA_DIR", str(tmp_path))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    names = {"jax": jax, "jnp": jnp, "dj": dj}
    for test in doctest.DocTestFinder().find(module, extraglobs=names):
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_every_estimator_has_an_example():
    for name in ("check", "expectation", "gradient_variance", "hierarchical", "midpoint", "taylor", "variance_loss"):
        assert ">>>" in inspect.getdoc(getattr(dj, name)), name
    for registry in (BITS, CLASSES):
        for name in registry.names():
            assert ">>>" in inspect.getdoc(registry.factory(name)), name


@pytest.mark.parametrize(("block", "page"), [item for item in BLOCKS.items() if item[0] != KNAPSACK])  # run below
def test_blocks_run(block, page, capsys):
    exec(compile(block, page, "exec"), {})


WRONGLY_TYPED = """
import jax, jax.numpy as jnp, disarm_jax as dj

key, logits, f = jax.random.key(0), jnp.zeros(3), lambda b: b.sum(-1)
est = dj.Estimator(lambda key, logits: (), lambda params, key, logits, f: dj.disarm().apply(params, key, logits, f))
dj.disarm(pairs=2)  # error
dj.disarm().apply((), key, logits)  # error
dj.disarm().apply((), key, logits, f).gradient  # error
dj.disarm().apply((), key, logits, f, has_aux=True)[0].grad
dj.expectation(est)(key, logits, f)  # error
dj.expectation(est)((), key, logits, f).value  # error
dj.expectation(est, has_aux=True)((), key, logits, f)[0].mean()
dj.variance_loss(est)(key, logits, f)  # error
dj.gradient_variance(est)((), key, logits, f)  # error
dj.gradient_variance(est)((), key, logits, f, 10).total_error  # error
dj.Estimator(lambda key: (), est.apply)  # error
dj.Estimator(est.init, lambda params, key, logits: None)  # error
"""


def test_types_of_blocks(tmp_path):
    """A type checker finds nothing wrong with the blocks of the pages, with the settings of the package.

    They are checked in one process. The last file has errors on purpose: what the functions return has a type.
    """
    names = [page.removesuffix(".md").replace("/", "_") for page in BLOCKS.values()]
    files = [(f"{name}_{number}", block) for number, (name, block) in enumerate(zip(names, BLOCKS, strict=True))]
    files.append(("wrong", WRONGLY_TYPED))
    for name, block in files:
        (tmp_path / f"{name}.py").write_text(block)
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", "pyproject.toml"]
    command += ["--pythonpath", sys.executable, *(str(tmp_path / f"{name}.py") for name, _ in files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found = [(pathlib.Path(d["file"]).stem, d["range"]["start"]["line"] + 1) for d in report["generalDiagnostics"]]
    expected = [("wrong", number) for number, line in enumerate(WRONGLY_TYPED.splitlines(), 1) if "# error" in line]
    assert sorted(set(found)) == expected, done.stdout


def test_the_readme_is_short():
    """At most 150 lines, and both doors in ten."""
    assert len(PAGES["README.md"].splitlines()) <= 150
    (doors,) = python_blocks(PAGES["README.md"])
    assert len([line for line in doors.splitlines() if line]) <= 10
    assert doors in PAGES["docs/index.md"]


def test_the_knapsack_is_solved(capsys):
    """The example ends at the best of the 256 subsets."""
    names = {}
    exec(compile(KNAPSACK, BLOCKS[KNAPSACK], "exec"), names)
    subsets = (jnp.arange(256)[:, None] >> jnp.arange(8) & 1).astype(float)
    best = jnp.where(subsets @ names["weight"] <= 22, subsets @ names["value"], 0).max()
    assert float(names["packed"] @ names["weight"]) <= 22
    assert float(names["packed"] @ names["value"]) == float(best)


def facts(row: tuple[str, ...]) -> tuple:
    """Name, unbiased, evaluations and whether ∇f is needed, as a row of a table says it."""
    name, unbiased, evaluations, needs_grad = row
    return name, unbiased == "yes", evaluations, needs_grad == "yes"


def known_facts(name: str) -> tuple:
    library = dj.categorical if name.startswith("categorical.") else dj
    info = library.estimator_info(name.removeprefix("categorical."))
    return name, info.unbiased, str(info.evaluations), info.needs_grad


def test_the_tables_of_estimators_are_true():
    """Each has a row in `choosing.md`; the README has eight of them."""
    pattern = r"^\| `([\w.]+)` \| \**(yes|no)\** \| ([\w +]+) \| (yes|no) \|"
    page = PAGES["docs/choosing.md"]
    everything = [facts(row) for row in re.findall(pattern, page, re.MULTILINE)]
    of_classes = [f"categorical.{name}" for name in dj.categorical.estimator_names()]
    assert sorted(row[0] for row in everything) == sorted([*dj.estimator_names(), *of_classes])
    few = [facts(row) for row in re.findall(pattern, PAGES["README.md"], re.MULTILINE)]
    assert len(few) == 8
    assert everything + few == [known_facts(row[0]) for row in everything + few]
    bounds = re.findall(r"^\| `(\w+)` \|.*\| (E f|bound) \|", page, re.MULTILINE)
    kinds = {"expectation": "E f", "bound": "bound"}
    assert dict(bounds) == {name: kinds[dj.estimator_info(name).objective] for name in dj.estimator_names()}


def test_every_estimator_is_in_the_reference():
    """By the path of its function, from which the page is generated."""
    for registry, page in ((BITS, "estimators"), (CLASSES, "categorical")):
        written = re.findall(r"^::: (\S+)$", PAGES[f"docs/reference/{page}.md"], re.MULTILINE)
        paths = [f"{make.__module__}.{make.__qualname__}" for make in map(registry.factory, registry.names())]
        assert sorted(paths) == sorted(path for path in written if path in paths)
    written = re.findall(r"^::: (\S+)$", PAGES["docs/reference/formulas.md"], re.MULTILINE)
    assert {path.rpartition(".")[2] for path in written if ".formulas." in path} == set(dj.formulas.__all__)


def test_numbers_of_the_paper_are_those_of_the_report():
    """Every row with our number beside the paper's, in the README and in `results.md`, is in the report's table."""
    with (ROOT / "results/paper/table_elbo.csv").open(encoding="utf-8") as file:
        cells = {(row["dataset"], row["model"], row["estimator"], row["metric"]): row for row in csv.DictReader(file)}
    datasets = {"MNIST": "mnist", "FashionMNIST": "fashion_mnist"}
    number = r"−([\d.]+) / −([\d.]+) ± ([\d.]+)"
    rows = []
    for page in ("README.md", "docs/results.md"):
        rows += re.findall(
            rf"^\| (\w+) (\w+) \| `(\w+)` \| {number} \|(?:[^|]*\|)? {number} \|", PAGES[page], re.MULTILINE
        )
    assert len(rows) >= 14
    verdict = (ROOT / "results/paper/verdict.md").read_text(encoding="utf-8")
    match, comparable = re.search(r"^- (\d+) of (\d+) comparable numbers within 2 ", verdict, re.MULTILINE).groups()
    assert f"{match} of the {comparable} numbers" in PAGES["README.md"]
    assert f"{match} of {comparable} comparable numbers" in PAGES["docs/results.md"]
    for model, dataset, estimator, *numbers in rows:
        for metric, said in zip(("train_elbo", "test_100_sample_bound"), (numbers[:3], numbers[3:]), strict=True):
            cell = cells[datasets[dataset], model, estimator, metric]
            found = [cell[f"{name}"].lstrip("-") for name in ("ours_mean", "paper_mean", "paper_stderr")]
            assert said == [f"{float(value):.2f}" for value in found], (model, dataset, estimator, metric)
