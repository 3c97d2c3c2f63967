"""All fields of a config, each with its default, what it may be, and what it means; and a config that cannot change.

The defaults are the settings of the paper. A field that is None has a default that depends on the others.
"""

import difflib
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from disarm_jax import data
from disarm_jax.data.binarization import MODES
from disarm_jax.models import KERNEL_INITS

# RELAX's control variate in layer t. "released", as in the paper's released code: η (f + r), with r of the previous
# layer's bits (the image for the first layer) and z_t, and one temperature and one η for all layers. "image": η f + r,
# with r of the image and z_t. "z": η f + r, with r of z_t alone.
RELAX_FORMS = ("released", "image", "z")
MAX_SHOWN = 300  # letters of a value in an error


class ConfigError(ValueError):
    """A config that states no experiment; its message names the field, the value and what is accepted."""


class Rule(NamedTuple):
    """What the value of a field may be.

    Attributes:
      good: whether a value is accepted.
      accepted: what is accepted, in words.
      kind: the type of the values, for a field that is None by default.
      words: the accepted words, to guess which one was meant.
    """

    good: Callable[[Any], bool]
    accepted: str
    kind: type = str
    words: tuple[str, ...] = ()


class Field(NamedTuple):
    """A field: its default, its rule, and its meaning in one line."""

    default: Any
    rule: Rule
    meaning: str


def is_import_path(name: Any) -> bool:
    """Whether a name is one to import, as in "package.module:name"."""
    return isinstance(name, str) and ":" in name


