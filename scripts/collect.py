"""Copies what a report needs of finished runs to a folder that can be committed or sent to others.

    python -m scripts.collect --runs runs/reproduction --out results/paper/cells
    python -m scripts.report --runs results/paper/cells --out results/paper

Every finished run directory below `--runs` is copied under its own name: config.json, run.json, metrics.jsonl and
summary.json, without checkpoints, pictures and events. Folders of this machine are taken out of the paths in these
files, so that a path ends up as its last part. A run that was collected before is replaced if it has been made anew.
"""

import json
import pathlib
import re
import sys
from typing import Any

from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.experiment.rundir import RunDir, write_text
from disarm_jax.report.runs import Run, read_runs

# Folders that an absolute path begins with, wherever it stands in a text: "--workdir=/home/me/runs/1" keeps "1".
_FOLDERS = re.compile(r"(?<![\w.~/])[~/](?:[^/\s'\"]*/)+")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_multi_string("runs", ["runs"], "A folder with run directories; repeatable.", flag_values=values)
    flags.DEFINE_string("out", "results/paper/cells", "The folder to copy them to.", flag_values=values)


def without_folders(value: Any) -> Any:
    """A JSON value in which no text has an absolute path.

    >>> without_folders({"command": ["/usr/bin/python", "--workdir=/home/me/runs/1"], "steps": 5})
    {'command': ['python', '--workdir=1'], 'steps': 5}
    """
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def collect(run: Run, out: pathlib.Path) -> None:
    """Copies the small files of one finished run into `out`, the file that says it is finished last."""
    source, target = RunDir(run.path), RunDir(out / run.path.name)
    target.path.mkdir(parents=True, exist_ok=True)
    target.done_file.unlink(missing_ok=True)
    for name in ("config_file", "record_file", "summary_file"):
        file: pathlib.Path = getattr(source, name)
        if file.exists():
            cleaned = without_folders(json.loads(file.read_text(encoding="utf-8")))
            write_text(getattr(target, name), json.dumps(cleaned, indent=2) + "\n")
    write_text(target.metrics_file, source.metrics_file.read_text(encoding="utf-8"))
    write_text(target.done_file, source.done_file.read_text())


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Copies all finished runs."""
    flags_only(argv)
    if missing := [folder for folder in values.runs if not pathlib.Path(folder).expanduser().is_dir()]:
        sys.exit(f"error: --runs: no such folder: {', '.join(missing)}")
    runs, problems = read_runs(values.runs)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    finished = list({run.path: run for run in runs if run.finished}.values())
    names = [run.path.name for run in finished]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        sys.exit(f"error: several run directories are called {', '.join(twice)}; collect them into different folders")
    out = pathlib.Path(values.out).expanduser()
    try:
        for run in finished:
            collect(run, out)
    except OSError as error:
        sys.exit(f"error: cannot write to --out={out}: {error.strerror or error}")
    print(f"{len(finished)} finished runs of {len({run.path for run in runs})} are in {out}")


if __name__ == "__main__":
    run_script(main, define_flags)
