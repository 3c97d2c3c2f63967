"""How the reference reads docstrings: `Example:` is a section of examples, and a doctest anywhere else is code."""

import re

import griffe

# A paragraph of prose is left alone; one that begins with a prompt is code up to the next empty line.
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class ReadExamples(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Names the section as griffe does, fences doctests outside of it, sets advice apart."""
        if obj.docstring is not None:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            text = re.sub(r"^(Paper|Advice): ", r"\n*\1:* ", text, flags=re.MULTILINE)
            obj.docstring.value = DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
