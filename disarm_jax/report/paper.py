"""The paper's numbers, where they stand in its tables, and the config that gives each of them.

A cell is known by its place: data set, model and column. The columns of the ELBO are estimators, those of the
multi-sample bounds are named after their config files.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.evaluate import bound_name
from disarm_jax.experiment.fields import has_classes, plain

STEPS = 1_000_000
SEEDS = 5
DATASETS = {"mnist": "Dynamic MNIST", "fashion_mnist": "Fashion MNIST", "omniglot": "Omniglot"}
MODELS = {
    "linear": "Linear",
    "nonlinear": "Nonlinear",
    "layers_2": "2-Layer Linear",
    "layers_3": "3-Layer Linear",
    "layers_4": "4-Layer Linear",
}
ELBO = {"reinforce_loo": "REINFORCE LOO", "arm": "ARM", "disarm": "DisARM", "relax": "RELAX"}
MULTISAMPLE = {
    "multisample_disarm_1": "DisARM 1-pair",
    "vimco_2": "VIMCO 2-samples",
    "multisample_disarm_10": "DisARM 10-pairs",
    "vimco_20": "VIMCO 20-samples",
}
_SAMPLES = {"multisample_disarm_1": 2, "vimco_2": 2, "multisample_disarm_10": 20, "vimco_20": 20}  # of the bound


class Number(NamedTuple):
    """A mean over runs and its standard error."""

    mean: float
    stderr: float


class Place(NamedTuple):
    """A cell of the paper, up to the split: keys of `DATASETS`, `MODELS`, and `ELBO` or `MULTISAMPLE`."""

    dataset: str
    model: str
    column: str


class Block(NamedTuple):
    """A part of a table with one header: `rows` are pairs of data set and model."""

    title: str
    split: str
    columns: Mapping[str, str]
    rows: tuple[tuple[str, str], ...]


class Table(NamedTuple):
    """A table of the paper; `name` is that of its files."""

    name: str
    title: str
    blocks: tuple[Block, ...]


# Mean and standard error of 5 runs, in the order of the columns.
_ELBO_NUMBERS = """
linear    mnist         train  -116.57 .15  -117.66 .04  -116.30 .08  -115.93 .15
linear    mnist         test   -109.25 .09  -109.70 .05  -109.13 .04  -108.76 .06
linear    fashion_mnist train  -256.33 .14  -256.80 .16  -255.97 .07  -255.83 .03
linear    fashion_mnist test   -252.55 .12  -252.66 .07  -252.30 .05  -252.13 .06
linear    omniglot      train  -121.66 .10  -122.45 .10  -121.15 .12  -120.79 .09
linear    omniglot      test   -117.70 .10  -118.01 .06  -117.39 .09  -117.10 .08
nonlinear mnist         train  -102.45 .12  -107.32 .28  -102.56 .19  -102.53 .15
nonlinear mnist         test    -97.41 .09  -101.15 .39   -97.52 .11   -97.76 .11
nonlinear fashion_mnist train  -237.66 .11  -241.30 .10  -237.77 .08  -238.23 .17
nonlinear fashion_mnist test   -236.94 .09  -239.37 .15  -237.02 .07  -237.95 .16
nonlinear omniglot      train  -115.26 .15  -118.76 .05  -115.08 .11  -116.56 .15
nonlinear omniglot      test   -114.39 .21  -116.56 .07  -114.26 .14  -116.28 .26
layers_2  mnist         train  -106.34 .10  -107.90 .10  -105.88 .04  -105.48 .04
layers_2  mnist         test    -99.45 .07  -100.31 .07   -99.12 .05   -98.65 .03
layers_2  fashion_mnist train  -244.67 .16  -245.76 .11  -244.04 .06  -243.42 .11
layers_2  fashion_mnist test   -241.98 .14  -242.58 .11  -241.42 .05  -240.84 .08
layers_2  omniglot      train  -116.81 .08  -117.74 .14  -116.38 .10  -115.45 .08
layers_2  omniglot      test   -112.92 .04  -113.39 .10  -112.64 .06  -111.87 .09
layers_3  mnist         train  -102.13 .09  -103.76 .11  -101.63 .09  -101.22 .09
layers_3  mnist         test    -95.40 .05   -96.47 .07   -95.08 .04   -94.53 .06
layers_3  fashion_mnist train  -239.88 .03  -241.21 .12  -239.64 .06  -239.41 .07
layers_3  fashion_mnist test   -237.80 .06  -238.59 .13  -237.59 .09  -237.32 .08
layers_3  omniglot      train  -115.20 .08  -116.18 .13  -114.81 .09  -113.83 .06
layers_3  omniglot      test   -111.52 .07  -112.01 .09  -111.25 .08  -110.22 .06
layers_4  mnist         train  -101.22 .09  -102.82 .08  -100.96 .07   -99.86 .07
layers_4  mnist         test    -94.72 .06   -95.84 .09   -94.60 .04   -93.34 .04
layers_4  fashion_mnist train  -238.86 .09  -239.99 .04  -238.49 .08  -238.23 .08
layers_4  fashion_mnist test   -237.09 .07  -237.72 .05  -236.78 .09  -236.43 .10
layers_4  omniglot      train  -114.83 .13  -116.01 .14  -114.09 .09  -113.64 .14
layers_4  omniglot      test   -111.16 .11  -111.87 .11  -110.58 .08  -109.95 .12
"""
_MULTISAMPLE_NUMBERS = """
linear    mnist         train  -114.06 .13  -115.80 .08  -108.61 .08  -109.40 .07
linear    mnist         test   -113.63 .13  -115.31 .07  -108.18 .08  -108.97 .08
linear    fashion_mnist train  -254.15 .09  -255.41 .10  -247.77 .08  -249.60 .11
linear    fashion_mnist test   -256.14 .10  -257.35 .12  -249.71 .10  -251.52 .13
linear    omniglot      train  -119.89 .06  -121.66 .08  -116.70 .03  -117.68 .07
linear    omniglot      test   -120.23 .07  -121.99 .08  -117.29 .04  -118.29 .07
nonlinear mnist         train  -100.80 .11  -101.14 .10   -93.89 .06   -94.52 .05
nonlinear mnist         test   -102.03 .10  -102.15 .11   -94.78 .07   -95.34 .06
nonlinear fashion_mnist train  -236.91 .10  -236.41 .10  -231.34 .06  -232.01 .08
nonlinear fashion_mnist test   -239.53 .10  -238.99 .11  -233.82 .08  -234.47 .09
nonlinear omniglot      train  -114.45 .06  -114.18 .07  -108.29 .04  -108.37 .05
nonlinear omniglot      test   -118.96 .07  -118.36 .11  -112.43 .07  -112.42 .07
"""


def _numbers() -> Iterator[tuple[tuple[Place, str], Number]]:
    for text, columns in ((_ELBO_NUMBERS, ELBO), (_MULTISAMPLE_NUMBERS, MULTISAMPLE)):
        for line in text.strip().splitlines():
            model, dataset, split, *numbers = line.split()
            for column, mean, stderr in zip(columns, numbers[::2], numbers[1::2], strict=True):
                yield (Place(dataset, model, column), split), Number(float(mean), float(stderr))


NUMBERS: dict[tuple[Place, str], Number] = dict(_numbers())  # by place and split, "train" or "test"

_SINGLE = tuple((dataset, model) for dataset in DATASETS for model in ("linear", "nonlinear"))
_LAYERS = tuple((dataset, model) for dataset in DATASETS for model in ("layers_2", "layers_3", "layers_4"))
TABLES = (
    Table(
        "table_1",
        "Table 1: training bounds",
        (
            Block("Train ELBO", "train", ELBO, _SINGLE + tuple(row for row in _LAYERS if row[0] == "omniglot")),
            Block("Train multi-sample bound", "train", MULTISAMPLE, _SINGLE),
        ),
    ),
    Table(
        "table_elbo",
        "Appendix: models trained with the ELBO",
        (
            Block("Train ELBO", "train", ELBO, _SINGLE),
            Block("Test 100-sample bound", "test", ELBO, _SINGLE),
        ),
    ),
    Table(
        "table_layers",
        "Appendix: models with 2, 3 and 4 stochastic layers",
        (
            Block("Train ELBO", "train", ELBO, _LAYERS),
            Block("Test 100-sample bound", "test", ELBO, _LAYERS),
        ),
    ),
    Table(
        "table_multisample",
        "Appendix: models trained with multi-sample bounds",
        (
            Block("Train multi-sample bound", "train", MULTISAMPLE, _SINGLE),
            Block("Test multi-sample bound", "test", MULTISAMPLE, _SINGLE),
        ),
    ),
)


def place_of(config: Mapping[str, Any]) -> Place | None:
    """The place that a resolved config is for, by data set, kind of model and estimator; None if the paper has none.

    Its other settings need not be the paper's. Custom models and objectives, and data sets under other names
    (`mnist5k`, `binarized_mnist`, custom ones) have no place: their numbers never stand beside the paper's.
    """
    if config["model"]["name"] != "bernoulli_vae" or config["objective"]["name"] not in ("elbo", "multisample"):
        return None
    model, estimator, objective = config["model"], config["estimator"]["name"], config["objective"]
    layers, multisample = len(model["latents"]), objective["name"] == "multisample"
    kind = "nonlinear" if model["hidden"] else "linear" if layers == 1 else f"layers_{layers}"
    column = f"{estimator}_{objective['num_samples']}" if multisample else estimator
    place = Place(config["dataset"]["name"], kind, column)
    fits = (place, "train") in NUMBERS and not (model["hidden"] and layers > 1) and not has_classes(model["latents"])
    return place if fits and multisample == (column in MULTISAMPLE) else None


def estimator_of(place: Place) -> str:
    """The registered name of a place's estimator.

    >>> estimator_of(Place("mnist", "linear", "vimco_20")), estimator_of(Place("mnist", "linear", "arm"))
    ('vimco', 'arm')
    """
    return place.column.rpartition("_")[0] if place.column in MULTISAMPLE else place.column


def metric_of(place: Place, split: str) -> str:
    """What a run calls the number of a cell.

    >>> metric_of(Place("mnist", "linear", "arm"), "test"), metric_of(Place("mnist", "linear", "vimco_2"), "test")
    ('test_100_sample_bound', 'test_2_sample_bound')
    """
    return bound_name(split, _SAMPLES.get(place.column, 1 if split == "train" else 100))


def config_of(place: Place) -> tuple[str, dict[str, Any]]:
    """The config that gives the numbers of a place, a file with or without an argument, and the fields to set in it."""
    settings: dict[str, Any] = {} if place.dataset == "mnist" else {"dataset.name": place.dataset}
    if place.column in MULTISAMPLE:
        name = f"multisample:{place.column.removeprefix('multisample_').replace('_', ',')}"
        return name, settings | ({"model.hidden": (200, 200)} if place.model == "nonlinear" else {})
    name = place.model.replace("_", ":") if place.model.startswith("layers") else f"elbo_{place.model}"
    return name, settings | ({} if place.column == "disarm" else {"estimator.name": place.column})


def command_of(place: Place) -> str:
    """The command that trains what a place is about, as the paper does.

    >>> command_of(Place("omniglot", "linear", "arm"))
    'python -m main --config configs/elbo_linear.py --config.dataset.name=omniglot --config.estimator.name=arm'
    """
    name, settings = config_of(place)
    fields = [f"--config.{field}={value}" for field, value in settings.items()]
    file, colon, argument = name.partition(":")
    return shlex.join(["python", "-m", "main", "--config", f"configs/{file}.py{colon}{argument}", *fields])


def reference_of(place: Place, get_config: Callable[[str], ConfigDict]) -> dict[str, Any]:
    """The resolved config of a place.

    Args:
      place: of the paper.
      get_config: from the name of a config as `config_of` gives it to the config.
    """
    name, settings = config_of(place)
    config = get_config(name)
    config.update_from_flattened_dict(settings)
    return plain(resolve(config))
