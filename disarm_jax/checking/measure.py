"""Measures estimators on one f: their mean against the exact gradient, and variance × time."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import categorical
from disarm_jax.checking.facts import Facts
from disarm_jax.checking.function import message, tame
from disarm_jax.checking.report import Finding, Measured
from disarm_jax.estimators import registry, variance
from disarm_jax.estimators.estimator import Estimator

MOST_OUTCOMES = 1024  # of one row
_MOST_TERMS = 2**22  # of the sum over K-tuples of outcomes
_UNUSUAL, _IMPOSSIBLE = 1e-3, 1e-6  # probabilities
_REPEATS = 8
_CANDIDATES = {
    (1, "expectation"): (
        "reinforce_loo",
        "arm",
        "disarm",
        "arms",
        "disarm_midpoint",
        "disarm_quadratic",
        "relax",
        "double_cv",
    ),
    (1, "bound"): ("vimco", "multisample_disarm", "multisample_arms", "multisample_disarm_quadratic"),
    (2, "expectation"): ("reinforce_loo", "disarm_sb", "disarm_tree", "disarm_iw"),
    (2, "bound"): (),
}


def _outcomes(event: tuple[int, ...]) -> np.ndarray | None:
    """Returns all outcomes of one row, `[M, *event]`; None if there are too many."""
    classes = 2 if len(event) == 1 else event[1]
    if event[0] * math.log(classes) > math.log(MOST_OUTCOMES) + 1e-9:
        return None
    index = np.indices((classes,) * event[0]).reshape(event[0], -1).T
    return index.astype(np.float64) if len(event) == 1 else np.eye(classes)[index]


def _probabilities(logits: np.ndarray, outcomes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probabilities q `[M, *batch]` of the outcomes, and their scores `[M, *batch, *event]`, in float64."""
    event_ndim = outcomes.ndim - 1
    z = outcomes.reshape(len(outcomes), *(1,) * (logits.ndim - event_ndim), *outcomes.shape[1:])
    if event_ndim == 1:
        p = 0.5 + 0.5 * np.tanh(0.5 * logits)
        return np.prod(z * p + (1 - z) * (1 - p), axis=-1), z - p
    p = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    p = p / np.sum(p, axis=-1, keepdims=True)
    return np.prod(np.sum(z * p, axis=-1), axis=-1), z - p


def exact_gradient(logits: np.ndarray, outcomes: np.ndarray, f_b: np.ndarray, num_samples: int) -> np.ndarray:
    """Computes ∂ E L(b_1, …, b_K) / ∂ logits by enumeration, where L is the K-sample bound, or f itself for K = 1.

    Args:
      logits: `[*batch, *event]`, float64.
      outcomes: `[M, *event]`, all outcomes of a row.
      f_b: `[M, *batch]`, f at the outcomes.
      num_samples: K.
    """
    q, score = _probabilities(logits, outcomes)
    index = np.indices((len(q),) * num_samples).reshape(num_samples, -1)
    bound = np.logaddexp.reduce(f_b[index], axis=0) - math.log(num_samples)
    others = np.prod(q[index[1:]], axis=0)
    given_first = np.sum((others * bound).reshape(len(q), -1, *f_b.shape[1:]), axis=1)
    weight = q * (given_first - np.sum(q * given_first, axis=0))
    return num_samples * np.sum(weight.reshape(*weight.shape, *(1,) * (outcomes.ndim - 1)) * score, axis=0)


class Subject(NamedTuple):
    """What is measured: an estimator with its params, for one f, at logits `[*batch, *event]`."""

    est: Estimator
    params: Any
    logits: jax.Array
    f: Callable
    facts: Facts

    def compile(self, num_draws: int) -> Callable:
        """Returns a compiled function of a key, which computes the moments of `num_draws` draws."""

        def moments(key: jax.Array) -> variance.GradientVariance:
            measure = variance.gradient_variance(self.est)
            return measure(self.params, key, self.logits, self.f, num_draws)

        return jax.jit(moments).lower(jax.random.key(0)).compile()


