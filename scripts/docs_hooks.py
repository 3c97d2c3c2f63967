"""What MkDocs does beside its plugins: pages from outside `docs/`, and equations as MathML.

`results/` and CHANGELOG.md are part of the site. Pages link to them as they lie in the repository (`../results/…`), so
that the links also work there; here they are turned into links inside the site. Equations between dollars become MathML
while the site is built, which browsers show without any script or font.
"""

import pathlib
import posixpath
import re

import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
SHOWN = {".md", ".png", ".pdf", ".html", ".csv", ".tex", ".json", ".jsonl"}
LINK = re.compile(r"(\]\()([^)\s#]+)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files, config):
    """Adds the results and the changelog."""
    pages = [ROOT / "CHANGELOG.md", *sorted((ROOT / "results").rglob("*"))]
    for page in pages:
        if page.suffix in SHOWN and page.is_file() and "/cells/" not in str(page) and "/runs/" not in str(page):
            name = _name_of(page.relative_to(ROOT).as_posix())
            files.append(File.generated(config, name, abs_src_path=str(page)))
    return files


def _name_of(path):
    """Where a file is in the site: `index.html` is the README of its folder there."""
    return re.sub(r"^(results/.*)index\.html$", r"\1report.html", path)


def on_page_markdown(markdown, page, config, files):
    """Turns links between `docs/` and the rest of the repository into links inside the site.

    What is behind the language of a block of code is for the tests.
    """
    markdown = markdown.replace("```python notest\n", "```python\n")
    inside = page.file.src_uri.startswith(("results/", "CHANGELOG.md"))
    here = posixpath.dirname(page.file.src_uri if inside else f"docs/{page.file.src_uri}")

    def relative(match):
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        place = _name_of(posixpath.normpath(posixpath.join(here, target)).removeprefix("docs/"))
        return match[1] + posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else LINK.sub(relative, part) for part in parts)


def on_page_content(html, page, config, files):
    """Renders equations."""

    def rendered(match):
        source = match[2].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
        return latex2mathml.converter.convert(source, display="block" if match[1] == "div" else "inline")

    return EQUATION.sub(rendered, html)