def imported(path: str) -> Any:
    """What "package.module:name" names; a ValueError says which half of it is not there."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        raise ValueError(f"cannot import {module_name!r} of {path!r}: {error}") from error
    if not callable(getattr(module, attribute, None)):
        raise ValueError(f"the module {module_name} has no function or class {attribute!r}")
    return getattr(module, attribute)


def part(name: str, known: Mapping[str, Any]) -> Any:
    """What a name in a config stands for: one of those that are known, or what an import path names."""
    return imported(name) if is_import_path(name) else known[name]


def refuse(field: str, value: Any, accepted: str, words: Iterable[str] = ()) -> NoReturn:
    """Raises a ConfigError that names the accepted values, and the word that was probably meant."""
    shown = repr(plain(value))
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
    raise ConfigError(f"{field} is {shown}; accepted: {accepted}{did_you_mean(str(value)[:MAX_SHOWN], words)}")


def did_you_mean(value: Any, words: Iterable[str]) -> str:
    """The end of an error message: the word that is most like a misspelt one, if there is one.

    >>> did_you_mean("disram", ["arm", "disarm"]), did_you_mean("x", ["arm"])
    ("; did you mean 'disarm'?", '')
    """
    close = difflib.get_close_matches(str(value), list(words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(*words: str) -> Rule:
    """One of some words."""
    return Rule(lambda value: isinstance(value, str) and value in words, ", ".join(words), words=words)


def _named(*names: str) -> Rule:
    """One of some names, or an import path, which is tried when all fields have the right form."""
    good = lambda value: isinstance(value, str) and (is_import_path(value) or value in names)
    return Rule(good, f"{', '.join(names)}, or an import path 'module:name'", words=names)


def _integer(least: int, most: int = 2**31 - 1) -> Rule:
    good = lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return Rule(good, f"an integer from {least} to {most}", int)


def _real(good: Callable[[float], bool], accepted: str) -> Rule:
    is_real = lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return Rule(lambda value: is_real(value) and good(value), accepted, float)


def _several(item: Rule, least: int, accepted: str) -> Rule:
    good = lambda value: isinstance(value, list) and len(value) >= least and all(map(item.good, value))
    return Rule(good, accepted, tuple)


def _optional(rule: Rule) -> Rule:
    return rule._replace(good=lambda value: value is None or rule.good(value), accepted=f"{rule.accepted}, or None")


_ANYTHING = Rule(lambda value: True, "", object)
_COUNT, _SEED = _integer(1), _integer(0, 2**32 - 1)
_FLAG = Rule(lambda value: isinstance(value, bool), "True or False", bool)
_PATH = Rule(lambda value: isinstance(value, str), "a path")
_OPTIONS = Rule(lambda value: isinstance(value, dict), "a section of options", dict)
_GRID = Rule(lambda value: isinstance(value, str), "'field=number,number', several with spaces between them")
_NAME = Rule(lambda value: isinstance(value, str), "a name")
_FROM_ZERO = _real(lambda value: value >= 0, "a number from 0 on")
_FRACTION = _real(lambda value: 0 <= value < 1, "a number from 0 to below 1")
_POSITIVE = _real(lambda value: value > 0, "a positive number")
_PAIR = Rule(
    lambda value: isinstance(value, list) and len(value) == 2 and _COUNT.good(value[0]) and _integer(2).good(value[1]),
    "",
)
_LATENTS = Rule(
    lambda value: _several(_COUNT, 1, "").good(value) or _several(_PAIR, 1, "").good(value),
    "one or more positive integers, such as (200,), or a pair of variables and classes, such as ((20, 10),)",
)
_REDUCTION = one_of("mean", "sum")


def _optimizer(name: str, learning_rate: float, b1: float = 0.9) -> dict[str, Field]:
    return {
        "name": Field(name, _named("adam", "sgd"), 'adam, sgd, or "module:function", such as "optax:adamw"'),
        "learning_rate": Field(learning_rate, _FROM_ZERO, "the highest one of a schedule"),
        "b1": Field(b1, _FRACTION, "of adam"),
        "b2": Field(0.999, _FRACTION, "of adam"),
        "eps": Field(1e-7, _POSITIVE, "of adam"),
        "schedule": Field("constant", _named("constant", "cosine"), 'after the warm-up; or "module:function"'),
        "warmup_steps": Field(0, _integer(0), "steps in which the rate rises from 0 in proportion"),
        "decay_steps": Field(None, _optional(_COUNT), "where a schedule ends; None: at the run's last step"),
        "clip": Field(None, _optional(_POSITIVE), "largest norm of the group's gradient; None: any"),
        "options": Field({}, _OPTIONS, "further arguments of a custom optimiser"),
    }


# Options of estimators with their types, for the command line; None is the estimator's own default. For a multi-sample
# bound, num_pairs or num_samples is objective.num_samples. An option that the estimator does not have is refused.
_ESTIMATOR_OPTIONS: dict[str, tuple[type, str]] = {
    "num_pairs": (int, "of antithetic samples"),
    "num_samples": (int, "K"),
    "repeats": (int, "of vimco: estimates that are averaged"),
    "baseline": (str, "of vimco: arithmetic or geometric"),
    "configurations": (str, "of multisample_disarm"),
    "init_beta": (float, "of interpolated"),
    "per_dimension": (bool, "of interpolated and arms_interpolated"),
    "init_temperature": (float, "of rebar and relax"),
    "init_scale": (object, "of control variates: a number, or a pair for expansions at the mean"),
    "probes": (int, "of expansions whose structure is not known"),
    "hidden": (int, "units of the networks of relax and rodeo"),
    "later_layers": (str, "of relax in hierarchies"),
    "group_size": (int, "of multisample_arms"),
    "temperature": (float, "of gumbel_sigmoid and gumbel_softmax"),
    "hard": (bool, "of gumbel_sigmoid and gumbel_softmax"),
}
_OPTION_FIELDS = {
    name: Field(None, _ANYTHING._replace(kind=kind), text) for name, (kind, text) in _ESTIMATOR_OPTIONS.items()
}

_WITH_MODULE = ', or "module:function"'
_BOUND_SAMPLES = "for a multi-sample objective evaluations of a step, 2K"
_FREELY = "any number of positive integers, such as (200, 200)"
_AS_A_GRID = "as in 'optimizer.encoder.learning_rate=1e-4,3e-4'"
_SEEDS = "one or more different integers from 0 to 4294967295, such as (0, 1, 2)"
_SAMPLES = (
    "of decoder and prior: independent, one fresh sample; shared, the estimator's. None: shared for a bound alone"
)
_RELAX = "RELAX's η (f + r) with r of the layer before and z; image: η f + r, r of the image and z; z: r of z alone"

FIELDS: dict[str, Any] = {
    "dataset": {
        "name": Field("mnist", _named(*data.dataset_names()), ", ".join(data.dataset_names()) + _WITH_MODULE),
        "source": Field("auto", _NAME, "where it is taken from, see docs/data.md"),
        "data_dir": Field(None, _optional(_PATH), "of the cached files; None: DISARM_DATA_DIR or ~/.cache/disarm_jax"),
        "path": Field(None, _optional(_PATH), "of the npz file, or of original files outside data_dir"),
        "binarization": Field("dynamic", one_of(*MODES), ", ".join(MODES)),
        "static_seed": Field(0, _integer(0), "of the one draw of static binarisation"),
    },
    "model": {
        "name": Field(None, _optional(_named("bernoulli_vae", "categorical_vae")), "None: the one for the latents"),
        "latents": Field((200,), _LATENTS, "bits of each layer, the image's first; or variables and classes"),
        "hidden": Field((), _several(_COUNT, 0, _FREELY), "units of every conditional; () is linear"),
        "negative_slope": Field(0.3, _FROM_ZERO, "of the LeakyReLU"),
        "kernel_init": Field("glorot_uniform", one_of(*KERNEL_INITS), ", ".join(KERNEL_INITS)),
        "center_input": Field(True, _FLAG, "the encoder sees the image less the mean of the training set"),
        "signed_input": Field(True, _FLAG, "the decoder sees 2b − 1"),
        "output_bias_from_mean": Field(True, _FLAG, "the decoder's bias starts at the logit of the training mean"),
        "options": Field({}, _OPTIONS, "further arguments of a custom model"),
    },
    "objective": {
        "name": Field("elbo", _named("elbo", "multisample"), "elbo, multisample" + _WITH_MODULE),
        "num_samples": Field(None, _optional(_COUNT), "K of the bound; None: 1, or the estimator's"),
        "stop_q": Field(None, _optional(_FLAG), "log q inside f is a constant; None: for the ELBO"),
        "generative_samples": Field(None, _optional(one_of("shared", "independent")), _SAMPLES),
        "options": Field({}, _OPTIONS, "arguments of a custom objective"),
    },
    "estimator": {
        "name": Field("disarm", _ANYTHING._replace(kind=str), "of disarm_jax.estimator_names()" + _WITH_MODULE),
        "options": Field(_OPTION_FIELDS, _OPTIONS, "None: the estimator's own default"),
        "relax_form": Field("released", one_of(*RELAX_FORMS), _RELAX),
    },
    "optimizer": {
        "encoder": _optimizer("adam", 1e-4) | {"reduction": Field("sum", _REDUCTION, "of gradients over the batch")},
        "decoder": _optimizer("adam", 1e-4) | {"reduction": Field("mean", _REDUCTION, "of gradients over the batch")},
        # A comparison of estimators wants one value for all, since a sum is a rate that is batch_size times as high.
        "prior": _optimizer("sgd", 1e-2)
        | {"reduction": Field(None, _optional(_REDUCTION), "None: sum for RELAX and multi-sample bounds, else mean")},
        "tunables": _optimizer("adam", 1e-4, b1=0.999),  # of the estimator
    },
    "steps": Field(1_000_000, _COUNT, "updates"),
    "batch_size": Field(50, _COUNT, "images of a step"),
    "matmul_precision": Field(
        "float32",
        one_of("float32", "tensorfloat32", "bfloat16", "default"),
        "of matrix products; default is JAX's choice: less than float32 on most GPUs",
    ),
    "seeds": Field((0, 1, 2, 3, 4), _several(_SEED, 1, _SEEDS), "a run for each, all in one program"),
    "grid": Field("", _GRID, f"for each number and seed a run in the same program, {_AS_A_GRID}; see docs/grid.md"),
    "log_every": Field(1_000, _COUNT, "steps that run as one compiled program, and between lines of metrics.jsonl"),
    "unroll": Field(1, _COUNT, "steps in one iteration of the compiled loop; more may suit a GPU, and compile longer"),
    "eval": {  # everything is evaluated at the end as well
        "train_every": Field(20_000, _COUNT, "steps between bounds on the training set"),
        "test_every": Field(100_000, _COUNT, "and on the validation and test sets: as long as 3,000 steps each"),
        "train_samples": Field(None, _optional(_COUNT), f"None: 1; {_BOUND_SAMPLES}"),
        "test_samples": Field(None, _optional(_COUNT), f"None: 100; {_BOUND_SAMPLES}"),
        "batch_size": Field(100, _COUNT, "images at once"),
    },
    "checkpoint": {
        "every": Field(None, _optional(_COUNT), "steps between checkpoints; None: by time alone"),
        "minutes": Field(5.0, _optional(_POSITIVE), "after which there is one at the next chunk; None: by steps alone"),
        "keep": Field(3, _COUNT, "how many of the newest are kept"),
    },
    "variance": {  # of the inference network's gradient
        "decay": Field(0.999, _FRACTION, "of the moving averages"),
        "estimators": Field((), _ANYTHING._replace(kind=tuple), "measured besides: 'arm', 'vimco(num_samples=10)', …"),
    },
    "writers": Field(
        ("tensorboard",),
        _several(_named("tensorboard", "wandb"), 0, "names of writers: tensorboard, wandb, or import paths"),
        "beside metrics.jsonl",
    ),
}


class Config(Mapping[str, Any]):
    """A resolved config, with fields as attributes and as items; neither it nor anything in it can be changed.

    >>> config = Config({"optimizer": {"prior": {"learning_rate": 0.1}}, "seeds": [0, 1]})
    >>> config.optimizer.prior.learning_rate, config["seeds"]
    (0.1, (0, 1))
    """

    def __init__(self, fields: Mapping[str, Any]):
        """Takes over nested dicts and lists as they are now."""
        object.__setattr__(self, "_fields", {name: _frozen(value) for name, value in fields.items()})

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(f"the config has no field {name!r}; accepted: {', '.join(self._fields)}")
        return self._fields[name]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a resolved config cannot be changed, so neither can its field {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and plain(self) == plain(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Config({plain(self)})"


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Config(value)
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """Nested dicts, tuples as lists and numpy numbers as Python's: what JSON can hold, so that files compare equal."""
    if isinstance(value, Mapping | ConfigDict):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All fields with dotted names, the values as in JSON."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def defaults(fields: Mapping[str, Any] = FIELDS) -> ConfigDict:
    """A config with every field at its default, as `configs/base.py` returns it."""
    config = ConfigDict()
    for name, field in fields.items():
        value = field.default if isinstance(field, Field) else field
        if isinstance(value, dict):
            config[name] = defaults(value)
        else:
            config[name] = placeholder(field.rule.kind) if value is None else value
    return config


