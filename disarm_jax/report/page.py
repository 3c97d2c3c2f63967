"""index.html: everything of a report on one page that needs no network and no JavaScript.

All that comes from run directories is escaped.
"""

import base64
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from disarm_jax.experiment.config import flat
from disarm_jax.report import paper, tables
from disarm_jax.report.compare import DIFFERS, MATCH, MISSING, NOT_COMPARABLE, ONE_SEED, Cell, Comparison
from disarm_jax.report.names import estimator_name, model_name
from disarm_jax.report.pools import Pool
from disarm_jax.report.runs import Run

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { margin-top: 2.5rem; border-bottom: 2px solid #ddd; }
h3 { margin: 1.8rem 0 .4rem; } h4 { margin: 1.2rem 0 .4rem; font-weight: 600; }
a { color: #00558b; } nav a { margin-right: 1rem; white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid #ddd; border-radius: 4px; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.wide { width: 100%; }
th, td { padding: .4rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
thead th { background: #f3f3f3; white-space: nowrap; }
tr > th:first-child { position: sticky; left: 0; } tbody th { font-weight: 600; background: #fff; }
.group th { background: #fafafa; } td { white-space: nowrap; }
td > b { font-size: .95rem; } td small, td .paper { display: block; font-size: .8rem; color: #4a4a4a; }
.match { background: #dff1e4; } .differs { background: #fde6d6; } .not-comparable { background: #f0f0f0; }
.missing { color: #5a5a5a; }
.key span { display: inline-block; padding: .1rem .5rem; margin: 0 .4rem .3rem 0; border: 1px solid #ccc;
  border-radius: 3px; }
.note, figcaption { font-size: .875rem; color: #3a3a3a; } ol.note { padding-left: 1.6rem; }
figure { margin: 1rem 0 2rem; } img { max-width: 100%; height: auto; display: block; }
details { margin: .5rem 0; } summary { cursor: pointer; padding: .35rem 0; }
.run { border: 1px solid #ddd; border-radius: 4px; padding: .2rem .8rem; }
pre { overflow-x: auto; overflow-wrap: normal; background: #f6f6f6; padding: .7rem; font-size: .8rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; font-size: .9rem; }
dt { color: #4a4a4a; } dd { margin: 0; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 0 1.5rem; }
@media (max-width: 30rem) { body { padding: .7rem; font-size: 15px; } .tall { min-width: 44rem; } }
"""
_KEY = {
    MATCH: "comparable, within 2 combined standard errors",
    DIFFERS: "comparable, further apart",
    ONE_SEED: "comparable, but a single seed",
    NOT_COMPARABLE: "other steps, data or settings, listed below the table",
    MISSING: "no number yet",
}


def page(
    comparison: Comparison,
    pools: Sequence[Pool],
    figures: Iterable[tuple[str, pathlib.Path]],
    problems: Sequence[str],
) -> str:
    """The whole page.

    Args:
      comparison: the tables.
      pools: all runs.
      figures: title and PNG file of each.
      problems: a line for each run directory that was skipped.
    """
    runs = sorted((run for pool in pools for run in pool.runs), key=lambda run: run.path)
    counts = Counter(cell.verdict for cell in comparison.cells.values())
    key = "".join(f'<span class="{_class(word)}"><b>{word}</b>: {text}</span>' for word, text in _KEY.items())
    found = ", ".join(f"{counts[word]} {word}" for word in _KEY if counts[word])
    skipped = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    parts = [
        "<h1>DisARM: our runs beside the paper's numbers</h1>",
        f"<p>{len(runs)} run directories, {len(pools)} configurations. Of the {len(comparison.cells)} different "
        f"numbers of the paper: {found}. The paper's are means of {paper.SEEDS} seeds after {paper.STEPS:,} steps.</p>",
        f'<p class="key">{key}</p>',
        f"<h3>Skipped</h3><ul>{skipped}</ul>" if problems else "",
        '<nav><a href="#tables">Tables</a> <a href="#figures">Figures</a> <a href="#samples">Samples</a> '
        '<a href="#runs">Runs</a></nav>',
        '<h2 id="tables">Tables</h2>',
        *(_table(table, comparison) for table in paper.TABLES),
        _others(comparison.others),
        '<h2 id="figures">Figures</h2>',
        '<p class="note">Mean over seeds, with a band of one standard error. Bounds are drawn from a tenth of the way '
        "on. By time: without compilation and evaluation, of runs on one device with as many seeds at a time. "
        "Gradient variance: of the inference network, averaged over its parameters, from moving averages. For "
        "multi-sample bounds, DisARM with K pairs and VIMCO with 2K samples follow the gradients of different bounds: "
        "compare their variances only along one trajectory.</p>",
        *(f"<figure>{_scroll(_image(file, title))}</figure>" for title, file in figures),
        '<h2 id="samples">Samples</h2>',
        '<p class="note">Of the first seed: test images, their reconstructions, samples of the prior.</p>',
        f'<div class="samples">{"".join(_samples(pool) for pool in pools)}</div>',
        '<h2 id="runs">Runs</h2>',
        *(_run(run) for run in runs),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>DisARM: our runs beside the paper's</title><style>{_CSS}</style>"
    body = "\n".join(filter(None, parts))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _scroll(content: str) -> str:
    """A box that scrolls by itself, so that the page does not."""
    return f'<div class="scroll" tabindex="0">{content}</div>'


def _table(table: paper.Table, comparison: Comparison) -> str:
    """In the layout of the paper, all that is known of a cell inside it."""
    notes, parts = tables.Notes(), [f"<h3>{escape(table.title)}</h3>"]
    for block in table.blocks:
        head = "".join(f"<th>{escape(title)}</th>" for title in block.columns.values())
        lines, dataset = [f"<thead><tr><th></th>{head}</tr></thead><tbody>"], ""
        for (row_dataset, model), cells in zip(block.rows, comparison.of_block(block), strict=True):
            if row_dataset != dataset:
                lines.append(
                    f'<tr class="group"><th colspan="{1 + len(cells)}">{paper.DATASETS[row_dataset]}</th></tr>'
                )
                dataset = row_dataset
            shown = "".join(_cell(cell, notes.mark(cell)) for cell in cells)
            lines.append(f"<tr><th>{paper.MODELS[model]}</th>{shown}</tr>")
        parts += [f"<h4>{escape(block.title)}</h4>", _scroll(f'<table class="wide">{"".join(lines)}</tbody></table>')]
    parts.append(f'<p class="note">{escape(tables.legend(table, comparison))}</p>')
    if notes.texts:
        parts.append(f'<ol class="note">{"".join(f"<li>{escape(text)}</li>" for text in notes.texts)}</ol>')
    if commands := tables.missing_commands(table, comparison):
        summary = f"Commands that would fill the {len(commands)} missing experiments of this table"
        parts.append(f"<details><summary>{summary}</summary><pre>{escape(chr(10).join(commands))}</pre></details>")
    return "\n".join(parts)


def _cell(cell: Cell, mark: str) -> str:
    value = cell.value
    theirs = f'<span class="paper">paper {tables.number(*cell.paper)}</span>'
    if value is None:
        return f'<td class="missing" title="{escape(cell.command)}">missing {mark}{theirs}</td>'
    seeds = f"{len(value.seeds)} seed{'s' if len(value.seeds) > 1 else ''}"
    facts = [f"{seeds}, {value.step:,} steps"]
    cost = [] if cell.evaluations is None else [f"{cell.evaluations} f/step"]
    cost += [] if cell.relative_time is None else [f"{cell.relative_time:.2f} × DisARM's time"]
    facts.append(", ".join(cost))
    gap = "" if cell.difference is None else f", {tables.difference(cell)} s.e."
    words = f"<small><b>{cell.verdict}</b>{gap}</small>" + "".join(f"<small>{fact}</small>" for fact in facts if fact)
    ours = f"<b>{tables.number(value.mean, value.stderr)}</b> {mark}"
    return f'<td class="{_class(cell.verdict)}">{ours}{theirs}{words}</td>'


def _others(pools: Sequence[Pool]) -> str:
    if not pools:
        return ""
    head = "".join(f"<th>{title}</th>" for title in tables.OTHER_HEADER)
    rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in tables.other_rows(pools))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    what = "The paper has no such number, or runs closer to the paper's stand in its tables."
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h3>Other runs</h3><p class="note">{what}</p>{_scroll(table)}'


def _image(file: pathlib.Path, alt: str) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img class="tall" alt="{escape(alt)}" src="data:image/png;base64,{data}">'


def _samples(pool: Pool) -> str:
    run = next((run for run in pool.runs if run.samples), None)
    if run is None:
        return ""
    config = pool.config
    what = f"{config['dataset']['name']}, {model_name(config)}, {estimator_name(config)}: {run.step:,} steps"
    image = _image(run.samples, f"samples: {what}").replace(' class="tall"', "")
    return f"<figure>{image}<figcaption>{escape(what)}</figcaption></figure>"


def _run(run: Run) -> str:
    """All about one run, folded."""
    config, seconds = run.config, run.seconds_per_step
    state = "finished" if run.finished else f"at step {run.step:,} of {config['steps']:,}"
    times = f"{run.seconds('train'):,.0f} s of training, {run.seconds('evaluate'):,.0f} s of evaluation"
    rate = f"{1 / seconds / len(config['seeds']):,.0f} steps/s, all seeds together" if seconds else "–"
    facts = {
        "directory": str(run.path),
        "state": state,
        "seeds": ", ".join(map(str, config["seeds"])),
        "steps": f"{run.step:,}",
        "command": run.command or "written when the run ends",
        "device": run.device or "written when the run ends",
        "time": times,
        "speed": rate,
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    fields = "\n".join(f"{field} = {value!r}" for field, value in sorted(flat(config)))
    what = f"{config['dataset']['name']}, {model_name(config)}, {estimator_name(config)}, {state}"
    return (
        f'<details class="run"><summary><b>{escape(run.path.name)}</b>: {escape(what)}</summary><dl>{listed}</dl>'
        f"<details><summary>config</summary><pre>{escape(fields)}</pre></details></details>"
    )
