"""`python -m scripts.prepare_data` as a command."""

import pathlib
import subprocess
import sys

from absl import flags

from disarm_jax.data.bar import Bar
from scripts import prepare_data

ROOT = pathlib.Path(__file__).resolve().parents[2]


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "scripts.prepare_data", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_it_prints_where_it_put_what(small_mnist, tmp_path, capfd):
    values = flags.FlagValues()
    prepare_data.define_flags(values)
    values(
        ["prepare_data", "--dataset=mnist", "--source=files", f"--path={small_mnist.folder}", f"--data_dir={tmp_path}"]
    )
    prepare_data.main(["prepare_data"], values)
    out, err = capfd.readouterr()
    assert f"mnist from {small_mnist.folder} (files)" in out
    assert "order of the original idx files" in out
    assert "train          12 images of 784 pixels, sha256 " in out
    assert f"written to {tmp_path}/mnist.npz" in out
    assert err.splitlines() == [f"unpacking {file.name}" for file in small_mnist.files]


def test_on_a_terminal_there_are_bars(capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Bar() as progress:
        for done in (0, 3, 10):
            progress("downloading a", done, 10)
        progress("unpacking a", 2, 4)
    err = capfd.readouterr().err
    assert "downloading a: 100%" in err
    assert "unpacking a:  50%" in err


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