def described(fields: Mapping[str, Any] = FIELDS, prefix: str = "--config.") -> Iterator[str]:
    """Every field with its default and its meaning, a line each, for `--help`."""
    for name, field in fields.items():
        value = field.default if isinstance(field, Field) else field
        if isinstance(field, Field):
            shown = "" if isinstance(value, dict) else f"={value!r}"
            yield f"  {prefix}{name}{shown}  {field.meaning}"
        if isinstance(value, dict):
            yield from described(value, f"{prefix}{name}.")


def check_form(section: Any, fields: Mapping[str, Any] = FIELDS, where: str = "") -> None:
    """Refuses a section that does not have just the fields of the table, and values that break a rule.

    Raises:
      ConfigError: for the first that is wrong.
    """
    name, known = where.rstrip(".") or "config", ", ".join(fields)
    if not isinstance(section, dict):
        refuse(name, section, f"a section with the fields {known}")
    for key in sorted(fields.keys() ^ section.keys()):
        problem, guess = ("has no field", "") if key in fields else ("has the unknown field", did_you_mean(key, fields))
        raise ConfigError(f"{name} {problem} {key!r}; accepted: {known}{guess}")
    for key, field in fields.items():
        if not isinstance(field, Field):
            check_form(section[key], field, f"{where}{key}.")
        elif not field.rule.good(section[key]):
            refuse(f"{where}{key}", section[key], field.rule.accepted, field.rule.words)


def rule_of(field: str) -> Rule:
    """The rule of a field, by its dotted name."""
    found: Any = FIELDS
    for name in field.split("."):
        found = found[name]
    return found.rule


def has_classes(latents: Sequence[Any]) -> bool:
    """Whether `model.latents` has a layer of categorical variables, a pair (D, C), and not a number of bits."""
    return any(isinstance(layer, Sequence) for layer in latents)
