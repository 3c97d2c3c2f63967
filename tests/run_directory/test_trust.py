"""Nothing in a run directory is believed: changed, exchanged or made by somebody else, it is found out and told."""

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import sys
import time

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from test_resume import newest
from tiny import tiny_config

from disarm_jax import console, data
from disarm_jax.experiment import devices, evaluate, load, loop
from disarm_jax.experiment.config import ConfigError, resolve, versioned
from disarm_jax.experiment.evaluate import evaluate_run
from disarm_jax.experiment.load import load_images, load_run
from disarm_jax.progress import ProgressBar
from disarm_jax.run_directory import directory, fingerprint
from disarm_jax.run_directory.checkpoint import CheckpointError, Checkpoints, read_step
from disarm_jax.run_directory.directory import RunDir, RunDirError
from scripts import kill_test

pytestmark = pytest.mark.usefixtures("quick_compile")

SEEDS = (0, 3)
VIMCO = {"estimator.name": "vimco", "objective.name": "multisample"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True, scope="module")
def no_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda *unused: None)
        patch.setattr(loop, "draw_samples", lambda *unused: None)
        yield


def config_of(folder, **overrides):
    return tiny_config(folder, **{"seeds": SEEDS} | overrides)


@pytest.fixture(scope="module")
def reference(folder, no_figures, quick_compile):
    """A run that nobody touched, with checkpoints 10, 15 and 20."""
    loop.train(config_of(folder), folder / "reference")
    return folder / "reference"


@pytest.fixture(autouse=True)
def devices_as_they_are(monkeypatch):
    """Their number cannot be changed in a process that has used them."""
    monkeypatch.setattr(evaluate, "one_cpu_device_per_core", lambda number: None)


@pytest.fixture
def copy(reference, tmp_path):
    """The reference as if it had been killed when all was done but the end."""
    shutil.copytree(reference, tmp_path / "copy")
    (tmp_path / "copy" / "DONE").unlink()
    return tmp_path / "copy"


def rewrite(file, change):
    """Changes a JSON file."""
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


