"""What the commands share."""

import sys
from collections.abc import Sequence

from absl import flags


def parse_flags(argv: Sequence[str]) -> list[str]:
    """What absl does, with every error in one line: a bad flag, a config without the file or the field asked for."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except AttributeError as error:
        cause = error.args[0] if error.args else error  # a KeyError, whose text is quoted once more
        field = str(cause.args[0] if isinstance(cause, KeyError) else cause).splitlines()[0]
        sys.exit(f"error: the config has no field {field}; accepted: those of configs/base.py")
    except OSError as error:
        sys.exit(f"error: --config: {str(error).strip().splitlines()[-1].strip()}")
