"""The tables of the paper with our numbers in them, as Markdown, CSV and LaTeX.

A table shows the cells that have a number; the commands for all others follow it.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from disarm_jax.report import paper
from disarm_jax.report.cells import MISSING, NOT_COMPARABLE, Cell, Comparison
from disarm_jax.report.names import dataset_name, distinct_names, model_name
from disarm_jax.report.palette import bound_title, count
from disarm_jax.report.pools import Pool
from disarm_jax.report.times import evaluations_of

HEADER = (
    "data set",
    "model",
    "estimator",
    "ours",
    "paper",
    "difference",
    "verdict",
    "seeds",
    "steps",
    "f/step",
    "time",
)
OTHER_HEADER = ("data set", "model", "steps", "estimator", "bound", "value", "seeds", "f/step", "runs")
_CSV_HEADER = ("dataset", "model", "estimator", "variant", "metric", "ours_mean", "ours_stderr", "paper_mean")
_CSV_HEADER += ("paper_stderr", "difference", "verdict", "seeds", "steps", "evaluations_per_step", "relative_time")
_CSV_HEADER += ("relative_time_low", "relative_time_high", "device", "reasons", "remarks", "command")
_LEGEND = (
    "Mean ± standard error over seeds, in nats. Difference: ours less the paper's, in combined standard errors; up to "
    "2 is a match. For a single seed (≈) the paper's spread between seeds stands for ours. Variants are not counted in "
    "the verdict. f/step: evaluations of f per example by the estimator in a training step. Time: of a step of one "
    "seed, in that of DisARM on the same model and device, median and range by the quartiles over chunks of steps; "
    "other work that slows a whole run down evenly cannot be seen."
)
_OTHER_STEP = "† Taken earlier than other numbers of its data set and model, so not to be set beside them."


class Row(NamedTuple):
    """A cell and its texts, in the order of `HEADER`."""

    cell: Cell
    texts: list[str]


class Notes:
    """Numbered remarks below a table; the same text has the same number."""

    def __init__(self):
        """None yet."""
        self.texts: list[str] = []

    def mark(self, cell: Cell) -> str:
        """[1] for a cell that has something to note, nothing for another."""
        against = f"{NOT_COMPARABLE}: {'; '.join(cell.reasons)}" if cell.reasons else ""
        text = ". ".join(part for part in (against, "; ".join(cell.remarks)) if part)
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def legend(table: paper.Table, comparison: Comparison) -> str:
    """What the columns and marks mean, and on which devices the times were taken."""
    devices = sorted({cell.time.device for cell in _cells(table, comparison) if cell.time})
    parts = [_LEGEND, f"Times were taken on {'; '.join(devices)}." if devices else ""]
    marked = any("†" in row.texts[8] for block in table.blocks for row in rows(block, comparison, Notes()))
    return " ".join(filter(None, [*parts, _OTHER_STEP if marked else ""]))


def _cells(table: paper.Table, comparison: Comparison) -> Iterator[Cell]:
    for block in table.blocks:
        for row in block.rows:
            for column in block.columns:
                yield from comparison.at(paper.Place(*row, column), block.split)


def missing_commands(table: paper.Table, comparison: Comparison) -> list[str]:
    """The commands that would fill the empty cells of a table, each once, with a comment that says which cell."""
    cells = {cell.place: cell for cell in _cells(table, comparison) if cell.verdict == MISSING}
    names = (paper.DATASETS, paper.MODELS, paper.ELBO | paper.MULTISAMPLE)
    commands = []
    for place, cell in cells.items():
        title = ", ".join(known[key] for known, key in zip(names, place, strict=True))
        commands.append(f"{cell.command}  # {'; '.join([title, *cell.remarks])}")
    return commands


def missing_title(table: paper.Table, comparison: Comparison) -> str:
    """How many cells of a table are empty."""
    empty = sum(cell.verdict == MISSING for cell in _cells(table, comparison))
    return f"{count(empty, 'cell')} of this table {'has' if empty == 1 else 'have'} no run yet"


def number(mean: float, stderr: float | None) -> str:
    """A mean with its standard error, if there is one.

    >>> number(-116.3, 0.08), number(-116.3, None)
    ('-116.30 ± 0.08', '-116.30')
    """
    return f"{mean:.2f}" if stderr is None else f"{mean:.2f} ± {stderr:.2f}"


def difference(cell: Cell) -> str:
    """With its sign; ≈ if our standard error is borrowed."""
    if cell.difference is None:
        return "–"
    return f"{'≈ ' if cell.one_seed else ''}{round(cell.difference, 1) + 0.0:+.1f}"  # no -0.0


def verdict(cell: Cell) -> str:
    """In words; a match or a difference of a single seed says so."""
    return f"{cell.verdict} (one seed)" if cell.counts and cell.one_seed else cell.verdict


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def rows(block: paper.Block, comparison: Comparison, notes: Notes) -> Iterator[Row]:
    """The cells of a block that have a number, the variants of a cell below it."""
    for dataset, model in block.rows:
        cells = [
            cell
            for column in block.columns
            for cell in comparison.at(paper.Place(dataset, model, column), block.split)
            if cell.value
        ]
        last = max((cell.our_value.step for cell in cells), default=0)
        for cell in cells:
            value = cell.our_value
            yield Row(
                cell,
                [
                    paper.DATASETS[dataset],
                    paper.MODELS[model],
                    cell.name,
                    f"{number(value.mean, value.stderr)} {notes.mark(cell)}".rstrip(),
                    number(*cell.paper),
                    difference(cell),
                    verdict(cell),
                    str(len(value.seeds)),
                    f"{value.step:,}" + ("" if value.step == last else " †"),
                    _or_dash(cell.evaluations, "d"),
                    str(cell.time or "–"),
                ],
            )


def markdown(table: paper.Table, comparison: Comparison) -> str:
    """A line for each cell with a number, then the notes, then the commands for what is missing."""
    notes, parts = Notes(), [f"# {table.title}", _markdown(legend(table, comparison))]
    for block in table.blocks:
        found = [row.texts for row in rows(block, comparison, notes)]
        parts += [f"## {block.title}", _markdown_table(HEADER, found) if found else "No run yet."]
    if notes.texts:
        parts += ["## Notes", "\n".join(f"- [{n}] {_markdown(text)}" for n, text in enumerate(notes.texts, 1))]
    if commands := missing_commands(table, comparison):
        parts += [f"## {missing_title(table, comparison)}", "\n".join(["```sh", *commands, "```"])]
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join(lines + [f"| {' | '.join(map(_markdown, row))} |" for row in rows])


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", " ".join(text.split()))


def latex(table: paper.Table, comparison: Comparison) -> str:
    """A `tabular` for each block and the notes, for a document with booktabs; what is missing is in comments."""
    notes, parts = Notes(), [f"% {table.title}. Needs booktabs."]
    for block in table.blocks:
        lines = [r"\begin{tabular}{lll rrr l rrrr}", r"\toprule"]
        lines += [rf"\multicolumn{{{len(HEADER)}}}{{c}}{{{_latex(block.title)}}} \\", r"\midrule"]
        lines += [" & ".join(map(_latex, HEADER)) + r" \\"]
        dataset = ""
        for _, texts in rows(block, comparison, notes):
            lines += [r"\midrule"] if texts[0] != dataset else []
            lines.append(" & ".join(map(_latex, texts)) + r" \\")
            dataset = texts[0]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    remarks = [legend(table, comparison), *(f"[{n}] {text}" for n, text in enumerate(notes.texts, 1))]
    parts.append("\n".join([r"{\footnotesize", *(_latex(text) + r"\par" for text in remarks), "}"]))
    if commands := missing_commands(table, comparison):
        title = missing_title(table, comparison)
        parts.append("\n".join([f"% {title}:", *(f"% {' '.join(command.split())}" for command in commands)]))
    return "\n\n".join(parts) + "\n"


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_LATEX |= {"±": r"$\pm$", "≈": r"$\approx$", "×": r"$\times$", "–": "--", "−": "$-$", "[": "{[}", "]": "{]}"}
_LATEX |= {"†": r"\dag{}"}


def _latex(text: str) -> str:
    text = re.sub(r"(?<!\w)-(?=\d)", "−", " ".join(text.split()))
    return "".join(_LATEX.get(character, character) for character in text)


def as_csv(table: paper.Table, comparison: Comparison) -> str:
    """A line for each cell, with or without a number, numbers in full."""
    lines = []
    for cell in _cells(table, comparison):
        value = cell.value
        lines.append(
            [
                *cell.place,
                cell.variant,
                cell.metric,
                *((value.mean, value.stderr) if value else (None, None)),
                *cell.paper,
                cell.difference,
                cell.verdict,
                *((len(value.seeds), value.step) if value else (None, None)),
                cell.evaluations,
                *(cell.time or (None,) * 4),
                "; ".join(cell.reasons),
                "; ".join(cell.remarks),
                cell.command,
            ]
        )
    return _csv(_CSV_HEADER, lines)


def _cell(value: Any) -> Any:
    """A cell of a CSV file; text that a spreadsheet would compute as a formula gets an apostrophe before it."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _csv(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *(map(_cell, row) for row in rows)])
    return stream.getvalue()


