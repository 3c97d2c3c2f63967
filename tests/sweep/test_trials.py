"""What a config file states becomes trials with good names; what is wrong is refused in one line before any work."""

import functools
import importlib
import json
import pathlib
import re
import shlex
from unittest import mock

import pytest
from sweeping import run, write_config, write_program
from test_configs import parsed

from configs import base
from disarm_jax.command_line import get_config
from disarm_jax.experiment.config import resolve, version
from disarm_jax.experiment.fields import plain
from disarm_jax.run_directory import directory
from disarm_jax.sweep import slurm
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.trials import SweepError, main_command, make_trials, read_points, select, trial_names
from scripts import sweep

SWEEPS = {"elbo": 24, "layers": 36, "multisample": 24}


@functools.cache  # resolving many configs takes seconds
def trials_of(name):
    file = f"configs/sweeps/{name}.py"
    config = importlib.import_module(f"configs.sweeps.{name}").get_config()
    return make_trials(config, read_points(file), {})


def test_trials_on_gpus_have_the_flag_for_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "deterministic_gpu_flag", lambda: "--same_bits")
    values, trial = mock.Mock(gpus=None, cluster="local", setup=[]), trials_of("elbo")[0]
    make = lambda gpus: sweep.make_task(trial, SweepFolder(tmp_path), values, None, gpus)
    assert [make(gpus).xla_flags for gpus in (0, 2)] == ["", "--same_bits"]


