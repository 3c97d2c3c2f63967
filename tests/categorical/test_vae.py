"""A VAE with classes: by hand, against enumeration, and trained from configs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from tiny import tiny_config

import disarm_jax as dj
from disarm_jax.experiment.config import ConfigError, resolve
from disarm_jax.experiment.load import load_run, prepare
from disarm_jax.experiment.loop import train
from disarm_jax.models import CategoricalVAE
from disarm_jax.objectives import inference_layers, log_weights, sampled_bound
from disarm_jax.report.paper import place_of
from disarm_jax.run_directory.directory import default_workdir

X = np.array([[1.0, 0, 1, 1, 0], [0, 0, 1, 0, 1]])
MODEL = CategoricalVAE(((2, 3),), 5, input_mean=np.linspace(0.1, 0.9, 5))
CLASSES = {"model.latents": ((3, 4),), "estimator.name": "disarm_tree"}


def make():
    params = MODEL.init(jax.random.key(0), jnp.asarray(X, jnp.float32))["params"]
    noise = np.random.default_rng(0)
    return jax.tree.map(lambda p: jnp.asarray(np.asarray(p) + 0.5 * noise.normal(size=p.shape)), params)


def all_classes():
    """All values of both variables, for both images: `[9, 2, 2, 3]`."""
    z = np.stack([np.eye(3)[list(each)] for each in itertools.product(range(3), repeat=2)])
    return jnp.asarray(np.repeat(z[:, None], 2, axis=1))


@pytest.mark.usefixtures("x64", "quick_compile")
def test_log_weights_by_hand():
    params, z = make(), np.asarray(all_classes())
    numbers = jax.tree.map(np.asarray, params)
    (encoder,), (decoder,) = (numbers[group]["networks_0"].values() for group in ("encoder", "decoder"))
    q_logits = ((X - MODEL.input_mean) @ encoder["kernel"] + encoder["bias"]).reshape(2, 2, 3)
    pixels = (2 * z.reshape(9, 2, 6) - 1) @ decoder["kernel"] + decoder["bias"]
    log_p = (X * pixels - np.logaddexp(0, pixels)).sum(-1) + (z * log_softmax(numbers["prior"], -1)).sum((-2, -1))
    log_q = (z * log_softmax(q_logits, axis=-1)).sum((-2, -1))
    np.testing.assert_allclose(np.exp(log_q).sum(axis=0), 1, rtol=1e-12)
    layers = inference_layers(MODEL, params)
    f = log_weights(MODEL, params, X, layers, layers[0](X), stop_q=True)
    np.testing.assert_allclose(f((jnp.asarray(z),)), log_p - log_q, rtol=1e-11)


@pytest.mark.usefixtures("x64", "quick_compile")
def test_sampled_bound():
    """The mean of 100,000 ELBOs against enumeration: 4 standard errors, each below 0.5%."""
    params, z, draws = make(), all_classes(), 100_000
    layers = inference_layers(MODEL, params)
    f = log_weights(MODEL, params, X, layers, layers[0](X), stop_q=True)
    truth = np.sum(np.exp(dj.categorical.log_prob(layers[0](X), z)) * f((z,)), axis=0)
    images = jnp.repeat(X, draws, axis=0).reshape(2, draws, 5)
    found = np.asarray(jax.jit(lambda key, x: sampled_bound(MODEL, params, key, x, 1))(jax.random.key(1), images))
    stderr = found.std(axis=1) / np.sqrt(draws)
    assert np.all(stderr < 0.005 * np.abs(truth))
    assert np.all(np.abs(found.mean(axis=1) - truth) < 4 * stderr)


@pytest.mark.usefixtures("x64", "quick_compile")
def test_samples_of_the_prior():
    """Mean image of 100,000 samples against the enumerated one: 4.5 standard errors."""
    params = make()
    images = np.asarray(MODEL.apply({"params": params}, jax.random.key(4), 100_000, method="sample"))
    z = all_classes()[:, 0]
    pixels = jax.nn.sigmoid(MODEL.apply({"params": params}, z, method="decode"))
    expected = np.sum(np.exp(dj.categorical.log_prob(params["prior"], z))[:, None] * pixels, axis=0)
    assert np.all(np.abs(images.mean(axis=0) - expected) < 4.5 * images.std(axis=0) / np.sqrt(len(images)))


@pytest.mark.parametrize("name", dj.categorical.estimator_names())
def test_every_estimator_fits_the_model(tmp_path, name):
    """Traced: the state keeps its shapes and dtypes."""
    experiment, images = experiment_of(tmp_path, name)
    start = jax.eval_shape(experiment.init, jnp.uint32(0))
    end, _ = jax.eval_shape(lambda *args: experiment.run_chunk(*args, 10), start, images)
    signature = lambda state: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    assert signature(end) == signature(start)


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("name", ["disarm_iw", "reinmax"])  # one that evaluates f, and one that differentiates it
def test_it_learns(tmp_path, name):
    """Ten steps: every parameter has moved, and nothing is NaN."""
    experiment, images = experiment_of(tmp_path, name)

    @jax.jit
    def both(seed, images):
        start = experiment.init(seed)
        return start, *experiment.run_chunk(start, images, 10)

    start, end, metrics = both(jnp.uint32(0), images)
    assert np.isfinite(metrics.objective)
    assert metrics.first_bad == 0
    assert metrics.gradient_variance[0] > 0
    moved = jax.tree.map(lambda a, b: np.any(a != b), start.params, end.params)
    assert all(jax.tree.leaves(moved)), moved


def experiment_of(tmp_path, name):
    """And its images."""
    objective = {"bound": "multisample", "expectation": "elbo"}[dj.categorical.estimator_info(name).objective]
    overrides = CLASSES | {"estimator.name": name, "objective.name": objective}
    prepared = prepare(resolve(tiny_config(tmp_path, **overrides)))
    return prepared.experiment, prepared.dataset.train


@pytest.mark.usefixtures("quick_compile")
def test_a_whole_run(tmp_path):
    """With other estimators measured along the way and a draw of its own for the decoder; and loaded again."""
    overrides = {
        "variance.estimators": ("reinforce_loo(num_samples=3)",),
        "objective.generative_samples": "independent",
    }
    metrics = train(tiny_config(tmp_path, **CLASSES, **overrides), tmp_path / "run")["metrics"]
    assert {"train_elbo", "test_3_sample_bound", "gradient_variance"} <= set(metrics)
    run = load_run(tmp_path / "run")
    assert run.config["model"]["name"] == "categorical_vae"
    assert run.params[0]["prior"].shape == (3, 4)
    assert (tmp_path / "run" / "samples.png").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"estimator.name": "disarm"}, "'disarm'; accepted: disarm_iw, .* and categorical variables"),
        ({"model.latents": (4,)}, "'disarm_tree'; accepted: arm, "),
        ({"model.latents": ((3, 4), (2, 2))}, "accepted: one layer of categorical"),
        ({"model.latents": ((3, 1),)}, r"model.latents is \[\[3, 1\]\]; accepted: .* such as \(\(20, 10\),\)"),
        ({"model.latents": ((3, 4, 5),)}, "accepted: .* a pair of variables and classes"),
        ({"model.latents": ((3, 4), 5)}, "accepted: .* a pair of variables and classes"),
        ({"model.name": "bernoulli_vae"}, "'bernoulli_vae'; accepted: categorical_vae for model.latents"),
        (
            {"objective.name": "multisample"},
            "'disarm_tree'; accepted: multisample_disarm, multisample_disarm_midpoint, ",
        ),
        ({"estimator.options.temperature": 0.5}, "disarm_tree has no option 'temperature'"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(ConfigError, match=words):
        resolve(tiny_config(tmp_path, **CLASSES | overrides))


def test_a_run_has_a_name_of_its_own_and_no_place_in_the_paper(tmp_path):
    overrides = {"estimator.name": "reinforce_loo", "dataset.name": "mnist", "dataset.path": None}
    config = resolve(tiny_config(tmp_path, **CLASSES | overrides))
    assert default_workdir(config).name.startswith("mnist-linear-3of4-elbo-reinforce_loo-")
    assert place_of(config) is None
    assert place_of(resolve(tiny_config(tmp_path, **overrides))) is not None
