"""run.json is read, whatever state it is in, and runs made by different code are never pooled silently."""

import json

import pytest
from synthetic import config_at, entry, write_run

from disarm_jax.command_line import get_config
from disarm_jax.report.cells import compare
from disarm_jax.report.curves import draw_all
from disarm_jax.report.origin import Code, differing_codes
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_run, read_runs
from scripts.report import make_report

DISARM = Place("mnist", "linear", "disarm")
A, B = "a" * 40, "b" * 40


def remarks(folder):
    runs, problems = read_runs([folder])
    assert not problems
    return compare(pool_runs(runs), get_config).cells[DISARM, "train"].remarks


def test_an_unfinished_run_says_where_it_comes_from(tmp_path):
    path = write_run(tmp_path / "a", config_at(DISARM), [0.0] * 5, step=10_000, code={"commit": A, "dirty": True})
    run = read_run(path)
    assert not run.finished
    assert run.devices == ("1 × cpu, a processor, 2 cores",)
    assert run.command == "python -m main --config configs/base.py"
    assert run.data_sums.keys() == {"train", "validation", "test"}
    assert (str(run.codes[0]), run.precision) == ("aaaaaaa + changes", "float32")
    make_report([str(tmp_path / "a")], tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    for text in ("aaaaaaa + changes", "2026-11-18T09:00:00", "1 × cpu, a processor, 2 cores", "float32"):
        assert text in page


def test_an_older_run_has_what_its_summary_says(tmp_path):
    run = read_run(write_run(tmp_path / "a", config_at(DISARM), [0.0] * 5))
    assert run.entries == ()
    assert run.devices == ("1 × cpu, a processor, 2 cores",)
    assert str(run.codes[0]) == "unknown commit"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"entries": {}}',
        '{"entries": [3]}',
        '{"entries": [{"step": "x", "command": 3, "code": [], "versions": 1, "device": "cpu", "host": [], "data": 1}]}',
    ],
)
def test_a_damaged_file_is_no_damaged_run(tmp_path, text):
    path = write_run(tmp_path / "a", config_at(DISARM), [0.0] * 5)
    (path / "run.json").write_text(text)
    run = read_run(path)
    assert run.command == "python -m main --config configs/base.py"
    assert str(run.codes[0]) == "unknown commit"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"commit": A}, {"commit": A}, None),
        ({"commit": A}, {"commit": B}, "seeds made by different code: aaaaaaa, bbbbbbb"),
        ({"commit": A}, None, "seeds made by different code: aaaaaaa, unknown commit"),
        ({"commit": A}, {"commit": A, "dirty": True}, "seeds made by different code: aaaaaaa, aaaaaaa + changes"),
        (
            {"commit": A},
            {"commit": A, "jax": "0.11"},
            "seeds made by different code: aaaaaaa (jax 0.10.2 jaxlib 0.10.2), aaaaaaa (jax 0.11 jaxlib 0.11)",
        ),
        (None, None, None),
    ],
)
def test_seeds_of_different_code_are_pooled_with_a_remark(tmp_path, one, other, expected):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [-116.0], code=one)
    write_run(tmp_path / "b", config_at(DISARM, seeds=(1,)), [-116.2], code=other)
    found = [remark for remark in remarks(tmp_path) if "code" in remark]
    assert found == ([expected] if expected else [])
    (drawing,) = draw_all(pool_runs(read_runs([tmp_path])[0]))
    label = drawing.figure.axes[0].get_lines()[0].get_label()
    assert label == ("DisARM" if expected is None else f"DisARM [{expected.partition(': ')[2]}]")


def test_without_a_commit_the_version_tells_code_apart(tmp_path):
    for number, version in enumerate(("0.1.0", "0.2.0")):
        code = {"commit": None, "code": {"commit": None, "dirty": None, "version": version}}
        write_run(tmp_path / version, config_at(DISARM, seeds=(number,)), [-116.0], code=code)
    (remark,) = [remark for remark in remarks(tmp_path) if "code" in remark]
    assert "disarm_jax 0.1.0" in remark
    assert "disarm_jax 0.2.0" in remark


def test_two_runs_with_changes_are_never_taken_for_the_same(tmp_path):
    for number in range(2):
        code = {"commit": A, "dirty": True}
        write_run(tmp_path / str(number), config_at(DISARM, seeds=(number,)), [-116.0], code=code)
    assert "seeds made by different code: aaaaaaa + changes" in remarks(tmp_path)


def test_a_seed_made_twice_by_different_code_says_which_one_counts(tmp_path):
    write_run(tmp_path / "new", config_at(DISARM, seeds=(0,)), [-116.0], code={"commit": B, "dirty": True})
    write_run(tmp_path / "old", config_at(DISARM, seeds=(0,)), [-117.0], code={"commit": A})
    expected = "seed 0 counts from old (aaaaaaa), not from new (bbbbbbb + changes)"  # a commit before changes
    assert expected in remarks(tmp_path)
    (pool,) = pool_runs(read_runs([tmp_path])[0])
    assert pool.value("train_elbo").mean == -117.0


def test_a_run_continued_by_other_code_says_so(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0,)), [-116.0], code={"commit": A})
    entries = [entry(commit=A), entry(commit=B, step=500_000)]
    (path / "run.json").write_text(json.dumps({"format": 1, "entries": entries}))
    assert "run was continued by other code: aaaaaaa, bbbbbbb" in remarks(tmp_path)
    make_report([str(tmp_path)], tmp_path / "out")
    assert "aaaaaaa, bbbbbbb – continued by other code" in (tmp_path / "out" / "index.html").read_text()


def test_times_of_a_run_on_two_devices_are_left_out(tmp_path):
    path = write_run(tmp_path / "run", config_at(DISARM, seeds=(0,)), [-116.0], code={"commit": A})
    other = entry(commit=A, step=1000, device={"platform": "gpu", "kind": "a GPU", "count": 1})
    (path / "run.json").write_text(json.dumps({"format": 1, "entries": [entry(commit=A), other]}))
    runs, _ = read_runs([tmp_path])
    assert len(runs[0].devices) == 2
    assert compare(pool_runs(runs), get_config).cells[DISARM, "train"].time is None


def test_unknown_versions_are_no_other_code():
    known, unknown = Code(None, None, (("jax", "1"),)), Code(None, None, ())
    assert differing_codes([known, unknown]) == ()
    assert differing_codes([known, known._replace(commit=A)]) == (known, known._replace(commit=A))
