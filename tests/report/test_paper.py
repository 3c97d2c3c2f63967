"""The paper's numbers are where they should be, and every place of its tables has a config that trains it."""

import pathlib
import shlex
import sys
from unittest import mock

import pytest
from absl import flags
from ml_collections import config_flags
from synthetic import config_at

from disarm_jax.command_line import get_config
from disarm_jax.experiment.config import resolve
from disarm_jax.report import paper
from disarm_jax.report.paper import Place

ROOT = pathlib.Path(__file__).parent.parent.parent
PLACES = list(dict.fromkeys(place for place, _ in paper.NUMBERS))


def test_the_tables_have_228_numbers_of_which_168_are_different():
    cells = [
        (table.name, block.split, Place(*row, column))
        for table in paper.TABLES
        for block in table.blocks
        for row in block.rows
        for column in block.columns
    ]
    assert len(cells) == len(set(cells)) == 228
    assert {(place, split) for _, split, place in cells} == set(paper.NUMBERS)
    assert len(paper.NUMBERS) == 168
    sizes = {table.name: sum(name == table.name for name, *_ in cells) for table in paper.TABLES}
    assert sizes == {"table_1": 60, "table_elbo": 48, "table_layers": 72, "table_multisample": 48}


@pytest.mark.parametrize(
    ("place", "split", "number"),
    [
        (Place("mnist", "linear", "disarm"), "train", (-116.30, 0.08)),
        (Place("mnist", "nonlinear", "arm"), "test", (-101.15, 0.39)),
        (Place("fashion_mnist", "linear", "relax"), "train", (-255.83, 0.03)),
        (Place("fashion_mnist", "layers_3", "reinforce_loo"), "train", (-239.88, 0.03)),
        (Place("omniglot", "layers_4", "relax"), "test", (-109.95, 0.12)),
        (Place("mnist", "linear", "vimco_2"), "train", (-115.80, 0.08)),
        (Place("fashion_mnist", "nonlinear", "multisample_disarm_1"), "test", (-239.53, 0.10)),
        (Place("omniglot", "nonlinear", "multisample_disarm_10"), "train", (-108.29, 0.04)),
        (Place("omniglot", "nonlinear", "vimco_20"), "test", (-112.42, 0.07)),
    ],
)
def test_numbers_are_the_papers(place, split, number):
    assert paper.NUMBERS[place, split] == number


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_the_command_of_a_place_trains_what_the_place_is_about(place):
    *program, file = shlex.split(paper.command_of(place))[:5]
    assert program == ["python", "-m", "main", "--config"]
    path, colon, argument = file.partition(":")
    assert (ROOT / path).is_file()
    values = flags.FlagValues()
    with mock.patch.object(sys, "argv", ["main", *shlex.split(paper.command_of(place))[5:]]):  # where it looks
        config_flags.DEFINE_config_dict(
            "config", get_config(f"{pathlib.Path(path).stem}{colon}{argument}"), True, flag_values=values
        )
        values(sys.argv)
    config = resolve(values.config)
    assert paper.place_of(config) == place
    assert config == paper.reference_of(place, get_config)
    assert config["steps"] == paper.STEPS
    assert len(config["seeds"]) == paper.SEEDS


@pytest.mark.parametrize(
    "overrides",
    [
        {"dataset.name": "mnist5k"},
        {"dataset.name": "npz", "dataset.path": "omniglot.npz"},
        {"dataset.name": "binarized_mnist"},
        {"estimator.name": "reinforce"},
        {"model.name": "custom_parts:QuietVAE"},
        {"model.latents": (200, 200), "model.hidden": (200, 200)},
        {"model.latents": (200,) * 5},
        {"objective.name": "multisample", "objective.num_samples": 5, "estimator.name": "vimco"},
    ],
)
def test_what_the_paper_does_not_have_has_no_place(overrides):
    assert paper.place_of(config_at(Place("mnist", "linear", "disarm"), **overrides)) is None