def check_exact(subject: Subject, key: jax.Array, num_draws: int) -> Finding:
    """Compares the mean of many draws with the exact gradient, if a row has few outcomes."""
    _, _, logits, f, facts = subject
    outcomes = _outcomes(logits.shape[logits.ndim - facts.event_ndim :])
    batch = logits.shape[: logits.ndim - facts.event_ndim]
    terms_per_tuple = facts.bound_samples * math.prod(batch)
    if outcomes is None or len(outcomes) ** facts.bound_samples * terms_per_tuple > _MOST_TERMS:
        text = "There are too many outcomes to enumerate, so the mean of est was not compared with the exact gradient."
        return Finding("exact", "note", f"{text} Try f with fewer bits or classes to have that checked.")
    tamed = tame(np.asarray(logits), facts.event_ndim)
    rows = jnp.broadcast_to(
        jnp.asarray(outcomes, logits.dtype).reshape(-1, 1, *(1,) * len(batch), *outcomes.shape[1:]),
        (len(outcomes), 1, *logits.shape),
    )
    f_b = np.asarray(jax.jit(lambda rows: lax.map(lambda b: f(b)[0], rows))(rows)).astype(np.float64)
    wide = tamed.astype(np.float64)
    f_b = np.where(_probabilities(wide, outcomes)[0] > 0, f_b, 0)
    if not np.all(np.isfinite(f_b)):
        return Finding("exact", "note", "f is not finite at all outcomes, so that there is no exact gradient.")
    exact = exact_gradient(wide, outcomes, f_b, facts.bound_samples)
    found = subject._replace(logits=jnp.asarray(tamed)).compile(num_draws)(key)
    where = "your logits" if np.array_equal(tamed, logits) else "your logits clipped to ±2"
    rounding = 4 * float(jnp.finfo(logits.dtype).eps) * np.max(np.abs(f_b))
    mean, stderr = (np.asarray(x).astype(np.float64) for x in (found.mean, found.mean_stderr))
    return _verdict(mean - exact, np.hypot(stderr, rounding), exact, facts, f"{num_draws:,} draws at {where}")


def _verdict(error: np.ndarray, stderr: np.ndarray, exact: np.ndarray, facts: Facts, draws: str) -> Finding:
    """Returns a finding on the deviation from the exact gradient."""
    z = float(np.max(np.abs(error) / np.where(stderr > 0, stderr, 1), initial=0))
    chance = min(1.0, error.size * math.erfc(z / math.sqrt(2)))
    size = max(float(np.linalg.norm(exact)), np.finfo(np.float64).tiny)
    noise = float(np.linalg.norm(stderr))
    bias = math.sqrt(max(float(np.sum(error**2)) - noise**2, 0.0)) / size
    bias_text = f"a bias of {_percent(bias)} (± {_percent(noise / size)}) of the norm of the gradient"
    if facts.unbiased is False:
        return Finding("exact", "note", f"est is biased by design: {draws} show {bias_text}.")
    z_text = f"the largest of {error.size} z-scores is {z:.1f}, and chance alone gives as much with a probability of"
    if chance >= _UNUSUAL:
        about = f"at most {chance:.1g}" if chance < 1 else "nearly 1"
        return Finding("exact", "ok", f"The mean of {draws} agrees with the exact gradient: {z_text} {about}.")
    if chance >= _IMPOSSIBLE:
        text = f"The mean of {draws} is rather far from the exact gradient: {z_text} at most {chance:.0e}."
        return Finding("exact", "note", f"{text} Try again with another key, or with more draws.")
    text = f"The mean of {draws} is not the exact gradient: {z_text} less than one in a million. est has {bias_text}."
    todo = "Unless est is meant to be biased, look for a mistake in it, in its params or in the structure f declares."
    return Finding("exact", "problem", f"{text} {todo}")


def _percent(x: float) -> str:
    """Formats a share in percent with two digits."""
    return f"{float(f'{100 * x:.2g}'):g}%"


class _Program(NamedTuple):
    """A compiled measurement of one estimator, and its results so far."""

    name: str
    trainable: bool
    run: Callable
    totals: list[float]
    squared_means: list[float]
    seconds: list[float]


