"""Checkpoints are trees that orbax alone can read; no damage to one is taken for a state."""

import gc
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from tiny import tiny_config

from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.load import prepare
from disarm_jax.run_directory.checkpoint import CheckpointError, Checkpoints, read_latest, read_step

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """Of two seeds, with the tunables of an estimator, and something to measure."""
    overrides = {"estimator.name": "relax", "estimator.options.hidden": 3, "variance.estimators": ("disarm",)}
    prepared = prepare(resolve(tiny_config(tmp_path_factory.mktemp("data"), **overrides)))
    shapes = jax.eval_shape(jax.vmap(prepared.experiment.init), np.arange(2, dtype=np.uint32))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.uniform(1, 1000, leaf.shape).astype(leaf.dtype), shapes)


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    """A folder with the state as checkpoint 5."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder, 3)
    checkpoints.save(5, state)
    checkpoints.close()
    return folder


def names_of(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), (_, b) in zip(*map(jax.tree_util.tree_leaves_with_path, (one, other)), strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path


class TestNames:
    def test_orbax_alone_shows_them(self, state, saved):
        tree = ocp.load(saved / "5")
        assert set(tree) == {"params", "opt_state", "step", "seed", "measured"}
        assert set(tree["params"]) == {"encoder", "decoder", "prior"}
        assert set(tree["measured"]["0"]) == {"tunables", "opt_state", "mean", "square"}
        np.testing.assert_array_equal(tree["measured"]["0"]["tunables"]["scale"], state.measured[0].tunables["scale"])
        found, expected = names_of(tree), names_of(state)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)

    def test_a_part_is_restored_alone(self, state, saved):
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with context:
            shapes = ocp.metadata(saved / "5").metadata["params"]["encoder"]
            part = ocp.load(saved / "5", {"params": {"encoder": shapes}})
        same(part, {"params": {"encoder": state.params["encoder"]}})

    def test_the_same_bits_come_back(self, state, saved):
        same(read_latest(saved, jax.eval_shape(lambda: state)).state, state)
        same(read_step(saved, 5, state).state, state)


def without(path):
    path.unlink()


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0x10
    path.write_bytes(content)


DAMAGES = {"without": without, "half": half, "empty": empty}
DAMAGES |= {f"flipped {place}": lambda path, place=place: flipped(path, place) for place in np.linspace(0, 0.99, 12)}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file(state, saved, tmp_path, capfd, damage):
    """It is found and told in one line, or has changed nothing: some bytes are never read."""
    files = [file.relative_to(saved) for file in saved.rglob("*") if file.is_file()]
    assert len(files) > 6
    found = 0
    for number, file in enumerate(files):
        folder = shutil.copytree(saved, tmp_path / str(number))
        DAMAGES[damage](folder / file)
        try:
            same(read_step(folder, 5, state).state, state)
        except CheckpointError as error:
            found += 1
            message = str(error)
            assert message.startswith(f"checkpoint {folder / '5'} is damaged: ")
            assert "\n" not in message
    assert found > 2
    gc.collect()  # asyncio tells of errors that nobody has looked at when they are collected
    assert "Traceback" not in capfd.readouterr().err


def resaved(folder: pathlib.Path, change, sums=lambda sums: sums) -> None:
    """Writes the checkpoint again with other arrays or other checksums."""
    path = folder / "5"
    tree, metadata = ocp.load(path), ocp.metadata(path).custom_metadata
    shutil.rmtree(path)
    ocp.save(path, change(tree), custom_metadata=sums(metadata))


@pytest.mark.parametrize(
    ("change", "sums", "message"),
    [
        (lambda tree: tree | {"step": tree["step"] + 1}, dict, "its array step is not as it was written"),
        (lambda tree: tree | {"step": tree["step"][:1]}, dict, "its array step is not as it was written"),
        (lambda tree: tree | {"step": tree["step"].view(np.uint32)}, dict, "its array step is not as it was written"),
        (lambda tree: {k: v for k, v in tree.items() if k != "seed"}, dict, "its array seed is not as it was written"),
        (dict, lambda sums: None, "it has no checksums"),
        (
            dict,
            lambda sums: {"sha256": sums["sha256"] | {"more": ""}},
            "it has an array more, unlike the state of this config",
        ),
        (
            dict,
            lambda sums: {"sha256": {k: v for k, v in sums["sha256"].items() if k != "step"}},
            "it has no array step, unlike the state of this config",
        ),
    ],
)
def test_arrays_that_are_not_those_that_were_saved(state, saved, tmp_path, change, sums, message):
    folder = shutil.copytree(saved, tmp_path / "copy")
    resaved(folder, change, sums)
    with pytest.raises(CheckpointError, match=re.escape(f"5 is damaged: {message}") + "$"):
        read_step(folder, 5, state)


def test_a_state_of_another_config(state, saved):
    other = state._replace(params=state.params | {"prior": np.zeros((2, 7), np.float32)})
    expected = r"its array params/prior is float32\[2, 4\], but float32\[2, 7\] in the state of this config$"
    with pytest.raises(CheckpointError, match=expected):
        read_step(saved, 5, other)
    with pytest.raises(CheckpointError, match=r"it has an array measured/1/.*, unlike the state of this config$"):
        read_step(saved, 5, state._replace(measured=state.measured[:1]))


def test_checksums_are_readable(saved):
    metadata = json.loads((saved / "5" / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]
    assert {len(digest) for digest in metadata["sha256"].values()} == {64}
    assert "params/prior" in metadata["sha256"]
