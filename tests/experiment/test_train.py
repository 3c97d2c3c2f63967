"""Training end to end at tiny sizes: every combination, seeds and devices, the run directory, own parts."""

import itertools
import json
import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from tiny import tiny_config, write_images

import disarm_jax as dj
from disarm_jax import bernoulli, data
from disarm_jax.experiment import build, devices, evaluate, loop
from disarm_jax.experiment.config import ConfigError, resolve, versioned
from disarm_jax.experiment.load import load_run, prepare
from disarm_jax.experiment.loop import train
from disarm_jax.experiment.step import finite_everywhere, run_keys
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.run_directory.rows import read_rows

pytestmark = pytest.mark.usefixtures("quick_compile")

LATENTS = {1: (4,), 2: (4, 3)}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Only the run of `finished` draws them, which is made before this takes effect."""
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)


def fits(name, objective, depth):
    bound = dj.estimator_info(name).objective == "bound"
    if objective == "multisample":
        return bound and depth == 1
    return not bound and (depth == 1 or name in dj.hierarchical_names())


COMBINATIONS = list(itertools.product(dj.estimator_names(), ("elbo", "multisample"), (1, 2)))


# One of each way in which tunables are learnt and layers are handled; they are run, all others are only traced.
LEARNING = [
    ("disarm", "elbo", 2),
    ("disarm_midpoint", "elbo", 2),
    ("interpolated", "elbo", 1),
    ("relax", "elbo", 2),
    ("rodeo", "elbo", 1),
    ("multisample_disarm_quadratic", "multisample", 1),
    ("vimco", "multisample", 1),
]


def prepared_for(tmp_path, name, objective, depth):
    overrides = {"estimator.name": name, "objective.name": objective, "model.latents": LATENTS[depth]}
    return prepare(resolve(tiny_config(tmp_path, **overrides)))


@pytest.mark.parametrize(("name", "objective", "depth"), [c for c in COMBINATIONS if fits(*c)])
def test_every_supported_combination_fits_together(tmp_path, name, objective, depth):
    """Traced: the state keeps its shapes and dtypes, and the metrics are there."""
    prepared = prepared_for(tmp_path, name, objective, depth)
    start = jax.eval_shape(prepared.experiment.init, jnp.uint32(0))
    chunk = lambda state, images: prepared.experiment.run_chunk(state, images, 10)
    end, metrics = jax.eval_shape(chunk, start, prepared.dataset.train)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), end) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), start
    )
    assert (metrics.objective.shape, len(metrics.gradient_variance)) == ((), 1)


@pytest.mark.parametrize(("name", "objective", "depth"), LEARNING)
def test_combinations_learn(tmp_path, name, objective, depth):
    """Ten steps: every parameter and some tunable has moved, and nothing is NaN."""
    prepared = prepared_for(tmp_path, name, objective, depth)

    @jax.jit
    def both(seed, images):
        start = prepared.experiment.init(seed)
        return start, *prepared.experiment.run_chunk(start, images, 10)

    start, end, metrics = both(jnp.uint32(0), prepared.dataset.train)
    assert np.isfinite(metrics.objective)
    assert metrics.first_bad == 0
    assert metrics.gradient_variance[0] > 0
    moved = jax.tree.map(lambda a, b: np.any(a != b), start.params, end.params)
    assert all(jax.tree.leaves(moved)), moved
    before, after = (jax.tree.leaves(state.measured[0].tunables) for state in (start, end))
    assert not before or any(np.any(a != b) for a, b in zip(before, after, strict=True))


def test_a_whole_run_of_a_bound(tmp_path):
    overrides = {"estimator.name": "vimco", "objective.name": "multisample", "eval.test_samples": 2}
    config = tiny_config(tmp_path, **overrides, **{"steps": 10, "eval.train_samples": 1})
    metrics = train(config, tmp_path / "run")["metrics"]
    bounds = {"train_elbo", "validation_2_sample_bound", "test_2_sample_bound"}
    assert {"objective", "gradient_variance"} | bounds <= set(metrics)
    assert all(np.isfinite(metric["mean"]) for metric in metrics.values())


@pytest.mark.parametrize(("name", "objective", "depth"), [c for c in COMBINATIONS if not fits(*c)])
def test_every_other_combination_is_refused_by_name(tmp_path, name, objective, depth):
    overrides = {"estimator.name": name, "objective.name": objective, "model.latents": LATENTS[depth]}
    with pytest.raises(ConfigError, match=f"'{name}'|model.latents"):
        train(tiny_config(tmp_path, **overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batches_and_noise_of_many_seeds_are_those_of_each():
    """Bit for bit: images chosen, binarisation and the noise of a sample, for every seed of a vmapped axis."""
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (50, 16)), jnp.uint8)

    def randomness(seed, step):
        keys = run_keys(seed)
        chosen = data.batch_indices(keys.batches, step, 5, 50)
        key = jax.random.fold_in(keys.steps, step)
        return chosen, data.binarize(key, images[chosen]), bernoulli.logistic_noise(key, (2, 5, 4), jnp.float32)

    seeds = jnp.arange(5, dtype=jnp.uint32)
    together = jax.jit(jax.vmap(randomness, in_axes=(0, None)))(seeds, 17)
    for number, seed in enumerate(seeds):
        alone = jax.jit(randomness)(seed, 17)
        jax.tree.map(lambda a, b, n=number: np.testing.assert_array_equal(a[n], b), together, alone)
    assert not np.array_equal(together[2][0], together[2][1])


def test_seeds_together_equal_seeds_alone_on_any_devices(tmp_path, monkeypatch):
    """Five seeds on one device, on three of four (padded), batched, and one by one: within 1e-5 after 20 steps."""
    assert len(jax.devices()) >= 4, "the suite makes four CPU devices"
    overrides = {"estimator.name": "rebar", "eval.train_every": 20, "eval.test_every": 20, "eval.test_samples": 1}
    five = tiny_config(tmp_path, seeds=(3, 1, 4, 15, 9), **overrides)
    train(five, tmp_path / "one", jax.devices()[:1])
    train(five, tmp_path / "four", jax.devices()[:4])
    with monkeypatch.context() as patch:
        patch.setattr(devices, "for_each", lambda platform, for_each=devices.for_each: for_each("gpu"))
        train(five, tmp_path / "batched", jax.devices()[:1])
    together = load_run(tmp_path / "one")
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for other in ("four", "batched"):
        jax.tree.map(close, together.state, load_run(tmp_path / other).state)
    assert len(RunDir(tmp_path / "four").read_metrics()) == 5 * (
        4 + 3
    )  # rows of four chunks and three splits, no padding
    for number, seed in enumerate(five.seeds):
        if number in (0, 4):
            train(tiny_config(tmp_path, seeds=(seed,), **overrides), tmp_path / f"alone{seed}", jax.devices()[:1])
            alone = load_run(tmp_path / f"alone{seed}")
            jax.tree.map(lambda a, b, n=number: close(a[n], b[0]), together.state, alone.state)
    assert np.any(together.params[0]["prior"] != together.params[1]["prior"])


class Finished(NamedTuple):
    """A run of `interpolated`, with the variances of three other estimators.

    Attributes:
      config: what was to be trained.
      run_dir: where it was.
      summary: what `train` has returned.
      precisions: that of products, whenever something was traced: in training and in evaluation.
    """

    config: ConfigDict
    run_dir: RunDir
    summary: dict
    precisions: dict[str, list]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quick_compile):
    folder, found = tmp_path_factory.mktemp("finished"), []

    def noted(function):
        return lambda *arguments: found.append(jax.config.jax_default_matmul_precision) or function(*arguments)

    overrides = {"variance.estimators": ("arm", "disarm(num_pairs=2)", "relax"), "estimator.name": "interpolated"}
    write_images(folder / "images.npz", validation=13)  # as many as test images everywhere else
    config = tiny_config(folder, seeds=(0, 7), matmul_precision="bfloat16", **overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("disarm_jax.experiment.step.finite_everywhere", noted(finite_everywhere))
        patch.setattr(evaluate, "sampled_bound", noted(evaluate.sampled_bound))
        patch.setattr(evaluate, "one_cpu_device_per_core", lambda num_seeds: None)  # which JAX knows by now
        summary = train(config, folder / "run")
        trained = len(found)
        evaluate.evaluate_run(folder / "run", 2)
    precisions = {"train": found[:trained], "eval": found[trained:]}
    return Finished(config, RunDir(folder / "run"), summary, precisions)


def test_the_run_directory(finished):
    config, run_dir, summary = finished.config, finished.run_dir, finished.summary
    for name in ("curves.png", "samples.png"):
        assert (run_dir.path / name).read_bytes().startswith(b"\x89PNG")
    assert json.loads(run_dir.config_file.read_text()) == versioned(resolve(config))
    assert run_dir.read_config() == resolve(config)
    assert run_dir.done_steps() == 20
    assert {entry.name for entry in run_dir.tensorboard.iterdir()} == {"seed_0", "seed_7"}
    rows = run_dir.read_metrics()
    assert [(row["step"], row["seed"]) for row in rows if "objective" in row] == [
        (step, seed) for step in (5, 10, 15, 20) for seed in (0, 7)
    ]
    assert [row["step"] for row in rows if "test_3_sample_bound" in row] == [10, 10, 20, 20]
    for label in ("arm", "disarm(num_pairs=2)", "relax"):
        assert all(row[f"gradient_variance/{label}"] > 0 for row in rows if "objective" in row)
    last = [row["objective"] for row in rows if row["step"] == 20 and "objective" in row]
    metric = summary["metrics"]["objective"]
    assert metric["seeds"] == last
    np.testing.assert_allclose(metric["mean"], sum(last) / 2)
    np.testing.assert_allclose(metric["stderr"], abs(last[0] - last[1]) / 2)
    bounds = {"train_elbo", "validation_3_sample_bound", "test_3_sample_bound"}
    assert {"objective", "gradient_variance", "tunables/beta"} | bounds <= set(summary["metrics"])
    assert all(np.isfinite(metric["mean"]) for metric in summary["metrics"].values())
    assert summary == json.loads(run_dir.summary_file.read_text())
    assert summary["versions"]["jax"] == jax.__version__
    assert summary["data"]["dataset"] == "npz"
    assert not [name for name in run_dir.path.iterdir() if name.name.endswith(".tmp")]


def test_the_moving_variance_is_that_of_the_gradients(tmp_path):
    """Against moments computed by hand, in numpy, from the gradients of every step."""
    config = resolve(tiny_config(tmp_path, **{"variance.decay": 0.9}))
    prepared = prepare(config)
    experiment, images = prepared.experiment, jnp.asarray(prepared.dataset.train)
    state = experiment.init(jnp.uint32(0))
    run_chunk = jax.jit(experiment.run_chunk, static_argnums=2)
    mean = square = 0.0
    for step in range(1, 7):
        before = state
        state, metrics = run_chunk(state, images, 1)
        # With decay d, EMA_t = d EMA_{t−1} + (1 − d) g, so g can be read off the state.
        flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        gradient = (flat(state.measured[0].mean) - 0.9 * flat(before.measured[0].mean)) / 0.1
        mean, square = 0.9 * mean + 0.1 * gradient, 0.9 * square + 0.1 * gradient**2
        weight = 1 - 0.9**step
        expected = np.mean(square / weight - (mean / weight) ** 2)
        np.testing.assert_allclose(metrics.gradient_variance[0], expected, rtol=1e-3, atol=1e-7)
    assert expected > 1e-3  # so that the tolerance is one


def test_own_estimator_data_set_and_model(tmp_path):
    overrides = {
        "dataset.name": "custom_parts:stripes",
        "dataset.path": None,
        "estimator.name": "custom_parts:straight_disarm",
    }
    config = tiny_config(tmp_path, **overrides, **{"model.name": "custom_parts:QuietVAE"})
    config.unlock()
    config.model.options.loudness = 0.5
    config.estimator.options = {"num_pairs": 2}
    summary = train(config, tmp_path / "run")
    assert summary["estimators"] == ["custom_parts:straight_disarm(num_pairs=2)"]
    run = load_run(tmp_path / "run", allow_imports=True)
    assert type(run.model).__name__ == "QuietVAE"
    assert run.model.loudness == 0.5
    # It is DisARM with two pairs, and trains just as that does.
    config.estimator.name = "disarm"
    train(config, tmp_path / "same")
    jax.tree.map(np.testing.assert_array_equal, run.params, load_run(tmp_path / "same", allow_imports=True).params)
    with pytest.raises(ConfigError, match=r"must return a disarm_jax\.Estimator, got int"):
        resolve(tiny_config(tmp_path, **{"estimator.name": "custom_parts:not_an_estimator"}))


def test_custom_parts_that_do_not_fit_are_refused(tmp_path):
    config = tiny_config(tmp_path, **{"estimator.name": "custom_parts:wrong_shape"})
    with pytest.raises(ConfigError, match=r"value and grad of shapes \(\(5,\), \(4,\)\) for logits of \(5, 4\)"):
        train(config, tmp_path / "run")
    for name, message in (
        ("custom_parts:stripes", "got an unexpected keyword"),
        ("types:SimpleNamespace", "has no init"),
    ):
        with pytest.raises(ConfigError, match=f"model.name is '{name}'.*{message}"):
            train(tiny_config(tmp_path, **{"model.name": name}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_precision_of_products(finished):
    """It is in force wherever something is compiled, and no longer than that."""
    assert len(finished.precisions["train"]) > 1
    assert finished.precisions["eval"]
    assert set(finished.precisions["train"] + finished.precisions["eval"]) == {"bfloat16"}
    assert jax.config.jax_default_matmul_precision != "bfloat16"


def test_times_of_training_and_evaluation_are_told_apart(finished):
    rows = read_rows(finished.run_dir.timings_file)
    kinds = {
        kind: sum(r["seconds"] for r in rows if r["what"].startswith(kind)) for kind in ("evaluate", "train", "compile")
    }
    assert min(kinds.values()) > 0
    times = finished.summary["times"]
    np.testing.assert_allclose(times["evaluation_seconds"], kinds["evaluate"], atol=0.01)
    np.testing.assert_allclose(times["train_seconds"], kinds["train"], atol=0.01)
    np.testing.assert_allclose(times["compile_seconds"], kinds["compile"], atol=0.01)
    np.testing.assert_allclose(times["steps_per_second"] * kinds["train"], 20)


def test_a_run_is_loaded_as_the_docs_say(finished):
    """The lines of docs/train.md, with this run's directory in the place of its own."""
    page = (pathlib.Path(__file__).parents[2] / "docs/train.md").read_text()
    blocks = re.findall(r"^```python notest\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (lines,) = [block for block in blocks if "load_run" in block]
    names = {}
    exec(lines.replace("runs/quickstart", str(finished.run_dir.path)), names)
    assert names["images"].shape == (16, 16)
    run = names["run"]
    assert (run.step, len(run.params), run.config["seeds"]) == (20, 2, (0, 7))

    (lines,) = [block for block in blocks if "ocp.load" in block]
    exec(lines.replace("runs/mine/checkpoints/20000", str(finished.run_dir.path / "checkpoints/20")), names)
    assert set(names["encoder"]) == set(run.params[0]["encoder"])


def test_a_batch_larger_than_the_data_set_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="batch_size is 61; accepted: at most the number of training images of npz, 60"
    ):
        train(tiny_config(tmp_path, batch_size=61), tmp_path / "run")


