"""Named variants stand beside the reference under their names, whatever the config files take for the reference."""

import pytest
from synthetic import config_at, write_run

from disarm_jax.command_line import get_config
from disarm_jax.report import paper, tables
from disarm_jax.report.cells import compare
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs
from disarm_jax.report.verdict import give_verdict

DISARM, VIMCO = Place("mnist", "linear", "disarm"), Place("mnist", "linear", "vimco_20")
CLOSE = [-116.4, -116.3, -116.2]


def reference(samples="independent", baseline="geometric"):
    def get(name):
        config = get_config(name)
        if config.objective.name == "elbo":
            config.objective.generative_samples = samples
        if config.estimator.name == "vimco":
            config.estimator.options.baseline = baseline
        return config

    return get


def compared(folder, get):
    runs, problems = read_runs([folder])
    assert not problems
    return compare(pool_runs(runs), get)


def write_samples(folder, samples, train, **more):
    config = config_at(DISARM, seeds=(0, 1, 2), **{"objective.generative_samples": samples}, **more)
    write_run(folder / samples, config, train)


@pytest.mark.parametrize(("usual", "other"), [("independent", "shared"), ("shared", "independent")])
def test_other_generative_samples_are_a_variant_that_does_not_count(tmp_path, usual, other):
    write_samples(tmp_path, usual, CLOSE)
    write_samples(tmp_path, other, [-115.9, -115.8, -115.7])
    comparison = compared(tmp_path, reference(samples=usual))
    cell, variant = comparison.at(DISARM, "train")
    assert (cell.verdict, cell.name, cell.counts) == ("match", "DisARM", True)
    assert (variant.verdict, variant.name, variant.counts) == ("variant", f"DisARM, {other} samples", False)
    assert variant.reasons == ()
    assert variant.difference > 2
    assert comparison.others == []
    assert {cell.variant for cell in give_verdict(comparison).cells} == {""}
    text = tables.markdown(paper.TABLES[0], comparison)
    lines = [line for line in text.splitlines() if line.startswith("| Dynamic MNIST | Linear | DisARM")]
    assert [line.split(" | ")[2] for line in lines] == ["DisARM", f"DisARM, {other} samples"]


def test_a_variant_without_its_reference_is_shown(tmp_path):
    write_samples(tmp_path, "shared", CLOSE)
    comparison = compared(tmp_path, reference())
    cell, variant = comparison.at(DISARM, "train")
    assert (cell.verdict, variant.verdict) == ("missing", "variant")
    assert "| DisARM, shared samples |" in tables.markdown(paper.TABLES[0], comparison)


def test_a_variant_with_other_differences_is_not_comparable(tmp_path):
    write_samples(tmp_path, "shared", CLOSE, batch_size=20)
    _, variant = compared(tmp_path, reference()).at(DISARM, "train")
    assert (variant.verdict, variant.reasons) == ("not comparable", ("batch_size is 20 instead of 50",))


@pytest.mark.parametrize(("usual", "other"), [("geometric", "arithmetic"), ("arithmetic", "geometric")])
def test_both_baselines_of_vimco_count_and_are_told_apart(tmp_path, usual, other):
    for number, baseline in enumerate((other, usual)):
        config = config_at(VIMCO, seeds=(0,), **{"estimator.options.baseline": baseline})
        write_run(tmp_path / baseline, config, [-109.4 + 0.1 * number])
    comparison = compared(tmp_path, reference(baseline=usual))
    cells = comparison.at(VIMCO, "train")
    assert [cell.name for cell in cells] == [f"VIMCO 20-samples, {name} baseline" for name in (usual, other)]
    assert [cell.verdict for cell in cells] == ["match", "match"]
    assert len([cell for cell in give_verdict(comparison).cells if cell.split == "train"]) == 2