def other_rows(pools: Sequence[Pool]) -> list[list[str]]:
    """The bounds of runs that stand in no table, in the order of `OTHER_HEADER`; by data set, model and steps."""
    found = []
    for pool, name in _named(pools):
        names = ", ".join(run.name for run in pool.runs)
        metrics = [metric for metric in pool.series if metric.startswith(("train_", "test_"))]
        for metric in metrics:
            value = pool.value(metric)
            assert value is not None  # because the pool has this series
            mean, seeds = number(value.mean, value.stderr), str(len(value.seeds))
            found.append((value.step, _other_row(pool, name, value.step, bound_title(metric), mean, seeds, names)))
        if not metrics:
            step = max(run.step for run in pool.runs)
            found.append((step, _other_row(pool, name, step, "none yet", "–", "–", names)))
    return _sorted(found)


def evaluation_rows(pools: Sequence[Pool]) -> list[list[str]]:
    """What `--mode eval` has found, in the order of `OTHER_HEADER`."""
    found = []
    for pool, name in _named(pools):
        for run in pool.runs:
            for step, metrics in run.evaluations:
                for metric, (mean, stderr, seeds) in metrics.items():
                    texts = [bound_title(metric), number(mean, stderr), str(seeds), run.name]
                    found.append((step, _other_row(pool, name, step, *texts)))
    return _sorted(found)