class TestCodeFromData:
    """A config.json may name what is to be imported."""

    @staticmethod
    def armed(run, tmp_path, field, name, monkeypatch):
        """The run names a function that leaves a mark when it is called, or its module when it is imported."""
        module = tmp_path / "armed.py"
        module.write_text(
            f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n\ndef fire(*a, **k): 1/0\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "armed", raising=False)
        *sections, key = field.split(".")
        of = lambda config: functools.reduce(lambda part, section: part[section], sections, config)
        rewrite(run / "config.json", lambda config: of(config).update({key: name}))

    @pytest.mark.parametrize(
        ("field", "name"),
        [
            ("estimator.name", "armed:fire"),
            ("model.name", "armed:fire"),
            ("objective.name", "armed:fire"),
            ("optimizer.prior.schedule", "armed:fire"),
            ("variance.estimators", ["armed:fire(x=1)"]),
        ],
    )
    def test_nothing_is_imported_unless_it_is_allowed(self, copy, tmp_path, monkeypatch, field, name):
        self.armed(copy, tmp_path, field, name, monkeypatch)
        for read in (load_run, lambda path: evaluate_run(path, 3)):
            with pytest.raises(ConfigError, match=rf"{field} is 'armed:fire', code .* add --allow_imports"):
                read(copy)
        assert not (tmp_path / "mark").exists()

    @pytest.mark.parametrize(("field", "name"), [("dataset.name", "armed:fire"), ("writers", ["armed:fire"])])
    def test_what_reading_does_not_need_is_not_imported(self, copy, tmp_path, monkeypatch, field, name):
        self.armed(copy, tmp_path, field, name, monkeypatch)
        if field == "dataset.name":
            for path in (copy / "checkpoints").iterdir():  # which know another data set
                change = lambda found: found["custom_metadata"]["run"]["config"]["dataset"].update(name=name)
                rewrite(path / "_CHECKPOINT_METADATA", change)
            with pytest.raises(ConfigError, match=r"dataset\.name is 'armed:fire', code .* add --allow_imports"):
                evaluate_run(copy, 3)
        assert load_run(copy).step == 20
        assert not (tmp_path / "mark").exists()

    def test_an_optimizer_of_subprocess(self, copy):
        rewrite(copy / "config.json", lambda config: config["optimizer"]["prior"].update(name="subprocess:run"))
        with pytest.raises(ConfigError, match=r"optimizer\.prior\.name is 'subprocess:run'"):
            load_run(copy)

    def test_what_is_allowed_is_imported(self, copy, tmp_path, monkeypatch):
        self.armed(copy, tmp_path, "estimator.name", "armed:fire", monkeypatch)
        with pytest.raises(ZeroDivisionError):
            load_run(copy, allow_imports=True)
        assert (tmp_path / "mark").exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.pop("model"), "config has no field 'model'"),
            (lambda c: c["estimator"].update(name="nosuch"), r"estimator\.name is 'nosuch'; accepted: "),
            (lambda c: c["estimator"].update(options={"pairs": 2}), "estimator is 'disarm"),
            (lambda c: c["model"].update(latents="x"), r"model\.latents is 'x'; accepted: "),
            (lambda c: c["model"].update(latents=[10**9]), r"model\.latents is \(1000000000,\)"),
            (lambda c: c.update(seeds=[-1]), r"seeds is \[-1\]"),
            (lambda c: c.update(seeds=[-1] * 10_000), r"seeds is \[-1, "),
            (
                lambda c: c["variance"].update(estimators=[f"disarm(num_pairs={'-' * 50_000}1)"]),
                r"variance\.estimators\[0\]: cannot read the estimator 'disarm\(num_pairs=-",
            ),
            (
                lambda c: c.update(estimator={"name": "relax", "options": {"hidden": 10**12}, "relax_form": "z"}),
                r"estimator\.options: hidden is 1000000000000, for which an array would have",
            ),
        ],
    )
    def test_it_is_checked_like_any_config(self, copy, change, message):
        rewrite(copy / "config.json", change)
        with pytest.raises(RunDirError, match=rf"config\.json: {message}") as caught:
            load_run(copy)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000

    def test_a_grid_is_not_listed_before_it_is_counted(self, copy):
        numbers = ",".join(str(number / 1000) for number in range(1, 1001))
        grid = " ".join(f"optimizer.{group}.learning_rate={numbers}" for group in ("encoder", "decoder", "prior"))
        rewrite(copy / "config.json", lambda config: config.update(grid=grid))
        for read in (load_run, lambda path: evaluate_run(path, 3)):
            with pytest.raises(ConfigError, match=r"grid has 1,000,000,000 points; accepted: up to 10,000"):
                read(copy)

    @pytest.mark.parametrize("text", ["[]", "null", "3", "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "{"])
    def test_what_is_no_config(self, copy, text):
        (copy / "config.json").write_text(text)
        for read in (load_run, lambda path: loop.train(config_of(copy.parent), path)):
            with pytest.raises(RunDirError, match=r"config\.json is damaged: ") as caught:
                read(copy)
            assert len(str(caught.value)) < 500

    def test_another_width_is_one_line(self, copy):
        rewrite(copy / "config.json", lambda config: config["model"].update(latents=[5]))
        with pytest.raises(CheckpointError, match=r"none of the checkpoints 20, 15, 10 in .* can be read"):
            load_run(copy)


class TestFiles:
    """Links, pipes and what is too large."""

    @pytest.mark.parametrize("name", ["config.json", "train_mean.npy"])
    @pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
    def test_only_regular_files_of_the_directory_are_read(self, copy, tmp_path, name, kind):
        shutil.move(copy / name, tmp_path / "elsewhere")
        make = {
            "link": lambda: (copy / name).symlink_to(tmp_path / "elsewhere"),
            "pipe": lambda: os.mkfifo(copy / name),
        }
        make.get(kind, lambda: (copy / name).mkdir())()
        with pytest.raises(RunDirError, match=re.escape(name)):
            load_run(copy)

    @pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "checkpoints", "tensorboard", "damaged"])
    def test_nothing_is_written_through_a_link(self, folder, copy, tmp_path, name):
        (tmp_path / "elsewhere").mkdir()
        if (copy / name).exists():
            shutil.move(copy / name, tmp_path / "elsewhere")
        (copy / name).symlink_to(tmp_path / "elsewhere" / name)
        with pytest.raises(RunDirError, match=rf"{name} is no regular file or folder"):
            loop.train(config_of(folder), copy)

    @pytest.mark.parametrize("name", ["tensorboard/seed_0", "points", "points/0-x", "points/0-x/tensorboard"])
    def test_nothing_is_written_through_a_link_further_down(self, folder, copy, tmp_path, name):
        (tmp_path / "elsewhere").mkdir()
        if (copy / name).exists():
            shutil.rmtree(copy / name)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RunDirError, match=rf"{name} is no regular file or folder"):
            loop.train(config_of(folder), copy)
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_links_of_other_programs_are_left_alone(self, folder, copy, tmp_path):
        """Weights & Biases makes some."""
        (copy / "wandb").symlink_to(tmp_path)
        loop.train(config_of(folder), copy)
        assert (copy / "DONE").exists()

    @pytest.mark.parametrize("kind", ["link", "pipe", "large"])
    def test_a_checkpoint_is_made_of_regular_files(self, copy, tmp_path, kind, capfd):
        file = next(path for path in (newest(copy) / "state").rglob("*") if path.is_file())
        shutil.move(file, tmp_path / "elsewhere")
        if kind == "link":
            file.symlink_to(tmp_path / "elsewhere")
        elif kind == "pipe":
            os.mkfifo(file)
        else:
            file.touch()
            os.truncate(file, 1 << 40)
        assert load_run(copy).step == 15
        assert "checkpoints/20 is damaged: " in capfd.readouterr().err

    def test_a_header_does_not_fill_the_memory(self, copy):
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
        (copy / "train_mean.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(RunDirError, match=r"train_mean\.npy is damaged: its header promises 8,000,000,000,000"):
            load_run(copy)

    @pytest.mark.parametrize(("path", "message"), [("a\0b", "has no NUL"), ("~nosuchuser/run", "no such user")])
    def test_paths_that_are_none(self, path, message):
        with pytest.raises(RunDirError, match=message):
            RunDir(path)


class TestRows:
    """Metrics that were lost or changed while a run was interrupted."""

    @staticmethod
    def change(run, how):
        file = run / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if '"step": 15' in line)
        if how == "deleted":
            file.unlink()
        elif how == "digit":
            lines[at] = re.sub(r'("objective": -?\d+\.)\d', lambda found: f"{found[1]}7", lines[at])
        elif how == "row":
            del lines[at]
        else:
            lines = lines[: len(lines) // 2]
        if how != "deleted":
            file.write_text("".join(lines))

    @pytest.mark.parametrize("how", ["row", "digit"])
    def test_what_can_be_made_again_is(self, folder, reference, copy, capfd, how):
        """The checkpoint 10 is older than the change at step 15."""
        self.change(copy, how)
        loop.train(config_of(folder), copy)
        said = capfd.readouterr().err
        assert "metrics.jsonl is not as it was when checkpoint 20 was saved: rows have changed" in said
        assert f"resuming {copy} at step 10\n" in said
        assert kill_test.compare(reference, copy) == []

    @pytest.mark.parametrize("how", ["deleted", "halved", "row", "digit"])
    def test_what_cannot_is_named(self, folder, copy, capfd, how):
        for step in (10, 15):
            shutil.rmtree(copy / "checkpoints" / str(step))
        self.change(copy, how)
        loop.train(config_of(folder), copy)
        said = capfd.readouterr().err
        expected = {
            "row": "are missing: step 15 of seeds 0;",
            "digit": "some were changed;",
            "halved": "are missing: step 15 of seeds 0, 3; step 20 of seeds 0, 3;",
        }
        every = (
            "are missing: step 5 of seeds 0, 3; step 10 of seeds 0, 3; step 15 of seeds 0, 3; and 1 more steps up to 20"
        )
        assert f"metrics.jsonl is not as it was written: of 14 rows up to step 20 {expected.get(how, every)}" in said
        assert "cannot be made again" in said
        assert "metrics.jsonl" in json.loads((copy / "run.json").read_text())["entries"][-1]["lost"]
        (copy / "DONE").unlink()
        loop.train(config_of(folder), copy)
        assert "is not as it was" not in capfd.readouterr().err, "it is told once"

    def test_a_changed_evaluation_after_the_last_checkpoint(self, folder, reference, copy):
        """It belongs to no checkpoint: it is made again."""
        text = (copy / "metrics.jsonl").read_text()
        changed = re.sub(r'("step": 20, "seed": 3, "test_3_sample_bound": -?\d+\.\d)', r"\g<1>7", text)
        assert changed != text
        (copy / "metrics.jsonl").write_text(changed)
        loop.train(config_of(folder), copy)
        assert kill_test.compare(reference, copy) == []

    def test_rows_of_the_wrong_type(self, folder, reference, copy, capfd):
        """They are left out with a word, once."""
        bad = ['{"step": "5"}', '{"step": 1e400, "what": 3}', "[]", '{"step": 5, "what": [], "seconds": "x"}']
        for name in ("timings.jsonl", "metrics.jsonl"):
            with open(copy / name, "a") as stream:
                stream.write("\n".join([*bad, '{"step": 5, "seed": {}, "objective": null}', "[" * 100_000]) + "\n")
        loop.train(config_of(folder), copy)
        assert f"6 lines of {copy}/timings.jsonl are no rows of timings and are left out" in capfd.readouterr().err
        assert kill_test.compare(reference, copy) == []
        (copy / "DONE").unlink()
        loop.train(config_of(folder), copy)
        assert "left out" not in capfd.readouterr().err

    def test_what_cannot_be_read_is_not_replaced(self, folder, copy, monkeypatch):
        before = (copy / "metrics.jsonl").read_bytes()
        monkeypatch.setattr(directory, "MAX_ROWS", 100)
        with pytest.raises(
            RunDirError, match=r"metrics\.jsonl cannot be read: it has [\d,]+ bytes; accepted: at most 100"
        ):
            loop.train(config_of(folder), copy)
        assert (copy / "metrics.jsonl").read_bytes() == before

    def test_the_checkpoints_are_gone(self, folder, reference, copy, capfd):
        shutil.rmtree(copy / "checkpoints")
        loop.train(config_of(folder), copy)
        assert "has rows up to step 20 but no checkpoint: it begins again at step 0" in capfd.readouterr().err
        assert kill_test.compare(reference, copy) == []


class TestImages:
    """Another data set behind the same path."""

    @pytest.fixture(scope="class")
    @classmethod
    def own(cls, tmp_path_factory, quick_compile, no_figures):
        folder = tmp_path_factory.mktemp("own")
        loop.train(config_of(folder, steps=5), folder / "run")
        return folder

    @pytest.fixture
    def moved(self, own, tmp_path):
        """A run on images of its own, which can be changed."""
        shutil.copy(own / "images.npz", tmp_path)
        shutil.copytree(own / "run", tmp_path / "copy")
        yield own
        shutil.copy(tmp_path / "images.npz", own)
        shutil.rmtree(own / "run")
        shutil.move(tmp_path / "copy", own / "run")

    @pytest.mark.parametrize("how", ["reordered", "doubled", "pixels swapped", "another test set"])
    def test_they_are_refused(self, moved, how):
        arrays = dict(np.load(moved / "images.npz"))
        change = {
            "reordered": lambda: arrays.update(train=arrays["train"][::-1]),
            "doubled": lambda: arrays.update(train=np.concatenate([arrays["train"]] * 2)),
            "pixels swapped": lambda: arrays["train"].__setitem__((slice(0, 2), 3), arrays["train"][1::-1, 3]),
            "another test set": lambda: arrays.update(test=arrays["test"][:-1]),
        }
        before = {name: array.copy() for name, array in arrays.items()}
        change[how]()
        if how == "pixels swapped":
            assert np.array_equal(before["train"].mean(axis=0), arrays["train"].mean(axis=0))
        np.savez(moved / "images.npz", **arrays)
        split = "test" if "test" in how else "training"
        message = rf"the {split} images are not those that the run in .* began with: their sha256 is"
        for use in (
            lambda: loop.train(config_of(moved, steps=10), moved / "run"),
            lambda: evaluate_run(moved / "run", 2),
        ):
            with pytest.raises(RunDirError, match=message):
                use()
        older = load_run(moved / "run")._replace(record=None)  # a checkpoint that older code has written
        with pytest.raises(RunDirError, match=message):
            load_images(older)
        shutil.rmtree(moved / "run" / "checkpoints")  # run.json tells, too
        with pytest.raises(RunDirError, match=message):
            loop.train(config_of(moved, steps=10), moved / "run")

    @pytest.mark.parametrize("how", ["bit", "nan", "negative", "missing"])
    def test_the_mean_that_evaluation_reads(self, copy, how):
        file = copy / "train_mean.npy"
        mean = np.load(file)
        mean.view(np.uint64)[3] ^= 1
        change = {"nan": np.nan, "negative": -0.5}
        if how in change:
            mean[3] = change[how]
        np.save(file, mean)
        if how == "missing":
            file.unlink()
        with pytest.raises(RunDirError, match=r"train_mean\.npy (is damaged|cannot be read)"):
            load_run(copy)

    def test_images_of_a_run_that_tells_nothing_of_them(self, folder, copy):
        """As older code has left it."""
        run = load_run(copy)._replace(record=None)
        assert isinstance(load_images(run), data.Dataset)


class TestOtherCheckpoints:
    """Copied in, renamed, or of other settings."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seeds": (0, 4)}, "of the seeds 0, 4, not 0, 3"),
            ({"optimizer.encoder.learning_rate": 2e-2}, "optimizer.encoder.learning_rate: 0.02 there, 0.01 here"),
        ],
    )
    def test_of_another_run(self, folder, reference, copy, tmp_path, capfd, change, message):
        loop.train(config_of(folder, **change), tmp_path / "other")
        shutil.rmtree(copy / "checkpoints" / "20")
        shutil.copytree(tmp_path / "other" / "checkpoints" / "20", copy / "checkpoints" / "20")
        assert load_run(copy).step == 15
        assert f"checkpoints/20 is refused: it is of another run: {message}" in capfd.readouterr().err
        loop.train(config_of(folder), copy)
        assert f"now {copy}/damaged/checkpoint_20" in capfd.readouterr().err
        assert kill_test.compare(reference, copy) == []

    @pytest.mark.parametrize("how", ["renamed", "copied", "a file", "a link", "another name"])
    def test_under_another_step(self, folder, copy, capfd, how):
        source, target = copy / "checkpoints" / "20", copy / "checkpoints" / "30"
        if how == "renamed":
            source.rename(target)
        elif how == "copied":
            shutil.copytree(source, target)
        elif how == "a file":
            target.write_text("")
        elif how == "a link":
            target.symlink_to(source)
        else:
            shutil.copytree(source, copy / "checkpoints" / "030")
        loop.train(config_of(folder, steps=30), copy)
        said = capfd.readouterr().err
        assert "30 is refused: it was saved at step 20" in said or "30 is no checkpoint" in said
        assert f"resuming {copy} at step {15 if how == 'renamed' else 20}\n" in said
        assert (copy / "DONE").read_text() == "30\n"

    @pytest.mark.parametrize(
        "change",
        [
            lambda record: record.pop("config"),
            lambda record: record.update(images=[]),
            lambda record: record.update(format=99),
            lambda record: record["rows"].update(size="x"),
            lambda record: record.update(config={"version": 999}),
        ],
    )
    def test_a_record_that_cannot_be_read(self, copy, capfd, change):
        rewrite(newest(copy) / "_CHECKPOINT_METADATA", lambda found: change(found["custom_metadata"]["run"]))
        assert load_run(copy).step == 15
        assert re.search(r"checkpoints/20 is damaged: (what it says|the config) of its run", capfd.readouterr().err)

    def test_the_record_of_a_checkpoint(self, folder, copy):
        found = ocp.metadata(str(newest(copy))).custom_metadata["run"]
        assert found["config"] == json.loads(json.dumps(versioned(resolve(config_of(folder)))))
        assert set(found["images"]) == {"train", "validation", "test"}
        lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        assert found["rows"]["size"] == sum(map(len, lines[: found["rows"]["rows"]]))
        assert load_run(copy).record == fingerprint.read_record(found, lambda: "cpu")


class TestSettings:
    def test_another_random_stream_is_refused(self, folder, copy, capfd):
        (copy / "checkpoints" / "20").rename(copy / "20")
        with jax.threefry_partitionable(False):
            with pytest.raises(RunDirError, match=r"threefry_partitionable was True and is False now.*--other_random"):
                loop.train(config_of(folder), copy)
            loop.train(config_of(folder), copy, other_random_numbers=True)
        assert "threefry_partitionable was True and is False now: the results may" in capfd.readouterr().err

    def test_an_evaluation_with_another_random_stream_says_so(self, copy, capfd):
        with jax.threefry_partitionable(False):
            evaluate_run(copy, 2)
        said = capfd.readouterr().err
        assert "threefry_partitionable was True and is False now: the bounds have other random numbers" in said
        evaluate_run(copy, 2)
        assert "random numbers" not in capfd.readouterr().err

    def test_other_threads_and_devices_are_told_once(self, folder, copy, monkeypatch, capfd):
        shutil.rmtree(copy / "checkpoints" / "20")
        monkeypatch.setenv("PJRT_NPROC", "77")
        loop.train(config_of(folder), copy, jax.devices()[:1])
        said = capfd.readouterr().err
        assert said.count("since the last checkpoint ") == 1
        assert re.search(r"devices was \d+ and is 1 now; threads was \d+ and is 77 now", said), said
        (copy / "DONE").unlink()
        loop.train(config_of(folder), copy, jax.devices()[:1])
        assert "since the last checkpoint" not in capfd.readouterr().err

    @pytest.mark.parametrize("name", ["jax_enable_x64", "jax_disable_jit"])
    def test_settings_with_which_nothing_can_be_read(self, folder, copy, name):
        """They do not make good checkpoints damaged ones."""
        before = jax.config.values[name]
        jax.config.update(name, True)
        try:
            for use in (load_run, lambda path: loop.train(config_of(folder), path)):
                with pytest.raises(ConfigError, match=f"^{name.upper()} is set, but .*; unset it$"):
                    use(copy)
        finally:
            jax.config.update(name, before)
        assert not (copy / "damaged").exists()

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (RuntimeError("Unable to initialize backend 'cuda'"), "; Unable to initialize backend 'cuda'"),
            (AssertionError(), ""),
        ],
    )
    def test_no_such_platform(self, monkeypatch, error, message):
        def none():
            raise error

        monkeypatch.setattr(devices.jax, "devices", none)
        with pytest.raises(ConfigError, match=rf"JAX finds no such device{message}$"):
            devices.check_jax_settings()


class TestSizes:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"model.latents": (10**9,)}, "model.latents is"),
            ({"model.hidden": (2**31 - 1,)}, "model.hidden is"),
            ({"estimator.options.num_pairs": 10**8}, "estimator.options: num_pairs is 100000000"),
            (
                {"estimator.name": "vimco", "objective.name": "multisample", "objective.num_samples": 10**8},
                "num_samples",
            ),
            ({"variance.estimators": ("disarm(num_pairs=100000000)",)}, "variance.estimators: num_pairs is 100000000"),
            (VIMCO | {"objective.num_samples": 10**5}, "num_samples is 100000: each sample's sum over the others"),
            (
                {"estimator.name": "multisample_disarm", "objective.name": "multisample"}
                | {"objective.num_samples": 10**5},
                "num_pairs is 100000: each sample's sum over the others",
            ),
            (
                {"estimator.name": "multisample_arms", "objective.name": "multisample", "objective.num_samples": 2}
                | {"estimator.options.group_size": 10**8},
                "estimator.options: group_size is 100000000",
            ),
            (
                VIMCO | {"objective.num_samples": 2, "estimator.options.repeats": 10**9},
                "estimator.options: repeats is 1000000000",
            ),
            (
                {"estimator.name": "relax", "estimator.options.hidden": 10**9},
                "estimator.options: hidden is 1000000000",
            ),
            (
                {"steps": 2**31 - 1, "log_every": 1},
                "log_every is 1, for which metrics.jsonl would have 4,294,967,294 rows",
            ),
            ({"eval.test_samples": 2**31 - 1}, "eval.test_samples is 2147483647; accepted: up to"),
            ({"eval.train_samples": 2**31 - 1}, "eval.train_samples is 2147483647; accepted: up to"),
            ({"eval.batch_size": 2**31 - 1}, "eval.batch_size is 2147483647"),
        ],
    )
    def test_they_are_refused_before_the_directory_is_made(self, folder, tmp_path, overrides, message):
        with pytest.raises(ConfigError, match=re.escape(message)) as caught:
            loop.train(config_of(folder, **overrides), tmp_path / "run")
        assert "accepted: up to" in str(caught.value)
        assert not (tmp_path / "run").exists()

    def test_of_an_evaluation(self, copy):
        with pytest.raises(ConfigError, match=r"--num_samples is 2147483648; accepted: up to"):
            evaluate_run(copy, 2**31)

    def test_the_memory_of_the_machine(self, folder, monkeypatch):
        monkeypatch.setattr(load, "machine_memory", lambda: 1000)
        with pytest.raises(ConfigError, match=r"model\.latents is \(4,\): the parameters of all seeds and points"):
            load.check_sizes(resolve(config_of(folder)), 16)


class TestLock:
    def test_it_outlives_its_file(self, folder, copy):
        """Somebody removes .lock while a run trains."""
        with RunDir(copy).locked():
            (copy / ".lock").unlink()
            with pytest.raises(RunDirError, match="another process is training in"):
                loop.train(config_of(folder), copy)

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_directory_that_is_moved_away(self, folder, copy, tmp_path, replaced, monkeypatch):
        """Nothing is written to what has its name then, which another process may have locked."""
        moved, mean = tmp_path / "moved", loop.living_mean

        def move(*arguments):
            if not moved.exists():  # after the first row
                copy.rename(moved)
                if replaced:
                    shutil.copytree(moved, copy)
            return mean(*arguments)

        monkeypatch.setattr(loop, "living_mean", move)
        before = (copy / "metrics.jsonl").read_bytes()
        shutil.rmtree(copy / "checkpoints" / "20")
        with pytest.raises(
            RunDirError, match=r"copy was moved or replaced while this process trained in it; continue it"
        ):
            loop.train(config_of(folder), copy)
        assert copy.exists() == replaced
        assert not replaced or (copy / "metrics.jsonl").read_bytes() == (moved / "metrics.jsonl").read_bytes() != before
        loop.train(config_of(folder), moved)

    def test_older_code_has_only_the_file(self, folder, copy):
        with open(copy / ".lock", "a") as lock:
            assert directory.lock_file(lock.fileno())
            with pytest.raises(RunDirError, match="another process is training in"):
                loop.train(config_of(folder), copy)


class TestConsole:
    @pytest.mark.parametrize("kind", ["full", "closed", "none"])
    def test_nobody_need_listen(self, folder, tmp_path, monkeypatch, kind):
        with open("/dev/full", "w") as stream:
            if kind == "closed":
                stream.close()
            monkeypatch.setattr(sys, "stderr", None if kind == "none" else stream)
            loop.train(config_of(folder, steps=5), tmp_path / "run")
            if kind == "full":
                with contextlib.suppress(OSError):  # what it could not write before
                    stream.close()
        assert (tmp_path / "run" / "DONE").exists()

    def test_a_terminal_that_is_gone(self, monkeypatch):
        class Gone:
            encoding = "utf-8"

            def isatty(self):
                return True

            def write(self, text):
                raise OSError(5, "Input/output error")

            def flush(self):
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(sys, "stderr", Gone())
        progress = ProgressBar(10)
        progress.say("a line")
        progress.describe("compiling")
        progress.update(5, "a note", 1.0)
        progress.close()

    def test_standard_files_are_never_others(self, tmp_path):
        saved = os.dup(2)
        try:
            os.close(2)
            console.keep_standard_streams()
            descriptor = os.open(tmp_path / "metrics", os.O_WRONLY | os.O_CREAT)
            os.close(descriptor)
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        assert descriptor > 2


@pytest.mark.parametrize("jump", [86_400, -86_400])
def test_the_clock_jumps_during_a_save(tmp_path, monkeypatch, jump):
    """By a day, in the middle of the second of three saves."""
    now, calls = time.time, itertools.count()
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    for step in (1, 2, 3):
        with monkeypatch.context() as patch:
            if step == 2:
                patch.setattr(time, "time", lambda: now() + (jump if next(calls) > 15 else 0))
            checkpoints.save(step, {"a": np.arange(3.0)})
            checkpoints.wait()
    checkpoints.close()
    assert next(calls) > 17, "the clock has not jumped"
    for step in (1, 2, 3):
        found = read_step(tmp_path / "checkpoints", step, {"a": np.arange(3.0)})
        np.testing.assert_array_equal(found.state["a"], np.arange(3.0))
