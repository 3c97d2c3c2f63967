"""Slopes for the midpoint from past pairs, for an f without derivatives, beside a linear critic: variance and training.

    python -m scripts.past_slopes --out results/midpoint    # five minutes on one core

A ridge regression of f(b) − f(b̃) on b − b̃ over past pairs, where older ones count less, gives slopes w. They are
independent of the coins of the next pair, so that Σ_{k≠i} w_k (b_k − b̃_k) may be subtracted there. The same w make a
critic w·b, which is subtracted from f, and whose gradient is known and added back, for DisARM and for REINFORCE-LOO.
Three functions of bits: best subset selection (the problem of docs/examples/subset.py), and a knapsack with a penalty
or with a hard limit. Writes `past_slopes.md`.
"""

import functools
import importlib
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from jax import lax

import disarm_jax as dj
from disarm_jax.command_line import flags_only, run_script

EXAMPLES = pathlib.Path(__file__).parent.parent / "docs" / "examples"
RATES = (0.03, 0.1, 0.3, 1.0)  # of Adam
TRAJECTORY_RATE = 0.05
KEPT = 0.995  # what the pairs of one step still count in the next


class Method(NamedTuple):
    """A base estimator, its evaluations of f in each step, and what the slopes are used for."""

    base: str  # "disarm" or "reinforce_loo"
    count: int
    control: str = "none"  # "slopes": without the bit's own term; "critic": with it, and its mean added back

    def __str__(self) -> str:
        """As in the tables."""
        name = "REINFORCE-LOO" if self.base == "reinforce_loo" else "DisARM"
        return name + {"none": "", "slopes": " + slopes from past pairs", "critic": " + linear critic"}[self.control]


METHODS = [
    Method(base, count, control)
    for count in (2, 4)
    for base, controls in (("disarm", ("none", "slopes", "critic")), ("reinforce_loo", ("none", "critic")))
    for control in controls
]


class Past(NamedTuple):
    """Moving sums over past pairs."""

    squares: jax.Array  # `[D, D]`, (b − b̃)(b − b̃)ᵀ
    products: jax.Array  # `[D]`, (b − b̃)(f(b) − f(b̃))
    hits: jax.Array  # predicted · found, each predicted before it was seen
    predicted: jax.Array  # predicted²


def nothing(bits: int) -> Past:
    """Before the first pair."""
    return Past(jnp.zeros((bits, bits)), jnp.zeros(bits), jnp.zeros(()), jnp.zeros(()))


