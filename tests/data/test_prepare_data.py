"""`python -m scripts.prepare_data` as a command."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("absl")
pytest.importorskip("tqdm")

ROOT = pathlib.Path(__file__).resolve().parents[2]


def command(*flags):
    return subprocess.run(
        [sys.executable, "-m", "scripts.prepare_data", *flags], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_it_prints_where_it_put_what(tmp_path):
    """In a process of its own, where the flags of other programs are not defined, with a small MNIST recorded."""
    code = f"""
import pathlib, sys
import pytest
from absl import app
from scripts import prepare_data
from small_data import make_idx_set
make_idx_set(pytest.MonkeyPatch(), pathlib.Path({str(tmp_path / "originals")!r}), "mnist")
app.run(prepare_data.main)
"""
    flags = ["--dataset=mnist", "--source=files", f"--path={tmp_path / 'originals'}", f"--data_dir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/data'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"mnist from {tmp_path / 'originals'} (files)" in done.stdout
    assert "order of the original idx files" in done.stdout
    assert "train          12 images of 784 pixels, sha256 " in done.stdout
    assert f"written to {tmp_path}/mnist.npz" in done.stdout
    assert "unpacking train-images-idx3-ubyte.gz: 100%" in done.stderr


def test_errors_are_one_message_without_a_traceback(tmp_path):
    missing = command("--dataset=mnist", "--source=files", f"--data_dir={tmp_path / 'data'}")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: mnist is not there. Looked for:")
    assert "Traceback" not in missing.stderr
    assert not (tmp_path / "data").exists()
    wrong = command("--dataset=omniglot", "--source=packages", f"--data_dir={tmp_path / 'data'}")
    assert wrong.returncode == 1
    assert "error: unknown source 'packages' for omniglot; known: auto, files, download" in wrong.stderr


def test_a_wrong_name_lists_the_known_ones():
    wrong = command("--dataset=MNIST")
    assert wrong.returncode != 0
    assert "binarized_mnist|fashion_mnist|mnist|mnist5k|omniglot" in wrong.stdout + wrong.stderr
