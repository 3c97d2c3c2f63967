"""The commands, each run as `python -m scripts.name`."""

import sys

if sys.argv[0] == "-m":  # Python looks for the command: until it begins, a setting that JAX refuses is told in one line
    sys.excepthook = lambda kind, error, trace: print(f"error: {kind.__name__}: {error}".rstrip(": "), file=sys.stderr)
