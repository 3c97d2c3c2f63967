"""Run directories of older code are read, continued and compared as if they had been written today."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from frozen import SETTINGS

from configs import base
from disarm_jax.experiment import config as versions
from disarm_jax.experiment import loop
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.load import load_run
from disarm_jax.run_directory import directory
from disarm_jax.run_directory.directory import RunDir, RunDirError

pytestmark = pytest.mark.usefixtures("quick_compile")

FROZEN = pathlib.Path(__file__).parent / "frozen_v1"


def config_of_today(**overrides):
    config = base.get_config()
    config.update_from_flattened_dict(SETTINGS | overrides)
    return config


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """As the frozen runs were."""
    monkeypatch.setattr(directory, "default_platform", lambda: "cpu")


@pytest.fixture
def copy(tmp_path):
    """A copy of a frozen run directory."""
    return lambda name: shutil.copytree(FROZEN / name, tmp_path / name)


@pytest.mark.parametrize("name", ["interrupted", "finished"])
def test_the_config_is_that_of_today(name):
    assert RunDir(FROZEN / name).read_config() == resolve(config_of_today())


def test_an_interrupted_run_is_continued(copy, monkeypatch):
    """The steps after the interruption may be rounded otherwise on another processor, and by a quicker compiler."""
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)
    run_dir = RunDir(copy("interrupted"))
    before, expected = run_dir.read_metrics(), RunDir(FROZEN / "finished").read_metrics()
    assert load_run(run_dir.path).step == 10
    loop.train(config_of_today(), run_dir.path, jax.devices("cpu"))
    rows = run_dir.read_metrics()
    assert rows[: len(before)] == before == expected[: len(before)]
    assert len(rows) == len(expected) > len(before)
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() >= other.keys()
        np.testing.assert_allclose([row[name] for name in other], list(other.values()), rtol=1e-5)
    assert json.loads(run_dir.config_file.read_text())["version"] == versions.version()


def test_a_finished_run_is_loaded_and_left_as_it_is(copy):
    path = copy("finished")
    assert load_run(path).step == 20
    assert loop.train(config_of_today(), path) == json.loads((FROZEN / "finished" / "summary.json").read_text())


@pytest.mark.parametrize(("platform", "precision"), [("cpu", "float32"), ("gpu", "default"), ("", "default")])
def test_the_precision_that_was_in_force(copy, monkeypatch, platform, precision):
    """From the summary, or else from what JAX would use now."""
    monkeypatch.setattr(directory, "default_platform", lambda: platform)
    run_dir = RunDir(copy("interrupted"))
    assert run_dir.read_config()["matmul_precision"] == precision
    run_dir.summary_file.write_text(json.dumps({"device": {"platform": "cpu"}}))
    assert run_dir.read_config()["matmul_precision"] == "float32"
    run_dir.summary_file.write_text(json.dumps({"device": {"platform": "gpu"}}))
    assert run_dir.read_config()["matmul_precision"] == "default"


def test_every_version_is_brought_up_to_date_in_turn(monkeypatch):
    asked = []
    one = lambda config, platform: config.update(a=platform())
    two = lambda config, platform: config.update(b=config["a"] + "!")
    monkeypatch.setattr(versions, "MIGRATIONS", (one, two))
    platform = lambda: asked.append(True) or "cpu"
    old = {"steps": 1}
    assert versions.migrated(old, platform) == {"steps": 1, "a": "cpu", "b": "cpu!"}
    assert versions.migrated({"version": 2, "a": "x"}, platform) == {"a": "x", "b": "x!"}
    assert versions.migrated(versions.versioned(old), platform) == old == {"steps": 1}
    assert len(asked) == 1, "the platform is asked for only where a field depends on it"


@pytest.mark.parametrize("version", [versions.version() + 1, 0, "2", None, [1]])
def test_other_versions_are_refused(copy, version):
    run_dir = RunDir(copy("finished"))
    config = json.loads(run_dir.config_file.read_text())
    run_dir.config_file.write_text(json.dumps({"version": version} | config))
    for read in (
        run_dir.read_config,
        lambda: load_run(run_dir.path),
        lambda: loop.train(config_of_today(), run_dir.path),
    ):
        with pytest.raises(RunDirError) as caught:
            read()
        accepted = f"accepted: 1 to {versions.version()}; newer code may have written it"
        assert str(caught.value) == f"{run_dir.config_file}: version is {version!r}; {accepted}"


@pytest.mark.parametrize("text", ["[]", "3", "{"])
def test_what_is_no_config_is_damaged(copy, text):
    run_dir = RunDir(copy("finished"))
    run_dir.config_file.write_text(text)
    with pytest.raises(RunDirError, match=r"config\.json is damaged: "):
        run_dir.read_config()


@pytest.mark.parametrize(
    ("name", "measured", "sees_image", "form"),
    [
        ("relax", [], True, "image"),
        ("relax", [], False, "z"),
        ("disarm", ["arm", "relax(hidden=5)"], True, "image"),
        ("disarm", [], True, "released"),  # without effect, so it does not tell the run from one of today
        ("disarm", [], False, "released"),
    ],
)
def test_what_the_network_of_relax_sees(name, measured, sees_image, form):
    old = {"estimator": {"name": name, "network_sees_image": sees_image}, "variance": {"estimators": measured}}
    new = versions.migrated(old, lambda: "cpu")
    assert new["estimator"] == {"name": name, "relax_form": form}
