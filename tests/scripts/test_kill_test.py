"""The kill test covers every kind of config, and its table says what happened."""

import pytest

from configs import base
from disarm_jax.experiment.config import resolve
from scripts import kill_test


@pytest.mark.parametrize("name", kill_test.CONFIGS)
def test_every_kind_is_a_config_that_can_be_killed(name):
    config = base.get_config()
    changes = {"dataset.path": "images.npz"} | kill_test.CONFIGS[name]
    config.update_from_flattened_dict(kill_test.TINY | changes)
    resolved = resolve(config)
    assert resolved.checkpoint.every < resolved.eval.train_every < resolved.steps
    assert resolved.checkpoint.every > resolved.log_every


def test_the_table():
    kills = [kill_test.Kill("in a save", True, 120, 0), kill_test.Kill("in training", False, 200, 100)]
    result = kill_test.Result(kills, [100, 150], 50, 1, 12.3)
    *_, line = kill_test.table({"one layer": result}).splitlines()
    assert line == "| one layer | 2 | 1 | 2 | 50 | 1 | 12 |"
    assert kill_test.most_lost(kills, [0, 100, 150]) == 50
