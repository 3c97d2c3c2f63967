"""The tables of the paper with our numbers in them, as Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from disarm_jax.report import paper
from disarm_jax.report.compare import MISSING, NOT_COMPARABLE, Cell, Comparison, evaluations_of
from disarm_jax.report.names import estimator_name, model_name
from disarm_jax.report.pools import Pool, Value

HEADER = (
    "data set",
    "model",
    "estimator",
    "ours",
    "paper",
    "difference",
    "seeds",
    "steps",
    "f/step",
    "time",
    "verdict",
)
OTHER_HEADER = ("data set", "model", "estimator", "bound", "value", "seeds", "steps", "f/step", "runs")
_CSV_HEADER = ("dataset", "model", "estimator", "metric", "ours_mean", "ours_stderr", "paper_mean", "paper_stderr")
_CSV_HEADER += ("difference", "verdict", "seeds", "steps", "evaluations_per_step", "relative_time", "device")
_CSV_HEADER += ("reasons", "remarks", "command")
_LEGEND = (
    "Mean ± standard error over seeds, in nats. Difference: ours less the paper's, in combined standard errors; up to "
    "2 is a match. It is given for comparable numbers only; for a single seed (≈) the paper's spread between seeds "
    "stands for ours. f/step: evaluations of f per example in a training step. Time: of a step of one seed, in that of "
    "DisARM on the same model and device."
)


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
    """What the columns mean, and on which devices the times were taken."""
    devices = sorted({cell.device for cell in _cells(table, comparison) if cell.device})
    return _LEGEND + (f" Times were taken on {'; '.join(devices)}." if devices else "")


def missing_commands(table: paper.Table, comparison: Comparison) -> list[str]:
    """The commands that would fill the empty cells of a table, each once, with a comment that says which cell."""
    places = dict.fromkeys(cell.place for cell in _cells(table, comparison) if cell.verdict == MISSING)
    names = (paper.DATASETS, paper.MODELS, paper.ELBO | paper.MULTISAMPLE)
    titles = [", ".join(known[key] for known, key in zip(names, place, strict=True)) for place in places]
    return [f"{paper.command_of(place)}  # {title}" for place, title in zip(places, titles, strict=True)]


def _cells(table: paper.Table, comparison: Comparison) -> list[Cell]:
    return [cell for block in table.blocks for row in comparison.of_block(block) for cell in row]


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
    return f"{'≈ ' if cell.value.stderr is None else ''}{cell.difference:+.1f}"


def _value(value: Value | None) -> list[str]:
    """Number, seeds and steps."""
    return [number(value.mean, value.stderr), str(len(value.seeds)), f"{value.step:,}"] if value else ["–"] * 3


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _rows(block: paper.Block, comparison: Comparison, notes: Notes) -> Iterable[list[str]]:
    """The texts of a block, one row for each cell, in the order of `HEADER`."""
    for cells in comparison.of_block(block):
        for cell, column in zip(cells, block.columns.values(), strict=True):
            ours, seeds, steps = _value(cell.value)
            yield [
                paper.DATASETS[cell.place.dataset],
                paper.MODELS[cell.place.model],
                column,
                f"{ours} {notes.mark(cell)}".rstrip(),
                number(*cell.paper),
                difference(cell),
                seeds,
                steps,
                _or_dash(cell.evaluations, "d"),
                _or_dash(cell.relative_time, ".2f"),
                cell.verdict,
            ]


def markdown(table: paper.Table, comparison: Comparison) -> str:
    """A line for each cell, then the notes, then the commands for what is missing."""
    notes, parts = Notes(), [f"# {table.title}", _markdown(legend(table, comparison))]
    for block in table.blocks:
        parts += [f"## {block.title}", _markdown_table(HEADER, _rows(block, comparison, notes))]
    if notes.texts:
        parts += ["## Notes", "\n".join(f"- [{n}] {_markdown(text)}" for n, text in enumerate(notes.texts, 1))]
    if commands := missing_commands(table, comparison):
        parts += ["## Commands for the missing cells", "\n".join(["```sh", *commands, "```"])]
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
        lines = [r"\begin{tabular}{lll rrrrrrr l}", r"\toprule"]
        lines += [rf"\multicolumn{{{len(HEADER)}}}{{c}}{{{_latex(block.title)}}} \\", r"\midrule"]
        lines += [" & ".join(map(_latex, HEADER)) + r" \\"]
        dataset = ""
        for row in _rows(block, comparison, notes):
            lines += [r"\midrule"] if row[0] != dataset else []
            lines.append(" & ".join(map(_latex, row)) + r" \\")
            dataset = row[0]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    remarks = [legend(table, comparison), *(f"[{n}] {text}" for n, text in enumerate(notes.texts, 1))]
    parts.append("\n".join([r"{\footnotesize", *(_latex(text) + r"\par" for text in remarks), "}"]))
    if commands := missing_commands(table, comparison):
        parts.append("\n".join(["% Commands for the missing cells:", *(f"% {command}" for command in commands)]))
    return "\n\n".join(parts) + "\n"


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_LATEX |= {"±": r"$\pm$", "≈": r"$\approx$", "×": r"$\times$", "–": "--", "−": "$-$", "[": "{[}", "]": "{]}"}


def _latex(text: str) -> str:
    text = re.sub(r"(?<!\w)-(?=\d)", "−", " ".join(text.split()))
    return "".join(_LATEX.get(character, character) for character in text)


def as_csv(table: paper.Table, comparison: Comparison) -> str:
    """A line for each cell, numbers in full."""
    rows = []
    for cell in _cells(table, comparison):
        value = cell.value
        rows.append(
            [
                *cell.place,
                cell.metric,
                *((value.mean, value.stderr) if value else (None, None)),
                *cell.paper,
                cell.difference,
                cell.verdict,
                *((len(value.seeds), value.step) if value else (None, None)),
                cell.evaluations,
                cell.relative_time,
                cell.device,
                "; ".join(cell.reasons),
                "; ".join(cell.remarks),
                cell.command,
            ]
        )
    return _csv(_CSV_HEADER, rows)


def _csv(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def other_rows(pools: Iterable[Pool]) -> list[list[str]]:
    """The bounds of runs that stand in no table, one row for each, in the order of `OTHER_HEADER`."""
    rows = []
    for pool in pools:
        config, names = pool.config, ", ".join(run.path.name for run in pool.runs)
        for metric in [name for name in pool.series if name.startswith(("train_", "test_"))] or [""]:
            what = [config["dataset"]["name"], model_name(config), estimator_name(config), metric or "none yet"]
            rows.append([*what, *_value(pool.value(metric)), _or_dash(evaluations_of(config), "d"), names])
    return rows


def others_csv(pools: Iterable[Pool]) -> str:
    """`other_rows` as CSV."""
    return _csv(OTHER_HEADER, other_rows(pools))


def others_markdown(pools: Iterable[Pool]) -> str:
    """`other_rows` as Markdown."""
    return f"# Runs that stand in no table of the paper\n\n{_markdown_table(OTHER_HEADER, other_rows(pools))}\n"
