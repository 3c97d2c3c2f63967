"""Follows every link of the built site and exits with a list of those that lead nowhere or to the network.

python -m scripts.docs_links site
"""

import html.parser
import pathlib
import sys
import urllib.parse

FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset")}


class _Page(html.parser.HTMLParser):
    """The addresses and the anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.addresses: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the tag refers to."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif value and name in ("href", "src", "srcset"):
                self.addresses.append(("fetched" if (tag, name) in FETCHED else "followed", value))


def dead_links(site: pathlib.Path) -> list[str]:
    """A sentence for each address that leads to no file or anchor of the site, or that a page would fetch."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # a server shows it under any address
        for use, address in page.addresses:
            url = urllib.parse.urlsplit(address)
            if url.scheme or url.netloc:
                if use == "fetched" and url.scheme != "data":
                    found.append(f"{path}: fetches {address}")
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path.resolve()
            known = {other.resolve(): entry for other, entry in pages.items()}.get(target)
            if not target.is_file():
                found.append(f"{path}: no file {address}")
            elif url.fragment and known and urllib.parse.unquote(url.fragment) not in known.anchors | {"__top"}:
                found.append(f"{path}: no anchor {address}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(dead_links(pathlib.Path(sys.argv[1]))) or None)
