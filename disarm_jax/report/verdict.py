"""Whether the paper is reproduced: how many numbers match, how many should, and which of its claims hold."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from disarm_jax.report import palette, paper
from disarm_jax.report.cells import MATCH, MATCH_WITHIN, MISSING, NOT_COMPARABLE, VARIANT, Cell, Comparison
from disarm_jax.report.claims import CLAIMS, FAILS, HOLDS, NOT_RUN, UNDECIDED, Judgement, judge
from disarm_jax.report.palette import LIMIT, NEUTRAL, count


class Verdict(NamedTuple):
    """What a report says first.

    Attributes:
      cells: that are comparable.
      judgements: of the paper's claims, in order.
      sentences: that sum it up.
    """

    cells: tuple[Cell, ...]
    judgements: tuple[Judgement, ...]
    sentences: tuple[str, ...]


def give_verdict(comparison: Comparison) -> Verdict:
    """Counts the comparable cells and judges the claims."""
    cells = tuple(cell for cell in comparison.all_cells() if cell.counts)
    judgements = tuple(judge(claim, comparison) for claim in CLAIMS)
    return Verdict(cells, judgements, (*_on_numbers(cells, comparison), _on_claims(judgements)))


def _on_numbers(cells: Sequence[Cell], comparison: Comparison) -> list[str]:
    everything = comparison.all_cells()
    verdicts = [cell.verdict for cell in everything]
    rest = [
        f"{verdicts.count(word)} {text}"
        for word, text in (
            (VARIANT, "of named variants (not counted)"),
            (NOT_COMPARABLE, "not comparable"),
            (MISSING, "without a run"),
        )
        if word in verdicts
    ]
    others = f"Beside these: {', '.join(rest)}." if rest else ""
    if not cells:
        return [f"None of our numbers is comparable with the paper's {len(comparison.cells)} yet.", others]
    matches = sum(cell.verdict == MATCH for cell in cells)
    single = sum(cell.one_seed for cell in cells)
    what = f"{matches} of {count(len(cells), 'comparable number')} within 2 combined standard errors of the paper's"
    missed, expected = len(cells) - matches, expected_misses(cells)
    return [
        f"{what} ({len(comparison.cells)} numbers in all)"
        + (f"; {single} of these rest on a single seed of ours." if single else "."),
        f"{missed} further apart; a perfect reproduction would have {expected:.1f} on average, more than one in twenty "
        "since the spread between seeds is itself estimated from a few. Train and test numbers of a run are not "
        "independent of each other.",
        others,
    ]


def _on_claims(judgements: Sequence[Judgement]) -> str:
    verdicts = [judgement.verdict for judgement in judgements]
    run = len(verdicts) - verdicts.count(NOT_RUN)
    if not run:
        return f"None of the paper's {len(judgements)} claims below can be judged yet."
    found = {
        HOLDS: "hold on every model run",
        UNDECIDED: "undecided (they fail by less than the noise)",
        FAILS: "do not hold on some model",
    }
    listed = ", ".join(f"{verdicts.count(word)} {text}" for word, text in found.items() if word in verdicts)
    return f"Of the paper's {len(judgements)} claims below, {run} can be judged: {listed}."


def expected_misses(cells: Sequence[Cell]) -> float:
    """How many differences exceed 2 on average if our runs and the paper's have the same distribution."""
    return sum(_chance(len(cell.our_value.seeds)) for cell in cells)


@functools.cache
def _chance(seeds: int) -> float:
    """The probability that a number of so many seeds misses one with the same normal distribution, by simulation."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(100_000, seeds)), rng.normal(size=(100_000, paper.SEEDS))
    spread = theirs.std(axis=1, ddof=1)
    stderr = spread if seeds == 1 else ours.std(axis=1, ddof=1) / math.sqrt(seeds)
    gaps = (ours.mean(axis=1) - theirs.mean(axis=1)) / np.hypot(stderr, spread / math.sqrt(paper.SEEDS))
    return float(np.mean(np.abs(gaps) > MATCH_WITHIN))


def histogram(cells: Sequence[Cell]) -> Figure:
    """The differences of comparable cells, with the standard normal density over them."""
    gaps = np.array([cell.difference for cell in cells])
    limit = max(4, math.ceil(np.abs(gaps).max(initial=0)))
    edges = np.arange(-limit, limit + 0.25, 0.5)
    with matplotlib.rc_context(palette.FIGURE):
        figure = Figure(figsize=(6.5, 3), layout="constrained")
        ax = figure.subplots()
        ax.hist(gaps, edges.tolist(), color=NEUTRAL, alpha=0.45, rwidth=0.94, label=f"our {count(len(gaps), 'number')}")
        x = np.linspace(-limit, limit, 400)
        density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        ax.plot(x, len(gaps) * 0.5 * density, color=LIMIT, linewidth=1.2, label="standard normal")
        for edge in (-MATCH_WITHIN, MATCH_WITHIN):
            ax.axvline(edge, color=NEUTRAL, linewidth=0.8, linestyle="--")
        ax.locator_params(axis="y", integer=True)
        ax.set(xlabel="ours less the paper's, in combined standard errors", ylabel="numbers")
        ax.set_title(f"mean {gaps.mean():+.2f}, standard deviation {gaps.std():.2f}")
        ax.legend(frameon=False)
    return figure


def markdown(verdict: Verdict) -> str:
    """verdict.md."""
    parts = ["# Verdict", "\n".join(f"- {sentence}" for sentence in verdict.sentences if sentence)]
    parts += ["![Histogram of the differences](differences.png)"] if verdict.cells else []
    parts.append("## The paper's claims")
    lines = ["| claim | verdict | our runs | in the paper's numbers |", "|---|---|---|---|"]
    for judgement in verdict.judgements:
        row = (judgement.claim.text, judgement.verdict, judgement.counts, in_paper(judgement))
        lines.append(f"| {' | '.join(row)} |")
    parts.append("\n".join(lines))
    for judgement in verdict.judgements:
        if findings := (*judgement.findings, *judgement.early):
            parts += [f"### {judgement.claim.text}", "\n".join(f"- {finding}" for finding in findings)]
    return "\n\n".join(parts) + "\n"


def in_paper(judgement: Judgement) -> str:
    """On how many models the paper's own numbers have a claim."""
    return "no numbers" if judgement.in_paper is None else f"{judgement.in_paper} of {judgement.models}"
