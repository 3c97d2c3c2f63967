"""The toy problem: closed forms against enumeration and quadrature, Monte Carlo against closed forms, the command."""

import csv
import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from matplotlib.figure import Figure

import disarm_jax as dj
from scripts import toy

pytestmark = pytest.mark.usefixtures("quick_compile")

TARGETS = (0.49, 0.499, 0.4999)
COLUMNS = ["p0", "estimator", "step", "probability", "gradient", "exact_gradient"]
COLUMNS += ["variance", "variance_stderr", "exact_variance"]


def outcomes(name, p0, phi):
    """Every value of an estimator and its probability, from the library's formulas: enumeration, or quadrature in u."""
    p = float(jax.nn.sigmoid(phi))
    if name in ("reinforce", "reinforce_loo"):
        count = 1 if name == "reinforce" else 2
        b = jnp.moveaxis(jnp.indices((2,) * count).reshape(count, -1), 1, 0)[..., None].astype(jnp.float64)
        f_b = (b[..., 0] - p0) ** 2
        values = jax.vmap(lambda b, f_b: getattr(dj.formulas, name)(phi[None], b, f_b)[0])(b, f_b)
        return values, jnp.prod(jnp.where(b[..., 0] == 1, p, 1 - p), axis=1)
    # The estimate is a polynomial in u between the points where a bit of the pair changes
    nodes, weights = np.polynomial.legendre.leggauss(8)
    ends = np.array([0, min(p, 1 - p), max(p, 1 - p), 1])
    u = jnp.asarray(np.concatenate([a + (b - a) * (nodes + 1) / 2 for a, b in itertools.pairwise(ends)]))
    weights = jnp.asarray(np.concatenate([(b - a) * weights / 2 for a, b in itertools.pairwise(ends)]))
    b, b_tilde = (1 - u < p).astype(u.dtype), (u < p).astype(u.dtype)
    f_b, f_b_tilde = (b - p0) ** 2, (b_tilde - p0) ** 2
    if name == "arm":
        return dj.formulas.arm(u[:, None], f_b, f_b_tilde)[:, 0], weights
    return dj.formulas.disarm(phi[None], b[:, None], b_tilde[:, None], f_b, f_b_tilde)[:, 0], weights


@pytest.mark.parametrize("p0", [*TARGETS, 0.7])
@pytest.mark.parametrize("name", ["reinforce", "reinforce_loo", "arm", "disarm"])
def test_exact_moments_are_those_of_all_outcomes(name, p0):
    with jax.enable_x64(True):
        for phi in (-2.0, 0.0, 0.03, 1.0, 6.0):
            values, weights = jax.device_get(outcomes(name, p0, jnp.asarray(phi)))
            mean = weights @ values
            variance = weights @ (values - mean) ** 2
            deviation = np.sqrt(weights @ ((values - mean) ** 2 - variance) ** 2)
            tolerance = {"rtol": 1e-9, "atol": 1e-9 * np.max(values**2)}
            np.testing.assert_allclose(toy.exact_gradient(p0, phi), mean, **tolerance)
            np.testing.assert_allclose(toy.exact_variance(name, p0, phi), (variance, deviation), **tolerance)


@pytest.mark.parametrize("p0", TARGETS)
def test_exact_variance_of_disarm_is_below_loo_and_arm_everywhere(p0):
    phi = np.linspace(-10, 10, 2001)
    disarm, arm, loo = (toy.exact_variance(name, p0, phi)[0] for name in ("disarm", "arm", "reinforce_loo"))
    assert np.all(disarm < arm)
    assert np.all(disarm < loo)
    assert disarm[1000] == 0  # φ = 0: the pair always differs, and DisARM is the exact gradient
    # Far out nearly all variance is in whether the pair differs at all, and the three come together
    np.testing.assert_allclose([arm[-1] / disarm[-1], loo[-1] / disarm[-1]], 1, atol=1e-4)


def test_no_closed_form():
    assert toy.exact_variance("relax", 0.49, 0.0) is None
    assert np.all(np.isfinite(toy.exact_variance("arm", 0.49, [-1e4, 1e4])))


def run(name, p0, *, learning_rate=1.0, steps=30, num_samples=5000):
    ascent = toy.make_ascent(name, learning_rate, num_samples)
    return toy.run_trace(name, p0, 0, steps, num_samples, ascent, lambda count: None)


@pytest.mark.parametrize("name", ["reinforce", "reinforce_loo", "arm", "disarm"])
def test_monte_carlo_variance_agrees_with_the_exact_one(name):
    # Steps of this size climb from σ = 0.5 to about 0.99. The standard error is that of the mean of 5000 squared
    # errors, from their exact moments; 4 of them at 30 points in each of 4 estimators fail by chance in 1 run of 100.
    trace = run(name, 0.49, learning_rate=1.0 if name == "reinforce" else 100.0)
    assert trace.probability[0] == 0.5
    assert np.all(np.abs(trace.variance - trace.exact_variance) <= 4 * trace.variance_stderr)
    if name != "reinforce":
        assert trace.final_probability > 0.95


