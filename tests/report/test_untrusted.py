"""A report of directories that are damaged, or made to do harm: what is wrong is named, the rest is reported."""

import json
import os
import pathlib

import numpy as np
import pytest
from synthetic import config_at, write_run

from disarm_jax.report.page import Pictures
from disarm_jax.report.paper import Place
from disarm_jax.report.runs import read_run, read_runs
from disarm_jax.report.tables import _cell
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.run_directory.rows import RowSums
from disarm_jax.untrusted import PNG, BadFileError, first_foreign, open_regular, parse_json, read_bytes, read_picture
from scripts import report
from scripts.report import make_report

DISARM = Place("mnist", "linear", "disarm")
DEEP = "[" * 100_000


@pytest.fixture
def two(tmp_path):
    """A good run and another one."""
    write_run(tmp_path / "runs" / "good", config_at(DISARM, seeds=(0,)), [1.0], samples=True)
    return write_run(tmp_path / "runs" / "other", config_at(DISARM, seeds=(1,)), [1.0], samples=True)


def elsewhere(file):
    file.rename(file.parent.parent.parent / "metrics")
    file.symlink_to(file.parent.parent.parent / "metrics")


def pipe(file):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


DAMAGES = {
    "deep config": lambda run: (run / "config.json").write_text(DEEP),
    "nested config": lambda run: (run / "config.json").write_text('{"a":' * 200 + "1" + "}" * 200),
    "a list": lambda run: (run / "config.json").write_text("[]"),
    "a pipe": lambda run: pipe(run / "config.json"),
    "no model": lambda run: (run / "config.json").write_text('{"steps": 5}'),
    "a pipe of metrics": lambda run: pipe(run / "metrics.jsonl"),
    "metrics elsewhere": lambda run: elsewhere(run / "metrics.jsonl"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_directory_does_not_end_a_report(two, damage):
    DAMAGES[damage](two)
    runs, problems = read_runs([two.parent])
    assert [run.path.name for run in runs] == ["good"]
    (problem,) = problems
    assert "other" in problem
    assert len(problem) < 400
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "metrics.jsonl",
            f'{DEEP}\n{{"step": 1{"0" * 30}, "seed": 1, "objective": 3}}\n{{"step": 5, "seed": 1, "x": []}}\n',
        ),
        (
            "timings.jsonl",
            '{"step": 5, "what": "train", "seconds": 1, "steps": 0}\n{"step": 5, "what": 3, "seconds": 1}\n',
        ),
        ("timings.jsonl", '{"step": 5, "what": "train", "seconds": "x", "steps": 5}\n'),
        ("summary.json", DEEP),
        ("summary.json", "[3]"),
        ("run.json", DEEP),
        ("DONE", "1" + "0" * 200),
        ("evaluation_3_samples.json", DEEP),
        ("evaluation_3_samples.json", '{"step": 5, "metrics": {"a": {"mean": 1, "stderr": {}, "seeds": [1]}}}'),
    ],
)
def test_what_is_no_row_or_record_is_left_out(two, name, text):
    (two / name).write_text(text)
    runs, problems = read_runs([two.parent])
    assert (len(runs), problems) == (2, [])
    assert read_run(two).step in (0, 1_000_000)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["estimator"].update(name="subprocess:run", options={"args": ["true"]}),
        lambda config: config["estimator"].update(name="gone_since", options={"num_pairs": 3}),
        lambda config: config["dataset"].update(name="npz", path="/x" * 2000),
    ],
)
def test_configs_of_another_world_do_not_end_a_report(two, tmp_path, monkeypatch, change):
    monkeypatch.setattr(report, "_save", lambda figure, path: path.with_name(f"{path.name}.png").touch() or path)
    config = json.loads((two / "config.json").read_text())
    change(config)
    (two / "config.json").write_text(json.dumps(config))
    assert make_report([str(two.parent)], tmp_path / "out").startswith("2 runs, 2 configurations")


def test_a_run_that_nobody_has_thought_of_is_left_out(two, tmp_path, monkeypatch, capsys):
    """It is found by trying."""

    def draw(pools):
        for pool in pools:
            if any(run.path == two for run in pool.runs):
                raise OverflowError("more than\nanybody draws")
        return ()

    monkeypatch.setattr(report, "draw_all", draw)
    monkeypatch.setattr(report, "_save", lambda figure, path: path)
    assert make_report([str(two.parent)], tmp_path / "out").startswith("1 runs, ")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"skipped: {two} is damaged: OverflowError: more than anybody draws")
    assert f"{two} is damaged" in (tmp_path / "out" / "index.html").read_text()
    with pytest.raises(ValueError, match="none of these run directories can be reported on"):
        make_report([str(two)], tmp_path / "alone")