def draw(method: Method, key: jax.Array, logits: jax.Array) -> jax.Array:
    """Samples `[count, D]`, for DisARM the first halves of all pairs before the second ones."""
    if method.base == "disarm":
        return jnp.concatenate(dj.bernoulli.antithetic_pairs(key, logits, method.count // 2)[:2])
    return dj.bernoulli.sample(key, logits, method.count)


def slopes(past: Past) -> tuple[jax.Array, jax.Array]:
    """The slopes `[D]` of a ridge regression, and λ between 0 and 1, by how well they have predicted until now."""
    factor = jax.scipy.linalg.cho_factor(past.squares + jnp.eye(len(past.products)))
    scale = jnp.clip(past.hits / jnp.maximum(past.predicted, 1e-30), 0, 1)
    return jax.scipy.linalg.cho_solve(factor, past.products), scale


def learn(method: Method, past: Past, w: jax.Array, b: jax.Array, f_b: jax.Array) -> Past:
    """Adds what a step has seen: differences within pairs, or of each independent sample from their mean."""
    if method.base == "disarm":
        (b, b_tilde), (f_b, f_b_tilde) = jnp.split(b, 2), jnp.split(f_b, 2)
        rows, found = b - b_tilde, f_b - f_b_tilde
    else:
        rows, found = b - jnp.mean(b, axis=0, keepdims=True), f_b - jnp.mean(f_b)
    predicted = rows @ w
    new = Past(rows.T @ rows, rows.T @ found, predicted @ found, predicted @ predicted)
    return jax.tree.map(lambda old, new: KEPT * old + new, past, new)


def estimate(method: Method, w: jax.Array, logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """The gradient `[D]` from samples `[count, D]`, unbiased for every w that is independent of them.

    Both controls subtract all of w·b from f, and differ in what comes back for bit i itself: its mean, or as much as
    was subtracted of it in this pair, which leaves the term of the other bits, ½ h_i Σ_{k≠i} w_k (b_k − b̃_k).
    """
    rest = f_b - b @ w
    if method.base == "reinforce_loo":
        return dj.formulas.reinforce_loo(logits, b, rest) + w * dj.bernoulli.variance(logits)
    (b, b_tilde), (rest, rest_tilde) = jnp.split(b, 2), jnp.split(rest, 2)
    own = w * dj.bernoulli.variance(logits)
    if method.control == "slopes":
        own = 0.5 * w * jnp.mean((b - b_tilde) ** 2, axis=0) * jax.nn.sigmoid(jnp.abs(logits))
    return jnp.mean(dj.formulas.disarm(logits, b, b_tilde, rest, rest_tilde), axis=0) + own


def walk(methods: Sequence[Method], f: Callable, rate: Any, steps: int, start: tuple, key: jax.Array) -> tuple:
    """Descends E f(b) by Adam with the first method. All learn, each from its own samples at the same logits.

    `start` has logits, Adam's state, and a list with the `Past` of each method. Returns what it has become.
    """

    def step(state: tuple, key: jax.Array) -> tuple:
        logits, opt, pasts = state
        grads, learnt = [], []
        for method, past, method_key in zip(methods, pasts, jax.random.split(key, len(methods)), strict=True):
            b = draw(method, method_key, logits)
            f_b = f(b)
            w, scale = slopes(past)
            grads.append(estimate(method, scale * w, logits, b, f_b))
            learnt.append(past if method.control == "none" else learn(method, past, w, b, f_b))
        updates, opt = optax.adam(rate).update(grads[0], opt)
        return (optax.apply_updates(logits, updates), opt, learnt), None

    return lax.scan(step, start, jax.random.split(key, steps))[0]


def begin(methods: Sequence[Method], logits: jax.Array) -> tuple:
    """What `walk` starts from."""
    return logits, optax.adam(1.0).init(logits), [nothing(len(logits)) for _ in methods]


def problems() -> dict[str, tuple[Callable, jax.Array]]:
    """Functions of bits to descend, and logits to start from."""
    sys.path.append(str(EXAMPLES))
    subset, bits = importlib.import_module("subset"), 60
    (x, y), *_ = subset.data(jax.random.key(1), bits)
    gram, response, price = x.T @ x, x.T @ y, jnp.log(bits / subset.TRUE)

    def best_subset(b: jax.Array) -> jax.Array:  # the example's function, also between bits, by matrices of 60 × 60
        root = jnp.where(b > 0, jnp.sqrt(jnp.where(b > 0, b, 1)), 0)
        factor = jnp.linalg.cholesky(jnp.eye(bits) + root[:, None] * gram * root)
        explained = jax.scipy.linalg.solve_triangular(factor, root * response, lower=True)
        return 0.5 * (y @ y - explained @ explained) + jnp.sum(jnp.log(jnp.diag(factor))) + price * jnp.sum(b)

    rng, items = np.random.default_rng(0), 40
    value, weight = (jnp.asarray(rng.uniform(0.1, 1, items), jnp.float32) for _ in range(2))
    limit = 0.4 * jnp.sum(weight)
    return {
        "best subset": (jax.vmap(best_subset), jnp.full(bits, jnp.log(0.2))),
        "knapsack, penalty": (lambda b: -(b @ value) + 5 * jax.nn.relu(b @ weight - limit), jnp.zeros(items)),
        "knapsack, hard limit": (lambda b: -(b @ value) * (b @ weight <= limit).astype(b.dtype), jnp.full(items, -0.8)),
    }


def measure(f: Callable, state: tuple, key: jax.Array, draws: int) -> jax.Array:
    """Variances of all methods, summed over bits, and of DisARM with the slope of f at the midpoint and the best λ."""
    (logits, _, pasts), totals = state, []
    total = lambda grads: jnp.sum(jnp.var(grads, axis=0, ddof=1))
    for method, past, method_key in zip(METHODS, pasts, jax.random.split(key, len(METHODS)), strict=True):
        found, scale = slopes(past)

        def one(key: jax.Array, w: jax.Array, method: Method = method) -> jax.Array:
            b = draw(method, key, logits)
            return estimate(method, w, logits, b, f(b))

        totals.append(total(jax.vmap(one, (0, None))(jax.random.split(method_key, draws), scale * found)))

    def by_derivatives(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        b = draw(METHODS[0], key, logits)
        f_b, w = f(b), jax.grad(lambda c: f(c[None])[0])(jnp.mean(b, axis=0))
        return tuple(estimate(Method("disarm", 2, "slopes"), w, logits, b, f_b) for w in (jnp.zeros_like(w), w))

    plain, less = lax.map(by_derivatives, jax.random.split(key, max(draws // 5, 10)), batch_size=10)
    noise = plain - less
    covariance = 0.5 * (total(plain) + total(noise) - total(less))
    scale = jnp.clip(covariance / jnp.maximum(total(noise), 1e-30), 0, 1)
    return jnp.stack([*totals, totals[0] * total(plain - scale * noise) / total(plain)])


def variances(f: Callable, logits: jax.Array, steps: int, seeds: int, draws: int) -> dict[int, np.ndarray]:
    """Variances `[seeds, methods]`, relative to DisARM's, at three points of DisARM's way down with one pair."""
    measured = jax.jit(lambda args: lax.map(lambda a: measure(f, *a, draws), args))
    state, done, table = jax.tree.map(lambda x: jnp.stack([x] * seeds), begin(METHODS, logits)), 0, {}
    for point in (steps // 20, steps // 4, steps):
        walk_keys, keys = jax.random.split(jax.random.key(point), (2, seeds))
        on = functools.partial(walk, METHODS, f, TRAJECTORY_RATE, point - done)
        state, done = jax.jit(lambda args, on=on: lax.map(lambda a: on(*a), args))((state, walk_keys)), point
        totals = np.asarray(measured((state, keys)))
        table[point] = totals / totals[:, :1]
    return table


def trained(method: Method, f: Callable, logits: jax.Array, evaluations: int, seeds: int) -> np.ndarray:
    """E f(b) after each quarter of a number of evaluations, `[4, rates, seeds]`."""

    def run(rate: jax.Array, key: jax.Array) -> jax.Array:
        def quarter(state: tuple, keys: jax.Array) -> tuple:
            state = walk([method], f, rate, evaluations // 4 // method.count, state, keys[0])
            return state, jnp.mean(f(dj.bernoulli.sample(keys[1], state[0], 200)))

        return lax.scan(quarter, begin([method], logits), jax.random.split(key, (4, 2)))[1]

    keys = jax.random.split(jax.random.key(7), seeds)
    return np.asarray(jax.jit(jax.vmap(jax.vmap(run, (None, 0), 1), (0, None), 1))(jnp.array(RATES), keys))


def with_error(values: np.ndarray, digits: str) -> str:
    """A mean and its standard error."""
    return f"{np.mean(values):{digits}} ± {np.std(values, ddof=1) / len(values) ** 0.5:.1g}"


def make_table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_string("out", "runs/past_slopes", "Folder of the table.", **options)
    flags.DEFINE_integer("seeds", 20, "Runs of each; as many more choose the rate.", lower_bound=2, **options)
    flags.DEFINE_integer("evaluations", 1000, "Evaluations of f in each run.", lower_bound=80, **options)
    flags.DEFINE_integer("num_draws", 500, "Draws that measure each variance.", lower_bound=10, **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures all and writes the tables."""
    flags_only(argv)
    seeds, budget, start = values.seeds, values.evaluations, time.perf_counter()
    names = [[f"{method}", f"{method.count}"] for method in METHODS] + [["DisARM, ∇f at the midpoint, best λ", "3"]]
    lines = [
        f"Made by `python -m scripts.past_slopes --out results/midpoint --seeds={seeds} --evaluations={budget} "
        f"--num_draws={values.num_draws}`. Numbers are means over {seeds} seeds ± their standard errors.",
    ]
    for name, (f, logits) in problems().items():
        lines += ["", f"## {name[0].upper()}{name[1:]}, {len(logits)} bits", ""]
        table = variances(f, logits, budget // 2, seeds, values.num_draws)
        columns = [[with_error(column, ".3f") for column in part.T] for part in table.values()]
        head = ["variance relative to DisARM", "evaluations in a step", *(f"after {point} steps" for point in table)]
        lines += [*make_table(head, [[*n, *r] for n, r in zip(names, zip(*columns, strict=True), strict=True)]), ""]
        rows = []
        for method in METHODS:
            rows.append([str(method), str(method.count)])
            quarters = trained(method, f, logits, budget, 2 * seeds)
            for found in (quarters[0], quarters[-1]):
                mean = np.mean(found[:, :seeds], axis=1)
                best = np.argmin(mean)
                rows[-1] += [with_error(found[best, seeds:], ".2f"), f"{RATES[best]:g}"]
            print(name, *rows[-1], f"{time.perf_counter() - start:.0f} s", sep=", ", flush=True)
        head = ["E f(b), less is better", "evaluations in a step"]
        head += [f"after {budget // 4} evaluations", "best rate", f"after {budget} evaluations", "best rate"]
        lines += make_table(head, rows)
    folder = pathlib.Path(values.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "past_slopes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    run_script(main, define_flags)
