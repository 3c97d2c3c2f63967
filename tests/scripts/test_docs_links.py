"""What `scripts.docs_links` finds in a small site."""

import pytest

from scripts.docs_links import dead_links


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('<a href="other.html#there">a</a><a href="#__top">b</a><a href="https://example.org/">c</a>', None),
        ('<a href="missing.html">a</a>', "no file missing.html"),
        ('<a href="other.html#nowhere">a</a>', "no anchor other.html#nowhere"),
        ('<a href="#nowhere">a</a>', "no anchor #nowhere"),
        ('<a href="folder">a</a>', "no file folder"),
        ('<script src="https://cdn.example.org/x.js"></script>', "fetches https://cdn.example.org/x.js"),
        ('<img src="picture.png">', "no file picture.png"),
        ('<img src="data:image/png;base64,AA==">', None),
    ],
)
def test_dead_links(tmp_path, body, found):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.html").write_text('<h1 id="there">there</h1>')
    (tmp_path / "index.html").write_text(f"<html><body>{body}</body></html>")
    assert dead_links(tmp_path) == ([] if found is None else [f"{tmp_path}/index.html: {found}"])
