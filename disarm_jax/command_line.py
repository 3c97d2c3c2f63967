"""What the commands share."""

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from disarm_jax.experiment.fields import ConfigError, defaults, described, did_you_mean, flat, plain

HELP = {"--help", "-help", "-h", "--helpshort", "-helpshort", "--helpfull", "-helpfull"}


class _Integers(flags.IntegerParser):
    """Integers, which may be written as 1e4."""

    def convert(self, argument: Any) -> int:
        try:
            return super().convert(argument)
        except ValueError:
            with contextlib.suppress(ValueError):
                if (number := float(argument)).is_integer():
                    return int(number)
            raise


config_flags.register_flag_parser_for_type(int, _Integers())  # for all fields of configs


def run_script(main: Callable[[list[str]], None], define_flags: Callable[[flags.FlagValues], None]) -> None:
    """Runs a script.

    Args:
      main: of the command line without its flags.
      define_flags: defines them, or reads a config file that is the default of one.
    """
    sys.excepthook = sys.__excepthook__
    with flag_errors():
        define_flags(flags.FLAGS)
    logging.set_verbosity(logging.WARNING)  # JAX tells of absent accelerators, across the progress bar
    app.run(main, flags_parser=parse_flags)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """What absl does, with every error in one line, and exit status 0 after `--help`."""
    if HELP & set(argv[1:]):
        print(help_text())
        sys.exit(0)
    with flag_errors():
        return flags.FLAGS(argv)


def flags_only(argv: Sequence[str]) -> None:
    """Ends with one line if there is anything on the command line besides flags."""
    if len(argv) > 1:
        sys.exit(f"error: unexpected arguments {argv[1:]}; accepted: flags only")


def help_text() -> str:
    """The docstring of the command, its flags, and, if it takes a config, all fields of one."""
    text = f"{sys.modules['__main__'].__doc__ or ''}\n{flags.FLAGS.main_module_help()}"
    fields = "\n".join(["Fields of a config, with their defaults:", *described()])
    return f"{text}\n{fields}" if "config" in flags.FLAGS else text


def get_config(name: str) -> ConfigDict:
    """The config of a file in `configs`, as in `get_config("elbo_linear")` or `get_config("layers:3")`."""
    file, _, argument = name.partition(":")
    return importlib.import_module(f"configs.{file}").get_config(*filter(None, [argument]))


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Ends with one line where a device or this machine has not enough memory."""
    advice = "a smaller batch_size, num_samples, num_pairs or model would help"
    try:
        yield
    except MemoryError as error:
        sys.exit(f"error: {f'out of memory: {error}'.removesuffix(': ')}; {advice}")
    except RuntimeError as error:
        text = " ".join(str(error).split())
        told = re.search(r"RESOURCE_EXHAUSTED: (.*)|(Out of memory allocating .*)", text)
        if told is None:
            raise
        sys.exit(f"error: out of memory: {(told[1] or told[2])[:200]}; {advice}")


@contextlib.contextmanager
def flag_errors() -> Iterator[None]:
    """Ends with one line for a bad flag, a bad config file, a config without a field.

    Also to be put around the definition of a config flag that has a default, which reads the command line already.
    """
    try:
        yield
    except flags.Error as error:
        message = str(error)
        if "Traceback" in message:  # of get_config
            message = f"--config: {message.strip().splitlines()[-1]}"
        sys.exit(f"error: {' '.join(message.split())}")
    except OSError as error:
        sys.exit(f"error: --config: {_last_line(error)}")
    except Exception as error:  # whatever the code of a config file raises
        if field := _unknown_field(error):
            known = [name for path, _ in flat(plain(defaults())) for name in (path, *path.split("."))]
            accepted = "those that --help lists"
            sys.exit(f"error: the config has no field {field!r}; accepted: {accepted}{did_you_mean(field, known)}")
        if isinstance(error, AttributeError) and "has no attribute 'get_config'" in str(error):
            sys.exit("error: --config: the file has no function get_config(); see configs/base.py")
        sys.exit(f"error: --config: {one_line(error)}")


def check_config_file(flag: flags.Flag) -> None:
    """Refuses what is not a config, and a tuple that is given twice, which ml_collections would join.

    A file that could not be read is told only here.

    Raises:
      ConfigError: which says why.
    """
    try:
        cast(Any, flag.value).get("steps", None)
    except OSError as error:
        raise ConfigError(f"--config: {_last_line(error)}") from error
    except AttributeError:
        pass
    if not isinstance(flag.value, ConfigDict):
        file = config_flags.get_config_filename(flag)
        raise ConfigError(f"--config: get_config of {file} returns {flag.value!r}; accepted: a ConfigDict")
    given = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
    names = [argument.lstrip("-").partition("=")[0] for argument in given if argument.startswith("-")]
    for name in dict.fromkeys(name for name in names if name.startswith(f"{flag.name}.") and names.count(name) > 1):
        if isinstance(cast(Any, flag).flag_values[name], flags.MultiFlag):
            raise ConfigError(f"--{name} is given {names.count(name)} times; accepted: one tuple, such as (200, 50)")


def _unknown_field(error: Exception) -> str:
    """The field, or section, that a config does not have, if that is what ml_collections says; else empty."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    cause = error if os.path.basename(raised_in) == "config_dict.py" else None  # a section is missing
    if error.args and isinstance(error.args[0], KeyError):  # a field is missing
        cause = error.args[0]
    return str(cause.args[0]).splitlines()[0].strip("\"'") if isinstance(cause, KeyError) else ""


def one_line(error: Exception) -> str:
    """An error of code that is not ours, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = "" if isinstance(error, SyntaxError) or not frames else f" ({_place(frames[-1])})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{os.path.basename(frame.filename)}, line {frame.lineno}"


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
