"""Sweeps so small that they take no time but that of their processes to start."""

import pathlib
import sys
import warnings
from unittest import mock

import pytest
import submitit  # noqa: F401 - not later: it gives its logger the stderr of that moment, be it a test's, and closes others
from absl import flags
from tiny import tiny_settings

from scripts import sweep

CONFIG = """
from configs import base


def get_config():
    config = base.get_config()
    config.update_from_flattened_dict({settings!r})
    return config


def get_hyper(hyper):
    return {hyper}
"""
ESTIMATORS = 'hyper.sweep("config.estimator.name", ["arm", "disarm", "reinforce_loo"])'


def write_config(folder: pathlib.Path, hyper: str = ESTIMATORS, **overrides) -> str:
    """A config file that states a sweep of the tiny config."""
    file = folder / "sweep_config.py"
    file.write_text(CONFIG.format(settings=tiny_settings(folder, **overrides), hyper=hyper))
    return str(file)


def write_program(folder: pathlib.Path, name: str, script: str) -> None:
    """A pretended program of Slurm."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def run(*arguments: str | pathlib.Path) -> int | str:
    """What the command exits with, in this process: a status, or a line on standard error."""
    values, argv = flags.FlagValues(), ["sweep", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv):  # where ml_collections looks for the fields
        sweep.define_flags(values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the way in which ml_collections reads a file
            rest = values(argv)
        with pytest.raises(SystemExit) as ended:
            sweep.main(rest, values)
    return ended.value.code
