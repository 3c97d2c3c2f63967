"""Folders of the tests' own, the real data where it is at hand, and a small MNIST."""

import http.server
import os
import pathlib
import socket
import threading

import pytest
from small_data import make_idx_set


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory, monkeypatch):
    """No test sees or touches the user's own data."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "DISARM_DATA_DIR", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def shared_data():
    """The folder with the real files, where there is one."""
    root = pathlib.Path(__file__).resolve().parents[2]
    folder = pathlib.Path(os.environ.get("DISARM_TEST_DATA") or root.parent / "shared/data")
    if not (folder / "mnist").is_dir():
        pytest.skip("the real data is not at hand; DISARM_TEST_DATA names its folder")
    return folder


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    return make_idx_set(monkeypatch, tmp_path / "originals", "mnist")


@pytest.fixture
def serve():
    """A function that serves pages on this machine and returns their address; `promise` is a false Content-Length."""
    servers = []

    def start(pages, promise=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                page = pages.get(self.path)
                self.send_response(200 if page is not None else 404)
                self.send_header("Content-Length", str(promise or len(page or b"")))
                self.end_headers()
                return page

            def do_GET(self):
                self.wfile.write(self.do_HEAD() or b"")

            def log_message(self, *args):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def silent_server():
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
