"""Makes a report of run directories: the tables and figures of the paper with our numbers in them.

    python -m scripts.report --runs runs --out report
    python -m scripts.report --runs runs/here --runs /elsewhere/runs --out report

Every run directory below `--runs` is read, finished or not; damaged ones are named and skipped. Open
`report/index.html` first: it begins with the verdict, which is also in `verdict.md`. The same tables are beside it as
Markdown, CSV and LaTeX, the figures as PNG and PDF.
"""

import pathlib
import sys
import tempfile
from collections.abc import Sequence

from absl import flags
from matplotlib.figure import Figure

from disarm_jax.command_line import flags_only, get_config, one_line, run_script
from disarm_jax.files import expand_user, whole_file, write_text
from disarm_jax.report import paper, tables
from disarm_jax.report.cells import compare
from disarm_jax.report.curves import draw_all
from disarm_jax.report.page import Pictures, page
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import Run, read_runs
from disarm_jax.report.verdict import give_verdict, histogram
from disarm_jax.report.verdict import markdown as verdict_markdown


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    what = "A folder with run directories in it, at any depth; repeatable."
    flags.DEFINE_multi_string("runs", ["runs"], what, flag_values=values)
    flags.DEFINE_string("out", "report", "Folder for the report.", flag_values=values)


def make_report(folders: list[str], out: pathlib.Path) -> str:
    """Writes all files of a report; a line that says what is in it.

    Runs with which it cannot be made, although each file of theirs can be read, are found by trying, and left out.

    Raises:
      ValueError: if there is nothing to report on.
      OSError: if `out` cannot be written to.
    """
    try:
        missing = [folder for folder in folders if not expand_user(folder).is_dir()]
    except FileNotFoundError as error:
        raise ValueError(f"--runs={error.filename}: {error.strerror}") from error
    if missing:
        raise ValueError(f"--runs: no such folder: {', '.join(missing)}")
    runs, problems = read_runs(folders)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    if not runs:
        raise ValueError(f"no run directory below {', '.join(folders) or '--runs'}; one has a config.json in it")
    out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=out).close()  # before the work, not after it
    try:
        return write_report(runs, problems, out)
    except OSError:
        raise
    except Exception as error:  # something in a run directory that nobody has thought of
        if not (bad := without_report(runs)):
            raise ValueError(one_line(error)) from error
        for problem in bad.values():
            print(f"skipped: {problem}", file=sys.stderr)
        problems += bad.values()
        if not (good := [run for run in runs if run.path not in bad]):
            raise ValueError("none of these run directories can be reported on") from error
        return write_report(good, problems, out)


def without_report(runs: Sequence[Run]) -> dict[pathlib.Path, str]:
    """The run directories of which no report can be made, and a line for each that says why; by halves, to be quick."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_report(runs, [], pathlib.Path(folder))
    except OSError:
        raise
    except Exception as error:
        paths = list(dict.fromkeys(run.path for run in runs))
        if len(paths) == 1:
            return {paths[0]: f"{paths[0]} is damaged: {one_line(error)[:300]}"}
        first = set(paths[: len(paths) // 2])
        halves = [[run for run in runs if (run.path in first) == chosen] for chosen in (True, False)]
        return without_report(halves[0]) | without_report(halves[1])
    return {}


def write_report(runs: Sequence[Run], problems: Sequence[str], out: pathlib.Path) -> str:
    """Writes all files of a report of some runs; a line that says what is in it."""
    pools = pool_runs(runs)
    comparison = compare(pools, get_config)
    for table in paper.TABLES:
        write_text(out / f"{table.name}.md", tables.markdown(table, comparison))
        write_text(out / f"{table.name}.csv", tables.as_csv(table, comparison))
        write_text(out / f"{table.name}.tex", tables.latex(table, comparison))
    write_text(out / "other_runs.md", tables.others_markdown(comparison, pools))
    write_text(out / "other_runs.csv", tables.others_csv(comparison, pools))
    verdict = give_verdict(comparison)
    write_text(out / "verdict.md", verdict_markdown(verdict))
    differences = _save(histogram(verdict.cells), out / "differences") if verdict.cells else None
    figures = [(drawing.title, _save(drawing.figure, out / drawing.name)) for drawing in draw_all(pools)]
    contents = page(verdict, comparison, pools, differences, figures, problems, Pictures(out))
    write_text(out / "index.html", contents)
    numbers = sum(cell.value is not None for cell in comparison.cells.values())
    return f"{len(runs)} runs, {len(pools)} configurations, {numbers} of {len(comparison.cells)} numbers of the paper"


def _save(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Writes a figure as PDF and PNG; the PNG's path."""
    png = path.with_name(f"{path.name}.png")
    with whole_file(path.with_name(f"{path.name}.pdf")) as stream:
        figure.savefig(stream, format="pdf", metadata={"CreationDate": None})  # the same runs, the same bytes
    with whole_file(png) as stream:
        figure.savefig(stream, format="png", dpi=130)
    return png


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Reads the runs and writes the report."""
    flags_only(argv)
    try:
        out = expand_user(values.out)
    except FileNotFoundError as error:
        sys.exit(f"error: --out={values.out}: {error.strerror}")
    try:
        print(make_report(values.runs, out))
    except ValueError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write to --out={out}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted; the report is not complete")
    print(f"written to {out / 'index.html'}")


if __name__ == "__main__":
    run_script(main, define_flags)