class TestPaper:
    @pytest.mark.parametrize("name", SWEEPS)
    def test_every_sweep_is_good(self, name):
        trials = trials_of(name)
        assert len(trials) == SWEEPS[name]
        assert all(len(trial.config["seeds"]) == 5 and trial.config["steps"] == 1_000_000 for trial in trials)
        doc = importlib.import_module(f"configs.sweeps.{name}").__doc__
        assert f"{SWEEPS[name]} trials" in doc
        assert re.search(r"about \d+ hours of one core", doc)

    @pytest.mark.parametrize(
        ("name", "file", "options"),
        [
            ("dataset=mnist,model.hidden=none,estimator=disarm", "elbo_linear", []),
            ("dataset=omniglot,model.hidden=200-200,estimator=relax", "elbo_nonlinear", ["omniglot", "relax"]),
            ("dataset=mnist,model.latents=200-200-200,estimator=arm", "layers:3", ["mnist", "arm"]),
            (
                "dataset=mnist,model.hidden=none,estimator=multisample_disarm,objective.num_samples=10",
                "multisample:disarm,10",
                [],
            ),
            (
                "dataset=mnist,model.hidden=none,estimator=vimco,objective.num_samples=2,estimator.options.baseline=geometric",
                "multisample:vimco,2",
                [],
            ),
        ],
    )
    def test_trials_are_the_experiments_of_the_single_configs(self, name, file, options):
        config = get_config(file)
        if options:
            config.dataset.name, config.estimator.name = options
        everything = {trial.name: trial.config for sweep in SWEEPS for trial in trials_of(sweep)}
        assert everything[name] == resolve(config)

    @pytest.mark.parametrize("name", SWEEPS)
    def test_commands_of_the_docstrings_are_good(self, name, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("PATH", "")  # without a Slurm, which may have other partitions
        doc = importlib.import_module(f"configs.sweeps.{name}").__doc__
        commands = re.findall(r"^    python -m scripts.sweep (.*)$", doc, re.M)
        assert len(commands) == 2
        for command in commands:
            out = f"--out={tmp_path / 'out'}"
            assert run(*shlex.split(command), out, "--dry_run") == 0
            assert f"--config=configs/sweeps/{name}.py" in capsys.readouterr().out
        assert not (tmp_path / "out").exists()


POINTS = [
    {"optimizer.encoder.learning_rate": 1e-3, "seeds": (1, 2), "dataset.data_dir": "/a b"},
    {"model.signed_input": False, "variance.estimators": ["arm", "relax"], "estimator.options.num_pairs": 2},
    {"estimator.options.num_pairs": None, "model.hidden": ()},
]


@pytest.mark.parametrize("point", POINTS)
def test_main_reads_the_config_that_was_checked(point):
    config = base.get_config()
    config.steps = 7000
    (trial,) = make_trials(config, [point], {"steps": 7000})
    command = main_command("python", "configs/base.py", trial, "/out/trial")
    assert command[:4] == ["python", "-m", "main", "--config=configs/base.py"]
    fields = [argument for argument in command if argument.startswith("--config.")]
    assert "--config.steps=7000" in fields
    assert resolve(parsed("base", *fields)) == trial.config


class TestNames:
    def test_they_show_what_varies(self):
        points = [{"steps": 1, "dataset.name": "mnist", "model.hidden": ()}]
        assert trial_names(points) == ["steps=1,dataset=mnist,model.hidden=none"]
        points.append({"steps": 1, "dataset.name": "mnist", "model.hidden": (200, 200)})
        assert trial_names(points) == ["model.hidden=none", "model.hidden=200-200"]
        assert trial_names([{}, {"steps": 2}]) == ["trial", "steps=2"]

    def test_they_do_not_depend_on_the_rest_of_the_sweep(self):
        points = [{"steps": number, "estimator.name": name} for number in (1, 2) for name in ("arm", "disarm")]
        assert trial_names(points[::-1]) == trial_names(points)[::-1]
        assert trial_names([*points, {"steps": 3, "estimator.name": "arm"}])[:4] == trial_names(points)

    def test_they_are_safe_and_different(self):
        values = ["a/b", "a_b", "a b", "..", "a" * 400, "a" * 401, "é", "mine:arm", "--x", "$(x)"]
        names = trial_names([{"dataset.path": value} for value in values])
        assert len(set(names)) == len(names)
        for name in names:
            assert re.fullmatch(r"dataset\.path=[\w.,=+-]+", name, re.ASCII)
            assert len(name) < 200

    @pytest.mark.parametrize(
        ("only", "count"),
        [
            ([], 24),
            (["dataset=mnist"], 8),
            (["dataset.name=mnist", "dataset=omniglot"], 16),
            (["model.hidden=none"], 12),
            (["model.hidden=(200, 200)", "config.estimator.name=arm"], 3),
        ],
    )
    def test_only(self, only, count):
        trials = trials_of("elbo")
        chosen = select(trials, only)
        assert len(chosen) == count
        assert set(map(str, chosen)) <= set(map(str, trials))  # with the same names


# What get_hyper returns, further flags, and what the message must match.
BAD = [
    ('hyper.sweep("nosuch", [1])', [], r"sets 'nosuch', but the config has no such field"),
    ('hyper.sweep("model.nosuch", [1])', [], r"sets 'model\.nosuch', but the config has no such field"),
    ('hyper.sweep("model", [1])', [], r"sets 'model', but the config has no such field"),
    ('hyper.product([hyper.sweep("steps", [5]), []])', [], r"is empty: a product with a sweep over no values"),
    ("[]", [], r"the sweep of .* is empty"),
    ("None", [], r"must return a list of dicts"),
    ("hyper.nosuch()", [], r"get_hyper of .*: AttributeError: module .* has no attribute 'nosuch'"),
    ("{}['x']", [], r"get_hyper of .*: KeyError: 'x' \(sweep_config\.py, line 12\)"),
    ("undefined", [], r"get_hyper of .*: NameError: name 'undefined' is not defined"),
    ("hyper.product([])", [], r"the sweep of .* is empty"),
    ('hyper.product(hyper.sweep("steps", [5]))', [], r"'steps' is not a trial; accepted: a list of sweeps"),
    ('hyper.sweep("steps", [5, 5])', [], r"the same trial twice: trial and trial, which sets steps=5"),
    ('hyper.sweep("steps", [5, 10, 5])', [], r"the same trial twice: steps=5 and steps=5"),
    ('hyper.chainit([hyper.sweep("steps", [20, 5]), [{}]])', [], r"the same trial twice: steps=20 and trial"),
    ('hyper.sweep("estimator.name", ["arm", "amr"])', [], r"estimator=amr: estimator\.name is 'amr'; accepted: arm"),
    ('hyper.sweep("steps", ["many"])', [], r"steps=many: .*'steps'.*many.*int"),
    ('hyper.sweep("estimator.options.num_pairs", [{}])', [], r"sets estimator\.options\.num_pairs to \{\}; accepted"),
    ('hyper.sweep("steps", [None])', [], r"sets steps to None; accepted: numbers"),
    ("hyper.zipit([[{}], []])", [], r"get_hyper of .*: zip\(\) argument 2 is shorter"),
    ('hyper.sweep("steps", [5])', ["--config.steps=6"], r"--config\.steps is swept, so it cannot be set for all"),
    ('hyper.sweep("steps", [5])', ["--only=steps=6"], r"--only=steps=6: no trial has this value; accepted: 5"),
    ('hyper.sweep("steps", [5])', ["--only=seeds=6"], r"--only=seeds=6: .*accepted: a value of steps"),
    ('hyper.sweep("steps", [5])', ["--config.batch_size=0"], r"steps=5: batch_size is 0; accepted"),
    ('hyper.sweep("steps", [5])', ["--cluster=debug", "--setup=true"], r"--setup is for slurm and local"),
    ('hyper.sweep("steps", [5])', ["--cpus=9999"], r"--cpus=9999: this machine has 0 GPUs and \d+ cores"),
    ('hyper.sweep("steps", [5])', ["--gpus=9"], r"--gpus=9 --cpus=1: this machine has 0 GPUs"),
    ('hyper.sweep("steps", [5])', ["--sbatch=a b"], r"--sbatch=a b: accepted: options of sbatch as key=value"),
    ('hyper.sweep("steps", [5])', ["--sbatch=qos=x,array=3"], r"--sbatch=array=3: accepted: --max_parallel$"),
    ('hyper.sweep("steps", [5])', ["--sbatch=arr=3"], r"--sbatch=arr=3: accepted: --max_parallel$"),
    ('hyper.sweep("steps", [5])', ["--sbatch=account"], r"--sbatch=account: accepted: key=value, or without a value "),
    ('hyper.sweep("steps", [5])', ["--sbatch=wait"], r"--sbatch=wait: accepted: .*except .*wait"),
    ('hyper.sweep("steps", [5])', ["--sbatch=time=3"], r"--sbatch=time=3: accepted: --time_min$"),
    ('hyper.sweep("steps", [5])', ["--sbatch=gres=gpu:1"], r"--sbatch=gres=gpu:1: accepted: --gpus"),
    ('hyper.sweep("steps", [5])', ["--sbatch=no-requeue"], r"--sbatch=no-requeue: accepted: .*except .*no-requeue"),
    ('hyper.sweep("steps", [5])', ["--out="], r"--config and --out are needed"),
    ('hyper.sweep("steps", [5])', ["--status="], r"--status is empty; accepted: the folder of a sweep"),
    ('hyper.sweep("steps", [5])', ["stray"], r"unexpected arguments \['stray'\]"),
]


@pytest.mark.parametrize(("hyper", "more", "message"), BAD)
def test_bad_sweeps_are_refused(hyper, more, message, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = run(f"--config={write_config(tmp_path, hyper)}", f"--out={tmp_path / 'out'}", *more)
    assert re.match("error: ", found)
    assert re.search(message, found), found
    assert "\n" not in found
    assert not (tmp_path / "out").exists()


def test_files_that_state_no_sweep(tmp_path):
    assert "has no function get_hyper" in run("--config=configs/base.py", f"--out={tmp_path / 'out'}")
    assert "No such file or directory: 'nosuch.py'" in run("--config=nosuch.py", f"--out={tmp_path / 'out'}")
    assert "--config and --out are needed" in run("--config=configs/sweeps/elbo.py")
    assert "--config and --out are needed" in run(f"--out={tmp_path}")
    assert "no sweep was launched in" in run(f"--status={tmp_path}")


class TestSlurmIsAsked:
    """Answers of pretended programs."""

    @pytest.fixture
    def programs(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return functools.partial(write_program, tmp_path / "bin")

    def test_the_same_cpus_whatever_is_left_of_a_sweep(self, tmp_path, programs, capfd):
        hyper = 'hyper.sweep("seeds", [(0,), (0, 1, 2)])'
        command = (f"--config={write_config(tmp_path, hyper)}", f"--out={tmp_path / 'out'}", "--cluster=slurm")
        assert run(*command, "--only=seeds=0", "--dry_run") == 0
        assert "each with 0 GPUs, 3 CPUs" in capfd.readouterr().out

    def refusal(self, tmp_path, *more):
        return run(f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'out'}", "--cluster=slurm", *more)

    def test_no_slurm(self, tmp_path, programs):
        assert self.refusal(tmp_path).startswith("error: no Slurm on this machine: there is no sbatch")

    def test_no_answer(self, tmp_path, programs):
        programs("sbatch", "exit 1")
        programs("sinfo", "echo slurm_load_partitions: Unable to contact >&2; exit 1")
        expected = "error: Slurm does not answer: slurm_load_partitions: Unable to contact"
        assert self.refusal(tmp_path) == expected
        assert self.refusal(tmp_path, "--dry_run") == 0

    def test_no_such_partition(self, tmp_path, programs):
        programs("sbatch", "exit 1")
        programs("sinfo", "echo 'short*|4'; echo 'long|8'")
        message = "error: --partition=gpu: no such partition; accepted: long, short"
        assert self.refusal(tmp_path, "--partition=gpu") == message
        assert self.refusal(tmp_path, "--partition=gpu", "--dry_run") == message
        assert self.refusal(tmp_path, "--cpus=5") == "error: --cpus=5: accepted: up to 4, as many as a node has"
        assert self.refusal(tmp_path, "--cpus=9", "--partition=long").startswith("error: --cpus=9: accepted: up to 8,")
        assert self.refusal(tmp_path, "--cpus=8", "--partition=long", "--dry_run") == 0
        assert not (tmp_path / "out").exists()

    def test_no_answer_about_queued_trials(self, tmp_path, programs, capfd):
        """They may be anywhere: they are not submitted once more."""
        programs("sinfo", "echo 'short|4'")
        programs("sbatch", f"touch {tmp_path / 'submitted'}; echo Submitted batch job 18")
        programs("squeue", "echo slurm_load_jobs error: Unable to contact >&2; exit 1")
        folder = SweepFolder(tmp_path / "out")
        folder.logs.mkdir(parents=True)
        names = [f"estimator={name}" for name in ("arm", "disarm", "reinforce_loo")]
        record = {name: {"command": [], "steps": 20, "job": f"17_{number}"} for number, name in enumerate(names)}
        folder.write_record(record)
        (tmp_path / "out" / names[0]).mkdir()
        (tmp_path / "out" / names[0] / "DONE").write_text("20\n")
        message = "error: 2 trials, such as estimator=disarm, may be queued: Slurm does not answer; "
        assert self.refusal(tmp_path).startswith(message)
        assert self.refusal(tmp_path, "--cluster=local").startswith(message)
        assert self.refusal(tmp_path, "--cluster=local", "--dry_run") == 0
        assert "estimator=disarm: unknown" in capfd.readouterr().out
        assert run(f"--status={folder.path}") == 1
        assert "3 trials: 1 done, 2 unknown" in capfd.readouterr().out
        assert (folder.read_record(), (tmp_path / "submitted").exists()) == (record, False)

    def test_a_queued_trial_is_not_left_alone_with_another_config(self, tmp_path, programs, capfd):
        programs("sinfo", "echo 'short|4'")
        programs("squeue", "for n in 0 1 2; do echo '17_'$n'|PENDING|Priority'; done")
        programs("srun", "exit 1")
        programs("sbatch", "echo Submitted batch job 17")
        assert self.refusal(tmp_path) == 0
        assert self.refusal(tmp_path) == 0, "all of them are on their way"
        assert "3 trials: 3 waiting" in capfd.readouterr().out
        for field, old, new in (("batch_size", 5, 6), ("steps", 20, 40)):
            found = self.refusal(tmp_path, f"--config.{field}={new}")
            message = f"error: estimator=arm is waiting, launched with another config: {field}: {old} then, {new} now"
            assert found.startswith(message)
        run_dir = tmp_path / "out" / "estimator=arm"  # the file was edited before the job began
        run_dir.mkdir()
        config = SweepFolder(tmp_path / "out").read_record()["estimator=arm"]["config"]
        (run_dir / "config.json").write_text(json.dumps(plain(config) | {"batch_size": 7}))
        assert run(f"--status={tmp_path / 'out'}") == 1
        assert "not the config that was launched: batch_size: 7 in the run directory" in capfd.readouterr().out

    def test_a_sweep_that_older_code_has_launched(self, tmp_path, programs, monkeypatch):
        monkeypatch.setattr(directory, "default_platform", lambda: "cpu")
        programs("sinfo", "echo 'short|4'")
        programs("squeue", "for n in 0 1 2; do echo '17_'$n'|PENDING|Priority'; done")
        programs("srun", "exit 1")
        programs("sbatch", "echo Submitted batch job 17")
        assert self.refusal(tmp_path) == 0
        folder = SweepFolder(tmp_path / "out")
        launched = folder.read_record()
        saved = json.loads(folder.record_file.read_text())
        for entry in saved["trials"].values():
            assert entry["config"].pop("version") == version()
            del entry["config"]["matmul_precision"]
        folder.record_file.write_text(json.dumps(saved))
        assert folder.read_record() == launched
        assert self.refusal(tmp_path) == 0, "all of them are on their way"
        entry["config"]["version"] = version() + 1
        folder.record_file.write_text(json.dumps(saved))
        assert self.refusal(tmp_path).startswith(f"error: {folder.record_file}: version is {version() + 1}; accepted: ")

    def test_it_refuses(self, tmp_path, programs):
        programs("sinfo", "echo 'short|4'")
        programs("srun", "exit 1")
        programs("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
        assert self.refusal(tmp_path, "--sbatch=account=x") == (
            "error: Slurm has refused the job: sbatch: error: Invalid account"
        )
        for told in ("sbatch: unrecognized option '--nosuch=1'", "sbatch: option '--hold' doesn't allow an argument"):
            programs("sbatch", f"""echo "{told}" >&2; echo 'Try "sbatch --help" for more information' >&2; exit 1""")
            assert self.refusal(tmp_path, "--sbatch=nosuch=1") == f"error: Slurm has refused the job: {told}"


def test_numbers_of_numpy_and_a_config_with_an_argument(tmp_path, capfd):
    file = write_config(tmp_path, """hyper.sweep("steps", __import__("numpy").arange(5, 7))""")
    text = pathlib.Path(file).read_text().replace("def get_config():", "def get_config(size):")
    pathlib.Path(file).write_text(text)
    assert run(f"--config={file}:small", f"--out={tmp_path / 'out'}", "--dry_run") == 0
    assert f"--config={file}:small --config.steps=6 " in capfd.readouterr().out


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_trials_without_gpus_do_not_see_them(tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen = []
    monkeypatch.setattr(sweep, "dry_run", lambda tasks, *unused: seen.extend(task.env for task in tasks) or 0)
    command = (f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'out'}", f"--cluster={cluster}", "--dry_run")
    assert run(*command, "--gpus=0") == 0
    assert run(*command, "--gpus=1") == 0
    assert [env.get("JAX_PLATFORMS") for env in seen] == ["cpu"] * 3 + [None] * 3


def test_sbatch_options():
    assert slurm.parse_sbatch(["qos=1,b-c=2,3", "exclusive", ""]) == {"qos": "1", "b-c": "2,3", "exclusive": True}
    with pytest.raises(SweepError):
        slurm.parse_sbatch(["signal=USR1@5"])
