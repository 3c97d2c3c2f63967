"""What the documentation says holds: every docstring example, every block of the README, its table of estimators."""

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
from disarm_jax.categorical.registry import CLASSES
from disarm_jax.estimators.registry import BITS

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


BLOCKS = python_blocks(README)
DOCS_BLOCKS = [
    (path.name, block) for path in sorted((ROOT / "docs").glob("*.md")) for block in python_blocks(path.read_text())
]
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


@pytest.mark.parametrize("block", [block for number, block in enumerate(BLOCKS) if number != 1])  # which is run below
def test_readme_blocks_run(block, capsys):
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize(("page", "block"), DOCS_BLOCKS)
def test_blocks_of_the_docs_run(page, block, capsys):
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
    """A type checker finds nothing wrong with the blocks of the README and the docs, with the settings of the package.

    They are checked in one process. The last file has errors on purpose: what the functions return has a type.
    """
    files = [(f"README_{number}", block) for number, block in enumerate(BLOCKS)]
    files += [(f"{page.removesuffix('.md')}_{number}", block) for number, (page, block) in enumerate(DOCS_BLOCKS)]
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


def test_the_readme_has_its_examples():
    assert len(BLOCKS) == 6
    code = re.findall(r"^[^#\s]", BLOCKS[0].split("\n", 1)[1], re.MULTILINE)
    assert len(code) <= 6  # both doors, after the import


def test_the_knapsack_of_the_readme_is_solved(capsys):
    """The example ends at the best of the 256 subsets."""
    names = {}
    exec(compile(BLOCKS[1], "README.md", "exec"), names)
    subsets = (jnp.arange(256)[:, None] >> jnp.arange(8) & 1).astype(float)
    best = jnp.where(subsets @ names["weight"] <= 22, subsets @ names["value"], 0).max()
    assert float(names["packed"] @ names["weight"]) <= 22
    assert float(names["packed"] @ names["value"]) == float(best)


def test_the_readme_table_is_true():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w +]+) \| (\w+) \| ([\w ]+) \|", README, re.MULTILINE)
    assert sorted(row[0] for row in rows) == list(dj.estimator_names())
    for name, unbiased, evaluations, needs_grad, objective in rows:
        info = dj.estimator_info(name)
        assert (unbiased == "yes") == info.unbiased
        assert evaluations == str(info.evaluations)
        assert (needs_grad == "yes") == info.needs_grad
        assert (objective == "bound") == (info.objective == "bound")


def test_the_readme_table_of_classes_is_true():
    rows = re.findall(r"^\| `categorical\.(\w+)` \| (\S+) \| (\d+) \| (\w+) \|", README, re.MULTILINE)
    assert sorted(row[0] for row in rows) == list(dj.categorical.estimator_names())
    for name, unbiased, evaluations, needs_grad in rows:
        info = dj.categorical.estimator_info(name)
        assert unbiased == ("yes" if info.unbiased else "**no**")
        assert evaluations == str(info.evaluations)
        assert (needs_grad == "yes") == info.needs_grad