def compare(
    subject: Subject, choice: bool | str | Sequence[str], slope: bool, key: jax.Array, num_draws: int
) -> tuple[Finding, tuple[Measured, ...]]:
    """Compares variance × time of est and of other estimators; `choice` and `slope` are those of `candidates`."""
    for_init, for_draws = jax.random.split(key)
    block = num_draws // _REPEATS
    name = subject.facts.name
    programs = [_compile(f"est ({name})" if name else "est", subject, block)]
    names, left_out = candidates(choice, subject.facts, slope)
    for name in names:
        try:
            est = _make(name, subject.facts)
            other = subject._replace(est=est, params=est.init(for_init, subject.logits))
            programs.append(_compile(name, other, block))
        except Exception as error:  # f may lack a derivative that this estimator needs
            left_out.append(f"{name} ({message(error)})")
    _run_in_turns(programs, jax.random.split(for_draws, _REPEATS))
    skipped = f" Not measured: {'; '.join(left_out)}." if left_out else ""
    base = programs[0]
    rounding = 100 * float(jnp.finfo(subject.logits.dtype).eps) ** 2
    if np.mean(base.totals) <= rounding * np.mean(base.squared_means):
        text = "est gives the same gradient at every draw here, up to rounding, so that none can have less variance."
        return Finding("compare", "ok", text + skipped), ()
    rows = sorted((_relative(program, base) for program in programs), key=lambda row: row.product)
    return _advice(rows, num_draws, skipped), tuple(rows)


def _compile(name: str, subject: Subject, num_draws: int) -> _Program:
    return _Program(name, bool(jax.tree.leaves(subject.params)), subject.compile(num_draws), [], [], [])


def _run_in_turns(programs: list[_Program], keys: jax.Array) -> None:
    """Runs every program with every key, in turns, so that other load on the machine affects all of them alike."""
    for program in programs:
        jax.block_until_ready(program.run(keys[0]))  # the first call is slower
    for key in keys:
        for program in programs:
            start = time.perf_counter()
            found = jax.block_until_ready(program.run(key))
            program.seconds.append(time.perf_counter() - start)
            program.totals.append(float(found.total))
            program.squared_means.append(float(np.sum(np.square(found.mean))))


def _make(name: str, facts: Facts) -> Estimator:
    """Returns the estimator of that name, for a bound of as many samples as that of the given estimator."""
    family = registry if facts.event_ndim == 1 else categorical
    if facts.objective == "expectation":
        return family.make_estimator(name)
    try:
        return family.make_estimator(name, num_pairs=facts.bound_samples)
    except TypeError:
        return family.make_estimator(name, num_samples=facts.bound_samples)


def candidates(choice: bool | str | Sequence[str], facts: Facts, slope: bool) -> tuple[list[str], list[str]]:
    """Returns the names of the estimators to compare with, and descriptions of those that were left out.

    Args:
      choice: the `compare` of `check`, not False.
      facts: those of the given estimator.
      slope: whether f has a usable slope.

    Raises:
      ValueError: if a name is unknown, or `choice` is not accepted by `check`.
    """
    family = registry if facts.event_ndim == 1 else categorical
    if choice is True:
        names = _CANDIDATES[facts.event_ndim, facts.objective]
    elif choice == "all":
        infos = map(family.estimator_info, family.estimator_names())
        names = [info.name for info in infos if info.unbiased and info.objective == facts.objective]
    elif isinstance(choice, str) or not isinstance(choice, Sequence):
        raise ValueError(f'compare must be True, False, "all" or a sequence of names, got {choice!r}')
    else:
        names = choice
    taken, left_out = [], []
    for info in map(family.estimator_info, names):
        if info.objective != facts.objective:
            left_out.append(f"{info.name} (its objective is {info.objective})")
        elif info.needs_grad and not slope:
            left_out.append(f"{info.name} (needs ∇f)")
        elif info.name != facts.name:
            taken.append(info.name)
    return taken, left_out


def _relative(program: _Program, base: _Program) -> Measured:
    variance = float(np.mean(program.totals) / np.mean(base.totals))
    seconds = statistics.median(program.seconds) / statistics.median(base.seconds)
    return Measured(program.name, variance, seconds, variance * seconds, program.trainable)


def _advice(rows: list[Measured], num_draws: int, skipped: str) -> Finding:
    """Summarises the sorted table in a sentence; differences below 20% are not worth a change."""
    start = f"Variance and time of {num_draws} draws, relative to est."
    best = rows[0]
    if best.product > 0.8:
        return Finding("compare", "ok", f"{start} No other that was measured is better by more than 20%.{skipped}")
    gain = f"{best.name} has {best.product:.2g} of the variance × time of est: consider it."
    return Finding("compare", "note", f"{start} {gain}{skipped}")