def test_interpolated_learns_to_be_disarm():
    # One bit is best served by β = 1, where the estimator is DisARM
    trace = run("interpolated", 0.4999, steps=300, num_samples=2000)
    phi = np.log(trace.probability) - np.log1p(-trace.probability)
    variance, deviation = toy.exact_variance("disarm", 0.4999, phi)
    z = (trace.variance - variance) / (deviation + 1e-30) * np.sqrt(2000)
    assert trace.variance[0] > 1e-10 > variance.max()
    assert np.abs(z[-20:]).max() < 4  # 20 points, 0.1 % by chance


def test_a_longer_ascent_begins_like_a_shorter_one():
    ascent = toy.make_ascent("disarm", 1.0, 10)
    short, long = (toy.run_trace("disarm", 0.49, 0, steps, 10, ascent, lambda count: None) for steps in (13, 20))
    np.testing.assert_array_equal(short.gradient, long.gradient[:13])
    np.testing.assert_array_equal(short.variance, long.variance[:13])


def parse(*args):
    values = flags.FlagValues()
    toy.define_flags(values)
    values(["toy", *args])
    return values


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("--estimators=disarm,vimco", "'vimco' is for multi-sample bounds; accepted: arm, arms, "),
        ("--estimators=dissarm", "'dissarm' is not an estimator; accepted: arm, arms, "),
        ("--estimators=arm,arm", "none of them twice"),
        ("--estimators=", "at least one value"),
        ("--p0=0.49,1", "'1'; accepted: numbers between 0 and 1"),
        ("--p0=half", "'half'; accepted: numbers between 0 and 1"),
        ("--p0=nan", "'nan'; accepted: numbers between 0 and 1"),
        ("--p0=0.3,.3", "none of them twice"),
        ("--steps=0", "0 is not a positive integer"),
        ("--num_samples=1", "1 is not integer >= 2"),
        ("--learning_rate=-1", "learning_rate=-1.0.*accepted: positive finite numbers"),
        ("--learning_rate=inf", "learning_rate=inf.*accepted: positive finite numbers"),
        ("--seed=-1", r"-1 is not an integer in the range \[0, 4294967295\]"),
    ],
)
def test_bad_flags_name_the_value_and_what_is_accepted(arg, message):
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        parse(arg)


def test_unwritable_out_and_stray_arguments_are_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^cannot write to --out=.*file/toy: Not a directory; accepted: .*$"):
        toy.main(["toy"], parse(f"--out={tmp_path}/file/toy"))
    with pytest.raises(SystemExit, match=r"unexpected arguments \['0.499'\]"):
        toy.main(["toy", "0.499"], parse("--p0=0.49"))


def test_bad_flag_on_the_command_line():
    done = subprocess.run([sys.executable, "-m", "scripts.toy", "--p0=2"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "bad value '2'; accepted: numbers between 0 and 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def rows_of(out):
    with open(out / "toy.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_writes_figure_and_csv(tmp_path, capsys):
    out = tmp_path / "new" / "toy"
    toy.main(["toy"], parse(f"--out={out}", "--p0=0.49,0.4999", "--steps=10", "--num_samples=20"))
    assert sorted(path.name for path in out.iterdir()) == ["toy.csv", "toy.pdf", "toy.png"]
    assert (out / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "toy.pdf").read_bytes().startswith(b"%PDF")
    rows = rows_of(out)
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 2 * 3 * 10
    for row in rows:
        p0, p = float(row["p0"]), float(row["probability"])
        np.testing.assert_allclose(float(row["exact_gradient"]), (1 - 2 * p0) * p * (1 - p), rtol=1e-12)
        assert float(row["exact_variance"]) >= 0
    printed = capsys.readouterr()
    assert all(str(out / f"toy.{kind}") in printed.out for kind in ("png", "pdf", "csv"))
    assert "step 60 of 60" in printed.err.splitlines()[-1], "plain lines where there is no terminal"
    assert "\r" not in printed.err


def test_other_estimators_by_flag(tmp_path):
    names = ["disarm", "relax"]
    args = (f"--estimators={','.join(names)}", "--p0=0.5,0.8", "--steps=2", "--num_samples=20", f"--out={tmp_path}")
    toy.main(["toy"], parse(*args))
    rows = rows_of(tmp_path)
    assert {row["estimator"] for row in rows} == set(names)
    assert {row["exact_variance"] for row in rows if row["estimator"] != "disarm"} == {""}
    assert all(np.isfinite(float(row[column])) for row in rows for column in COLUMNS[2:8])
    # A trace is the same whatever else was asked for
    alone = run("disarm", 0.8, steps=2, num_samples=20)
    mine = [row for row in rows if (row["p0"], row["estimator"]) == ("0.8", "disarm")]
    assert [float(row["variance"]) for row in mine] == list(alone.variance)


def test_long_traces_are_thinned():
    np.testing.assert_array_equal(toy.shown(3), [0, 1, 2])
    points = toy.shown(2000)
    assert len(points) == toy.MAX_POINTS
    assert (points[0], points[-1]) == (0, 1999)


def test_a_crash_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(toy, "plot", lambda *args: Figure())
    monkeypatch.setattr(toy, "write_csv", fail)
    with pytest.raises(OSError, match="disk full"):
        toy.main(["toy"], parse(f"--out={tmp_path}", "--p0=0.49", "--estimators=arm", "--steps=1", "--num_samples=2"))
    assert list(tmp_path.iterdir()) == []
