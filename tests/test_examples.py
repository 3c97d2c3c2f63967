"""The examples run, at a small size, and what their page says is what they printed."""

import importlib
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "examples"
NAMES = ("gate", "subset", "codes", "epidemic")
PAGE = (FOLDER / "README.md").read_text()

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch):
    """As the examples of the docs, with JAX as it comes."""
    monkeypatch.syspath_prepend(str(FOLDER))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
    for name in (*NAMES, "common"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path, capsys):
    """With a line for each method and finite numbers in the text, and a figure."""
    example, common = importlib.import_module(name), importlib.import_module("common")
    common.report(name, example.run, ["--small", "--out", str(tmp_path)])
    text = (tmp_path / f"{name}.txt").read_text()
    assert capsys.readouterr().out == text
    recorded = (FOLDER / f"{name}.txt").read_text()
    assert [line[:14] for line in text.splitlines()] == [line[:14] for line in recorded.splitlines()]
    assert "nan" not in text
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 120
    assert (FOLDER / f"{name}.png").stat().st_size < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_was_printed(name):
    """Its text is the recorded one, and every number of the prose is in that text or in the script."""
    section = re.search(rf"^## [^\n]*`{name}\.py`.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL).group()
    recorded, script = (FOLDER / f"{name}.txt").read_text(), (FOLDER / f"{name}.py").read_text()
    assert f"```text\n{recorded}```" in section
    assert f"({name}.png)" in section
    numbers = set(
        re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?%?(?![\w])", re.sub(r"```.*?```", "", section, flags=re.DOTALL))
    )
    assert not {number for number in numbers if number not in recorded and number not in script}


@pytest.mark.parametrize("estimator", ["disarm", "reinforce_loo"])
def test_the_epidemic_has_one_gradient(estimator):
    """Through `pure_callback` and by ask and tell, to the last digits."""
    epidemic = importlib.import_module("epidemic")
    links = epidemic.contacts(30, 6)
    loss = epidemic.make_simulator_loss(links, 30, np.full(6, 0.05, np.float32))
    est = epidemic.dj.make_estimator(estimator)
    ways = epidemic.gradients(est, loss, 2 * epidemic.DAYS_ILL * len(links[0]))
    found = [way(jnp.log(0.2), jax.random.key(0)) for way in ways]
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert found[0] != 0


def test_the_skipped_expert_does_not_run():
    """An expert that would return NaN changes nothing where its gate is 0."""
    gate = importlib.import_module("gate")
    _, points = gate.data(jax.random.key(0), 2)
    weights = gate.init(jax.random.key(1))
    weights[0] = weights[0].at[1].set(jnp.nan)
    b = jnp.ones((1, 2, gate.EXPERTS)).at[:, 0, 1].set(0)
    np.testing.assert_array_equal(jnp.isnan(gate.loss_of(weights, points, skip=True)(b)), [[False, True]])
    np.testing.assert_array_equal(jnp.isnan(gate.loss_of(weights, points, skip=False)(b)), [[True, True]])


def test_a_gate_in_equinox():
    """The block of docs/inside-a-network.md; Equinox is not among the packages that the suite needs."""
    eqx = pytest.importorskip("equinox")
    import disarm_jax as dj

    (block,) = re.findall(r"^```py\n(.*?)^```$", (FOLDER.parent / "inside-a-network.md").read_text(), re.M | re.S)
    names = {"eqx": eqx, "jax": jax, "dj": dj}
    exec(compile(block, "inside-a-network.md", "exec"), names)
    model, x = names["Gated"](jax.random.key(0)), jax.random.normal(jax.random.key(1), (64, 4))
    keys = jax.random.split(jax.random.key(2), 64)
    grads = eqx.filter_jit(eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x, keys) ** 2)))(model)
    assert jnp.all(jnp.isfinite(grads.gate.weight))
    assert jnp.any(grads.gate.weight != 0)
