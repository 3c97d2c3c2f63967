"""The paper's configs do what the released code of the paper does, field by field.

The lists below were written from the released launchers and losses (google-research, folder disarm/binary) and the
paper's appendix, not from our configs: a default that drifts fails here. `docs/protocol.md` explains the settings and
lists what still differs.
"""

import importlib

import pytest

from disarm_jax.command_line import get_config
from disarm_jax.experiment.config import ADDED, flat, resolve
from disarm_jax.report import paper
from disarm_jax.sweep import hyper

ADAM = {"name": "adam", "learning_rate": 1e-4, "b1": 0.9, "b2": 0.999, "eps": 1e-7}
EVERY_CELL = {
    "dataset.binarization": "dynamic",
    "model.name": "bernoulli_vae",
    "model.negative_slope": 0.3,
    "model.kernel_init": "glorot_uniform",
    "model.center_input": True,
    "model.signed_input": True,
    "model.output_bias_from_mean": True,
    **{f"optimizer.encoder.{field}": value for field, value in ADAM.items()},
    **{f"optimizer.decoder.{field}": value for field, value in ADAM.items()},
    **{f"optimizer.tunables.{field}": value for field, value in (ADAM | {"b1": 0.999}).items()},
    "optimizer.encoder.reduction": "sum",
    "optimizer.decoder.reduction": "mean",
    "optimizer.prior.name": "sgd",
    "optimizer.prior.learning_rate": 1e-2,
    "batch_size": 50,
    "steps": 1_000_000,
    "seeds": [0, 1, 2, 3, 4],
    "variance.decay": 0.999,
    "variance.estimators": [],
    "matmul_precision": "float32",  # the released code leaves it to the platform
}
ELBO = {
    "objective.name": "elbo",
    "objective.num_samples": 1,
    "objective.stop_q": True,
    "objective.generative_samples": "independent",  # one fresh sample, whatever the estimator
    "eval.train_samples": 1,
    "eval.test_samples": 100,
}
MULTISAMPLE = {
    "objective.name": "multisample",
    "objective.stop_q": False,
    "objective.generative_samples": "shared",  # the samples of the bound
    "optimizer.prior.reduction": "sum",
}
COLUMNS = {
    "reinforce_loo": ELBO | {"estimator.name": "reinforce_loo", "optimizer.prior.reduction": "mean"},
    "arm": ELBO | {"estimator.name": "arm", "optimizer.prior.reduction": "mean"},
    "disarm": ELBO | {"estimator.name": "disarm", "optimizer.prior.reduction": "mean"},
    "relax": ELBO | {"estimator.name": "relax", "optimizer.prior.reduction": "sum", "estimator.relax_form": "released"},
    "multisample_disarm_1": MULTISAMPLE
    | {"estimator.name": "multisample_disarm", "objective.num_samples": 1, "estimator.options.num_pairs": 1}
    | {"eval.train_samples": 2, "eval.test_samples": 2},
    "vimco_2": MULTISAMPLE
    | {"estimator.name": "vimco", "objective.num_samples": 2, "estimator.options.num_samples": 2}
    | {"estimator.options.baseline": "geometric", "eval.train_samples": 2, "eval.test_samples": 2},
    "multisample_disarm_10": MULTISAMPLE
    | {"estimator.name": "multisample_disarm", "objective.num_samples": 10, "estimator.options.num_pairs": 10}
    | {"eval.train_samples": 20, "eval.test_samples": 20},
    "vimco_20": MULTISAMPLE
    | {"estimator.name": "vimco", "objective.num_samples": 20, "estimator.options.num_samples": 20}
    | {"estimator.options.baseline": "geometric", "eval.train_samples": 20, "eval.test_samples": 20},
}
MODELS = {
    "linear": {"model.latents": [200], "model.hidden": []},
    "nonlinear": {"model.latents": [200], "model.hidden": [200, 200]},
    "layers_2": {"model.latents": [200] * 2, "model.hidden": []},
    "layers_3": {"model.latents": [200] * 3, "model.hidden": []},
    "layers_4": {"model.latents": [200] * 4, "model.hidden": []},
}
# Fields that the released code does not have, or that do not decide what is learnt.
FREE = {"dataset.source", "dataset.data_dir", "dataset.path", "dataset.static_seed", "model.options", "log_every"}
FREE |= {
    "eval.train_every",
    "eval.test_every",
    "eval.batch_size",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.minutes",
}
FREE |= {f"optimizer.prior.{field}" for field in ("b1", "b2", "eps")}  # of Adam, which the prior does not use
PLACES = sorted({place for place, _ in paper.NUMBERS})


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_a_cell_of_the_paper_has_the_released_settings(place):
    expected = EVERY_CELL | COLUMNS[place.column] | MODELS[place.model] | {"dataset.name": place.dataset}
    found = dict(flat(paper.reference_of(place, get_config)))
    assert {field: found.get(field) for field in expected} == expected
    # Every other field is free, or an option that is not in the list because the estimator does not have it.
    rest = set(found) - set(expected) - FREE - {"estimator.options"}
    rest = {field for field in rest if found[field] != ADDED.get(field, ...)}  # newer ones have no effect
    assert rest <= ({"estimator.relax_form"} if place.column != "relax" else set())


SWEEPS = {"elbo": paper.ELBO, "layers": paper.ELBO, "multisample": paper.MULTISAMPLE}


@pytest.mark.parametrize("name", [*SWEEPS, "reproduction"])
def test_the_sweeps_train_the_cells_of_the_paper(name):
    """Every trial is the config of its cell, but for the number of seeds."""
    module = importlib.import_module(f"configs.sweeps.{name}")
    places = []
    for point in module.get_hyper(hyper):
        config = module.get_config()
        config.update_from_flattened_dict(point)
        found = resolve(config)
        place = paper.place_of(found)
        places.append((place, tuple(found["seeds"])))
        reference = {**paper.reference_of(place, get_config), "seeds": found["seeds"]}
        assert found == reference
    assert len(set(places)) == len(places)
    if name != "reproduction":
        wanted = {place for place in PLACES if place.column in SWEEPS[name]}
        layers = [place for place in wanted if place.model.startswith("layers")]
        wanted = set(layers) if name == "layers" else wanted - set(layers)
        assert {place for place, _ in places} == wanted


@pytest.mark.parametrize("name", ["later", "quadratic"])
def test_comparisons_of_estimators_are_fair(name):
    """Decoder and prior see as many samples and learn at the same rate under every estimator."""
    module = importlib.import_module(f"configs.sweeps.{name}")
    groups = {}
    for point in module.get_hyper(hyper):
        config = module.get_config()
        config.update_from_flattened_dict(point)
        found = dict(flat(resolve(config)))
        key = tuple(
            repr(found[f]) for f in ("dataset.name", "model.latents", "model.hidden", "steps", "seeds")
        ) + tuple(found[f"optimizer.{group}.learning_rate"] for group in ("encoder", "decoder"))
        of_estimator = [field for field in found if field.startswith("estimator.")]
        groups.setdefault(key, []).append({field: found[field] for field in found if field not in of_estimator})
        assert found["objective.generative_samples"] == "independent"
        assert found["optimizer.prior.reduction"] == "mean"
    for settings in groups.values():
        assert len(settings) > 1
        assert all(other == settings[0] for other in settings)