def test_the_objective_rises(tmp_path):
    """Three hundred steps on two kinds of images: several nats, whatever the seed."""
    config = tiny_config(tmp_path, steps=300, log_every=100, **{"checkpoint.every": 300})
    config.eval.train_every = config.eval.test_every = 300
    train(config, tmp_path / "run")
    objective = [row["objective"] for row in RunDir(tmp_path / "run").read_metrics() if "objective" in row]
    assert objective[-1] > objective[0] + 0.5


def test_a_loop_that_is_unrolled_and_one_that_is_traced(tmp_path, quick_compile):
    """Unrolled, the same steps but for rounding, also of a chunk that is no multiple; the trace changes no bit."""
    short = {"eval.train_every": 20, "eval.test_every": 20, "eval.test_samples": 1, "writers": ()}
    train(tiny_config(tmp_path, **short), tmp_path / "run")
    train(tiny_config(tmp_path, **short, unroll=3), tmp_path / "unrolled")
    train(tiny_config(tmp_path, **short), tmp_path / "traced", profile=tmp_path / "trace")
    usual, unrolled, traced = (load_run(tmp_path / name).state for name in ("run", "unrolled", "traced"))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, unrolled, usual)
    jax.tree.map(np.testing.assert_array_equal, traced, usual)
    same = lambda file: (tmp_path / "traced" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
    assert all(map(same, ("metrics.jsonl", "config.json")))
    (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
    content = trace.read_bytes()
    assert b"dot" in content  # what the program did
    assert not list((tmp_path / "run").rglob("*.xplane.pb"))


def test_a_profile_needs_a_second_chunk(tmp_path, quick_compile):
    """A run of one chunk, which would only show the compiler at work, leaves no trace."""
    short = {"steps": 5, "eval.train_every": 5, "eval.test_every": 5, "eval.test_samples": 1, "writers": ()}
    train(tiny_config(tmp_path, **short), tmp_path / "run", profile=tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_a_profile_where_there_can_be_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the profile is to be in .*file/trace, but .*file is no folder"):
        train(tiny_config(tmp_path), tmp_path / "run", profile=tmp_path / "file" / "trace")
    assert not (tmp_path / "run").exists()


def test_learning_rates_are_known_before_the_loop(tmp_path):
    changes = {
        "steps": 25,
        "log_every": 10,
        "checkpoint.every": 10,
        "optimizer.encoder.schedule": "cosine",
        "seeds": (0, 1),
    }
    config = resolve(tiny_config(tmp_path, **changes))
    found = loop.learning_rates(config, 10)
    assert list(found) == [20, 25]
    for step, columns in found.items():
        rate = build.schedule_of(config.optimizer.encoder)
        np.testing.assert_allclose(columns["learning_rate/encoder"], np.full(2, rate(step)), rtol=1e-6)
        np.testing.assert_array_equal(columns["learning_rate/prior"], np.full(2, config.optimizer.prior.learning_rate))
