"""index.html: everything of a report on one page that needs no network and no JavaScript.

The verdict comes first, then curves, then tables, then the runs one by one. All that comes from run directories is
escaped.
"""

import base64
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from disarm_jax.experiment.fields import flat
from disarm_jax.files import whole_file
from disarm_jax.report import paper, tables
from disarm_jax.report.cells import DIFFERS, MATCH, NOT_COMPARABLE, VARIANT, Comparison
from disarm_jax.report.claims import Judgement
from disarm_jax.report.names import dataset_name, estimator_name, model_name
from disarm_jax.report.origin import listed_codes
from disarm_jax.report.palette import bound_title, count
from disarm_jax.report.pools import Pool
from disarm_jax.report.runs import Run, StepTime
from disarm_jax.report.verdict import Verdict, in_paper
from disarm_jax.untrusted import read_picture

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 82rem; padding: 1rem; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { margin-top: 2.5rem; border-bottom: 2px solid #ddd; }
h3 { margin: 1.8rem 0 .4rem; } h4 { margin: 1.2rem 0 .4rem; font-weight: 600; }
a { color: #00558b; } nav a { margin-right: 1rem; white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid #ddd; border-radius: 4px; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.wide { width: 100%; }
th, td { padding: .35rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
thead th { background: #f3f3f3; white-space: nowrap; }
tbody th { font-weight: 600; background: #fff; } .group th { background: #fafafa; } td { white-space: nowrap; }
td:first-child { white-space: normal; min-width: 8rem; overflow-wrap: anywhere; }
.match, .holds { background: #dff1e4; } .differs, .does-not-hold { background: #fde6d6; }
.not-comparable, .not-run { background: #f0f0f0; } .variant { background: #e6eefb; } .undecided { background: #fff5d2; }
td.wrap { white-space: normal; min-width: 14rem; } td details, td summary { margin: 0; padding: 0; }
ul.numbers { margin: .2rem 0; padding-left: 1.2rem; }
.verdict { font-size: 1.05rem; }
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
@media (max-width: 30rem) { body { padding: .7rem; font-size: 15px; } .tall { min-width: 44rem; }
  td.wrap { min-width: 9rem; } }
"""
MAX_EMBEDDED = 4 << 20  # bytes of pictures in the page itself
_KEY = {
    MATCH: "comparable, within 2 combined standard errors",
    DIFFERS: "comparable, further apart",
    VARIANT: "differs from the paper's protocol in one named way, not counted",
    NOT_COMPARABLE: "other steps, data or settings, listed below the table",
}


class Pictures:
    """The pictures of a page: in it as far as `most` bytes go, the others in a folder beside it."""

    def __init__(self, folder: pathlib.Path, most: int = MAX_EMBEDDED):
        """Begins with no pictures; the folder `pictures` is made below `folder` when the first one goes there."""
        self._folder, self._left, self._written = folder / "pictures", most, 0

    def tag(self, file: pathlib.Path, alt: str, kind: str = "tall") -> str:
        """The element that shows a PNG file, which may be anybody's; empty if it is none after all."""
        try:
            content = read_picture(file)
        except OSError:
            return ""
        self._left -= len(content)
        if self._left >= 0:
            source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        else:
            self._written += 1
            self._folder.mkdir(exist_ok=True)
            with whole_file(self._folder / f"{self._written}.png") as stream:
                stream.write(content)
            source = f"pictures/{self._written}.png"
        return f'<img class="{kind}" alt="{escape(alt)}" loading="lazy" src="{source}">'


def page(
    verdict: Verdict,
    comparison: Comparison,
    pools: Sequence[Pool],
    histogram: pathlib.Path | None,
    figures: Iterable[tuple[str, pathlib.Path]],
    problems: Sequence[str],
    pictures: Pictures,
) -> str:
    """The whole page.

    Args:
      verdict: what comes first.
      comparison: the tables.
      pools: all runs.
      histogram: PNG file of the differences, None if there are none.
      figures: title and PNG file of each.
      problems: a line for each run directory that was skipped.
      pictures: where those go that are too many for the page.
    """
    runs = sorted((run for pool in pools for run in pool.runs), key=lambda run: run.path)
    skipped = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    parts = [
        "<h1>DisARM: our runs beside the paper's numbers</h1>",
        f"<p>{count(len(runs), 'run')} of {count(len(pools), 'configuration')}. The paper's numbers are means of "
        f"{paper.SEEDS} seeds after {paper.STEPS:,} steps.</p>",
        '<nav><a href="#verdict">Verdict</a> <a href="#curves">Curves</a> <a href="#tables">Tables</a> '
        '<a href="#others">Other runs</a> <a href="#samples">Samples</a> <a href="#runs">Runs</a></nav>',
        f"<h3>Skipped</h3><ul>{skipped}</ul>" if problems else "",
        _verdict(verdict, histogram, pictures),
        '<h2 id="curves">Curves</h2>',
        '<p class="note">Mean over seeds, with a band of one standard error; thin dashed lines are the paper\'s final '
        "numbers. Bounds are drawn from a tenth of the way on. By time: without compilation and evaluation, of runs on "
        "one quiet device with as many seeds at a time. Gradient variance: of the inference network, averaged over its "
        "parameters, from moving averages. For multi-sample bounds, DisARM with K pairs and VIMCO with 2K samples "
        "follow the gradients of different bounds: compare their variances only along one trajectory.</p>",
        *(f"<figure>{_scroll(pictures.tag(file, title))}</figure>" for title, file in figures),
        '<h2 id="tables">Tables</h2>',
        f'<p class="key">{"".join(_key(word, text) for word, text in _KEY.items())}</p>',
        *(_table(table, comparison) for table in paper.TABLES),
        '<h2 id="others">Other runs</h2>',
        *_others(comparison, pools),
        '<h2 id="samples">Samples</h2>',
        '<p class="note">Of the first seed: test images, their reconstructions, samples of the prior.</p>',
        f'<div class="samples">{"".join(_samples(pool, pictures) for pool in pools)}</div>',
        '<h2 id="runs">Runs</h2>',
        _html_table(("run", "what", "state", "code", "started", "precision", "device"), map(_run_row, runs)),
        *(_run(run) for run in runs),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>DisARM: our runs beside the paper's</title><style>{_CSS}</style>"
    body = "\n".join(filter(None, parts))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _key(word: str, text: str) -> str:
    return f'<span class="{_class(word)}"><b>{word}</b>: {text}</span>'


def _scroll(content: str) -> str:
    """A box that scrolls by itself, so that the page does not."""
    return f'<div class="scroll" tabindex="0">{content}</div>'


def _html_table(header: Sequence[str], rows: Iterable[str]) -> str:
    """From rows that are HTML already."""
    head = "".join(f"<th>{escape(title)}</th>" for title in header)
    return _scroll(f'<table class="wide"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _verdict(verdict: Verdict, histogram: pathlib.Path | None, pictures: Pictures) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict.sentences if sentence)
    parts = ['<h2 id="verdict">Verdict</h2>', f'<ul class="verdict">{sentences}</ul>']
    if histogram:
        parts.append(f"<figure>{pictures.tag(histogram, 'histogram of the differences', 'small')}</figure>")
    parts.append("<h3>The paper's claims</h3>")
    header = ("claim", "verdict", "our runs", "in the paper's numbers")
    parts.append(_html_table(header, map(_judgement, verdict.judgements)))
    return "\n".join(parts)


def _judgement(judgement: Judgement) -> str:
    """A row; the numbers are folded below the claim."""
    found = "".join(f"<li>{escape(str(finding))}</li>" for finding in (*judgement.findings, *judgement.early))
    numbers = _folded("numbers", f'<ul class="numbers">{found}</ul>') if found else ""
    return (
        f'<tr><td class="wrap">{escape(judgement.claim.text)}{numbers}</td>'
        f'<td class="{_class(judgement.verdict)}"><b>{judgement.verdict}</b></td>'
        f'<td class="wrap">{escape(judgement.counts)}</td><td>{in_paper(judgement)}</td></tr>'
    )


def _table(table: paper.Table, comparison: Comparison) -> str:
    """The cells that have a number; what is missing is folded."""
    notes, parts = tables.Notes(), [f"<h3>{escape(table.title)}</h3>"]
    header = tables.HEADER[2:]  # data set and model have lines of their own
    for block in table.blocks:
        lines, group = [], ""
        for cell, (dataset, model, *texts) in tables.rows(block, comparison, notes):
            if group != f"{dataset}, {model}":
                group = f"{dataset}, {model}"
                lines.append(f'<tr class="group"><th colspan="{len(header)}">{escape(group)}</th></tr>')
            shown = "".join(f"<td>{escape(text)}</td>" for text in texts)
            lines.append(f'<tr class="{_class(cell.verdict)}">{shown}</tr>')
        if lines:
            parts += [f"<h4>{escape(block.title)}</h4>", _html_table(header, lines)]
    if len(parts) > 1:
        parts.append(f'<p class="note">{escape(tables.legend(table, comparison))}</p>')
    if notes.texts:
        parts.append(f'<ol class="note">{"".join(f"<li>{escape(text)}</li>" for text in notes.texts)}</ol>')
    if commands := tables.missing_commands(table, comparison):
        text = f"<pre>{escape(chr(10).join(commands))}</pre>"
        parts.append(_folded(f"{tables.missing_title(table, comparison)}: commands", text))
    return "\n".join(parts)


def _others(comparison: Comparison, pools: Sequence[Pool]) -> list[str]:
    what = "The paper has no such number, or runs closer to the paper's stand in its tables."
    parts = [f'<p class="note">{what} Numbers at different steps are not to be set beside each other.</p>']
    found = {"": tables.other_rows(comparison.others), "Evaluated afterwards": tables.evaluation_rows(pools)}
    for title, rows in found.items():
        lines = ["".join(f"<td>{escape(text)}</td>" for text in texts) for texts in rows]
        parts += [f"<h3>{title}</h3>"] if title and rows else []
        parts += [_html_table(tables.OTHER_HEADER, (f"<tr>{line}</tr>" for line in lines))] if rows else []
    return parts if len(parts) > 1 else ["<p>None.</p>"]


def _what(config: Mapping[str, Any]) -> str:
    return f"{dataset_name(config)}, {model_name(config)}, {estimator_name(config)}"


def _samples(pool: Pool, pictures: Pictures) -> str:
    found = next(((run.step, run.samples) for run in pool.runs if run.samples), None)
    if found is None:
        return ""
    step, samples = found
    what = f"{_what(pool.config)}: {step:,} steps"
    image = pictures.tag(samples, f"samples: {what}", "small")
    return f"<figure>{image}<figcaption>{escape(what)}</figcaption></figure>"


def _state(run: Run) -> str:
    return "finished" if run.finished else f"at step {run.step:,} of {run.config['steps']:,}"


def _code(run: Run) -> str:
    return listed_codes(run.codes) + (" – continued by other code" if len(run.codes) > 1 else "")


def _run_row(run: Run) -> str:
    """A run in one line: what it is and where it comes from."""
    texts = [run.name, _what(run.config), _state(run), _code(run), run.started[:10], run.precision]
    cells = "".join(f"<td>{escape(text or '–')}</td>" for text in (*texts, "; ".join(run.devices)))
    return f"<tr>{cells}</tr>"


def _run(run: Run) -> str:
    """All about one run, folded."""
    unknown = "not recorded" if run.finished else "written when the run ends"
    started = [f"step {entry.step:,} on {entry.started} by {entry.code}" for entry in run.entries]
    facts = {
        "directory": str(run.path),
        "state": _state(run),
        "seeds": ", ".join(map(str, run.config["seeds"])),
        "code": _code(run),
        "started": "; ".join(started) or "not recorded",
        "command": run.command or unknown,
        "device": "; ".join(run.devices) or unknown,
        "precision": run.precision or "not recorded",
        "data": ", ".join(f"{split} {value[:12]}…" for split, value in run.data_sums.items()) or unknown,
        "time": f"{run.seconds('train'):,.0f} s of training, {run.seconds('evaluate'):,.0f} s of evaluation"
        + (", all points together" if run.point else ""),
        "speed": _speed(run.step_time, run.num_members) if run.step_time else "–",
    }
    for step, metrics in run.evaluations:
        for metric, (mean, stderr, _) in metrics.items():
            facts[f"{bound_title(metric)}, step {step:,}"] = tables.number(mean, stderr)
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    fields = "\n".join(f"{field} = {value!r}" for field, value in sorted(flat(run.config)))
    title = f"<b>{escape(run.name)}</b>: {escape(f'{_what(run.config)}, {_state(run)}')}"
    config = _folded("config", f"<pre>{escape(fields)}</pre>")
    return f'<details class="run"><summary>{title}</summary><dl>{listed}</dl>{config}</details>'


def _speed(time: StepTime, num_members: int) -> str:
    """Steps per second with the range by the quartiles over chunks."""
    rates = [1 / seconds / num_members for seconds in (time.median, time.high, time.low)]
    return "{:,.0f} steps/s ({:,.0f} to {:,.0f}), all seeds together".format(*rates)