def test_a_file_that_cannot_be_read_is_named(two):
    pipe(two / "timings.jsonl")
    (problem,) = read_runs([two.parent])[1]
    assert problem == f"{two} cannot be read: it is not a regular file ({two / 'timings.jsonl'})"


def test_changed_rows_are_named(two):
    run_dir = RunDir(two)
    run_dir.write_sums(RowSums.of(run_dir.metrics_content()))
    assert read_runs([two.parent])[1] == []
    run_dir.metrics_file.write_text(run_dir.metrics_file.read_text().replace("1.0", "2.0"))
    assert "metrics.jsonl is not as it was written: it does not begin with the " in read_runs([two.parent])[1][0]


@pytest.mark.parametrize("kind", ["link", "text", "pipe", "device"])
def test_a_picture_shows_nothing_from_elsewhere(two, tmp_path, kind):
    picture, secret = two / "samples.png", tmp_path / "secret"
    secret.write_bytes(PNG + b"secret")
    picture.unlink()
    make = {"link": lambda: picture.symlink_to(secret), "text": lambda: picture.write_text("secret")}
    make |= {"pipe": lambda: os.mkfifo(picture), "device": lambda: picture.symlink_to("/dev/zero")}
    make[kind]()
    assert read_run(two).samples is None
    assert Pictures(tmp_path).tag(picture, "") == ""


def test_many_pictures_lie_beside_the_page(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(PNG + bytes([number]) * 100)
    pictures = Pictures(tmp_path / "out", most=250)
    (tmp_path / "out").mkdir()
    tags = [pictures.tag(tmp_path / f"{number}.png", "<&") for number in range(4)]
    assert ["data:image" in tag for tag in tags] == [True, True, False, False]
    assert 'src="pictures/2.png"' in tags[3]
    assert 'alt="&lt;&amp;"' in tags[3]
    assert (tmp_path / "out" / "pictures" / "2.png").read_bytes() == (tmp_path / "3.png").read_bytes()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-1.5", "-1.5"),
        ("+2", "+2"),
        ("a=b", "a=b"),
        ("", ""),
        (-1.5, -1.5),
        (None, None),
    ],
)
def test_cells_are_no_formulas(value, cell):
    assert _cell(value) == cell


class TestReading:
    def test_files_of_other_kinds(self, tmp_path):
        (tmp_path / "file").write_bytes(b"abc")
        (tmp_path / "link").symlink_to("file")
        os.mkfifo(tmp_path / "pipe")
        for name, message in (("link", "symbolic link"), ("pipe", "not a regular"), ("", "not a regular")):
            with pytest.raises(BadFileError, match=message):
                read_bytes(tmp_path / name, 10)
        with pytest.raises(BadFileError, match="not a regular"):
            read_bytes(pathlib.Path("/dev/zero"), 10)
        with pytest.raises(BadFileError, match="it has 3 bytes; accepted: at most 2"):
            read_bytes(tmp_path / "file", 2)
        with pytest.raises(FileNotFoundError):
            read_bytes(tmp_path / "none", 2)
        with open_regular(tmp_path / "link", links=True) as stream:
            assert stream.read() == b"abc"
        with pytest.raises(BadFileError, match="no PNG"):
            read_picture(tmp_path / "file")

    @pytest.mark.parametrize("text", [DEEP, '{"a":' * 31 + "1" + "}" * 31, "1" + "0" * 30, "9" * 5000, "{", b"\xff"])
    def test_json_of_other_kinds(self, text):
        with pytest.raises(BadFileError):
            parse_json(text)

    def test_json(self):
        value = {"a": [1, -2.5, None, True, "x" * 1000], "b": {"c": [[[]]]}}
        assert parse_json(json.dumps(value)) == value

    def test_folders(self, tmp_path):
        (tmp_path / "a" / "b").mkdir(parents=True)
        np.save(tmp_path / "a" / "b" / "c.npy", np.zeros(10))
        assert first_foreign(tmp_path, 1000) is None
        assert "accepted: at most 100" in first_foreign(tmp_path, 100)
        (tmp_path / "a" / "d").symlink_to(tmp_path)
        assert first_foreign(tmp_path, 1000) == "d is not a regular file"