def _named(pools: Sequence[Pool]) -> Iterator[tuple[Pool, str]]:
    """Pools with the names of their estimators, told apart within a data set and model."""
    groups: dict[tuple[str, str], list[Pool]] = {}
    for pool in pools:
        groups.setdefault((dataset_name(pool.config), model_name(pool.config)), []).append(pool)
    for group in groups.values():
        yield from zip(group, distinct_names(group), strict=True)


def _other_row(pool: Pool, name: str, step: int, bound: str, value: str, seeds: str, runs: str) -> list[str]:
    evaluations = _or_dash(evaluations_of(pool.config), "d")
    where = [dataset_name(pool.config), model_name(pool.config)]
    return [*where, f"{step:,}", name, bound, value, seeds, evaluations, runs]


def _sorted(found: list[tuple[int, list[str]]]) -> list[list[str]]:
    """By data set, model, steps, bound and estimator."""
    order = lambda entry: (*entry[1][:2], entry[0], entry[1][4], entry[1][3])
    return [texts for _, texts in sorted(found, key=order)]


def others_csv(comparison: Comparison, pools: Sequence[Pool]) -> str:
    """`other_rows` and `evaluation_rows` as CSV."""
    return _csv(OTHER_HEADER, other_rows(comparison.others) + evaluation_rows(pools))


def others_markdown(comparison: Comparison, pools: Sequence[Pool]) -> str:
    """`other_rows` and `evaluation_rows` as Markdown."""
    parts = ["# Runs that stand in no table of the paper", _markdown_table(OTHER_HEADER, other_rows(comparison.others))]
    if evaluations := evaluation_rows(pools):
        parts += ["# Bounds evaluated afterwards, with `--mode eval`", _markdown_table(OTHER_HEADER, evaluations)]
    return "\n\n".join(parts) + "\n"
