"""What estimators and bounds are called in tables and figures, and the colour and line an estimator is drawn with.

All figures of the project take their colours from here, so an estimator looks the same wherever it is drawn. The main
estimators have the colours of Okabe and Ito, which colour-blind readers can tell apart; relatives share a hue and
differ in their lines. Among the estimators with a control variate the colour says which one it is, and the line what it
was added to: solid DisARM, dashed REINFORCE LOO, dash-dotted ARMS, dotted a multi-sample bound.
"""

import hashlib
from typing import Any, NamedTuple

from disarm_jax.experiment.build import EstimatorSpec, parse_estimator
from disarm_jax.experiment.fields import is_import_path

LINES = ("-", "--", "-.", ":")
NEUTRAL, LIMIT = "#555555", "#000000"  # of notes, and of exact values and limits
FIGURE: dict[Any, Any] = {  # settings of matplotlib
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


class Style(NamedTuple):
    """How an estimator is shown.

    Attributes:
      name: in words.
      color: a hex colour.
      line: a line style of matplotlib.
    """

    name: str
    color: str
    line: str


STYLES = {
    # Those of the paper.
    "disarm": Style("DisARM", "#D55E00", "-"),
    "reinforce_loo": Style("REINFORCE LOO", "#E69F00", "-"),
    "arm": Style("ARM", "#009E73", "-"),
    "relax": Style("RELAX", "#0072B2", "-"),
    "multisample_disarm": Style("Multi-sample DisARM", "#A84300", "-"),
    "vimco": Style("VIMCO", "#56B4E9", "--"),
    "reinforce": Style("REINFORCE", "#999999", "-"),
    "rebar": Style("REBAR", "#332288", "-"),
    "interpolated": Style("Interpolated", "#000000", "-"),
    "naive_multisample_disarm": Style("Naive multi-sample DisARM", "#A84300", ":"),
    # Slopes at midpoints.
    "disarm_midpoint": Style("DisARM midpoint", "#CC79A7", "-"),
    "reinforce_loo_midpoint": Style("REINFORCE LOO midpoint", "#CC79A7", "--"),
    "arms_midpoint": Style("ARMS midpoint", "#CC79A7", "-."),
    "multisample_disarm_midpoint": Style("Multi-sample DisARM midpoint", "#CC79A7", ":"),
    # Expansions at the mean.
    "disarm_quadratic": Style("DisARM quadratic", "#882255", "-"),
    "arms_quadratic": Style("ARMS quadratic", "#882255", "-."),
    "multisample_disarm_quadratic": Style("Multi-sample DisARM quadratic", "#882255", ":"),
    "disarm_taylor": Style("DisARM Taylor", "#AA4499", "-"),
    "disarm_taylor_cross": Style("DisARM Taylor, cross", "#AA4499", "--"),
    "muprop": Style("MuProp", "#332288", "--"),
    # More than two samples.
    "arms": Style("ARMS", "#117733", "-"),
    "arms_interpolated": Style("ARMS interpolated", "#117733", "--"),
    "multisample_arms": Style("Multi-sample ARMS", "#117733", ":"),
    "double_cv": Style("DoubleCV", "#999933", "-"),
    "rodeo": Style("RODEO", "#999933", "--"),
    # One bit at a time.
    "leg": Style("LEG", "#661100", "-"),
    "bitflip": Style("BitFlip", "#661100", "--"),
    "ugc": Style("UGC", "#661100", "-."),
    # Biased.
    "reinmax": Style("ReinMax", "#44AA99", "-"),
    "straight_through": Style("Straight-through", "#44AA99", "--"),
    "gumbel_sigmoid": Style("Gumbel-sigmoid", "#44AA99", "-."),
    "gumbel_softmax": Style("Gumbel-softmax", "#44AA99", ":"),
    # Of classes.
    "disarm_sb": Style("DisARM-SB", "#D55E00", "--"),
    "disarm_tree": Style("DisARM-Tree", "#D55E00", "-."),
    "disarm_iw": Style("DisARM-IW", "#D55E00", ":"),
    "disarm_sb_midpoint": Style("DisARM-SB midpoint", "#8F4A74", "--"),
    "disarm_tree_midpoint": Style("DisARM-Tree midpoint", "#8F4A74", "-."),
    "disarm_iw_midpoint": Style("DisARM-IW midpoint", "#8F4A74", ":"),
}
# For estimators that are not in the table, by a hash of their names.
_OTHER_COLORS = ("#6A3D9A", "#B15928", "#4D7C0F", "#BE185D", "#1E40AF", "#475569", "#0E7490", "#7C3AED")
_COUNTED = {"num_pairs": "pair", "num_samples": "sample", "repeats": "repeat"}


def style_of(name: str) -> Style:
    """The style of an estimator, by its name in configs; a custom one is called what follows the colon of its path.

    >>> style_of("disarm_midpoint").name, style_of("my.module:antithetic").name
    ('DisARM midpoint', 'antithetic')
    """
    if name in STYLES:
        return STYLES[name]
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    color, line = _OTHER_COLORS[number % len(_OTHER_COLORS)], LINES[number // len(_OTHER_COLORS) % len(LINES)]
    return Style(own_name(name), color, line)


def own_name(name: str) -> str:
    """A name of a config as it is shown: of an import path the part behind the colon."""
    return name.partition(":")[2] if is_import_path(name) else name


def spec_of(label: str) -> EstimatorSpec:
    """An estimator with options as in "disarm(num_pairs=2)"; a label that cannot be read is a name without options."""
    try:
        return parse_estimator(label)
    except ValueError:
        return EstimatorSpec(label, {})


def label_name(label: str) -> str:
    """An estimator with its options, in words.

    >>> label_name("disarm(num_pairs=2)"), label_name("vimco(num_samples=10, baseline='geometric')")
    ('DisARM, 2 pairs', 'VIMCO, 10 samples, baseline geometric')
    """
    name, options = spec_of(label)
    return ", ".join([style_of(name).name, *(_option(option, value) for option, value in options.items())])


def _option(option: str, value: Any) -> str:
    if option in _COUNTED:
        return count(value, _COUNTED[option])
    return f"{option.replace('_', ' ')} {value}"


def bound_title(metric: str) -> str:
    """A metric in words.

    >>> bound_title("train_elbo"), bound_title("test_100_sample_bound")
    ('train ELBO', 'test 100-sample bound')
    """
    return metric.replace("_sample", "-sample").replace("_", " ").replace("elbo", "ELBO")


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "seed"), count(2_000, "step")
    ('1 seed', '2,000 steps')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")
