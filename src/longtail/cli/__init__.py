"""The command line: a command is one file that parses, calls the library and prints.

`<name>.py` holds a function of that name, or a Typer `app` of several, and COMMANDS lists it. All
are imported at the start, so their own imports stay light: what is heavy is imported inside the
functions.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import option

# In the order in which `longtail --help` lists them.
COMMANDS = "demo train evaluate adjust tune bake report explain data runs".split()  # noqa: SIM905


app = typer.Typer(
    name="longtail",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, option(None, "Print the version.", "--version")] = False,
    debug: Annotated[
        bool, option(None, "Show tracebacks of errors (or set LONGTAIL_DEBUG=1).", "--debug")
    ] = False,
) -> None:
    """Classification when most classes are rare: logit adjustment, with proofs.

    \b
    Examples:
      longtail demo                       see what it does, on real images
      longtail explain                    which methods there are
      longtail explain logit-adjusted     what one does, and when to use it
      longtail adjust predictions.npz --counts 900,90,10
                                          correct and measure saved predictions
      longtail train --dataset digits-lt --method logit-adjusted --seeds 5
                                          train on long-tailed images
      longtail runs list                  what was trained here

    Every command explains itself: longtail COMMAND --help.
    """
    if version:
        from longtail import __version__

        _console.line(f"longtail {__version__}")
        raise typer.Exit


for _name in COMMANDS:
    _module = importlib.import_module(f"longtail.cli.{_name}")
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_name)
    else:
        app.command(_name)(getattr(_module, _name))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: those after ``longtail``; from the shell if None.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong usage.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        # Output never fails for a character, or because nobody reads it.
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (for the whole process)
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        if not several:  # end as after an error, so that temporary files are removed
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # People add --debug to the end of the line that just failed.
    debug = "--debug" in given or os.environ.get("LONGTAIL_DEBUG", "0") not in ("", "0")
    given = [argument for argument in given if argument != "--debug"]
    logger, handler = logging.getLogger("longtail"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: _console.line(record.getMessage(), kind="warning")  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_, **__: _console.line(str(text), kind="warning")
            command: Any = typer.main.get_command(app)
            # The words that were typed reach commands as `context.obj`.
            code = command.main(given, prog_name="longtail", standalone_mode=False, obj=given)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except Exception as error:
        usage = hasattr(error, "format_message")  # the parser's own kind of exception
        if debug and not usage:
            raise
        code = _wrong_usage(error) if usage else _failure(error)
    finally:
        logger.removeHandler(handler)
    if code == 130:
        _console.line("interrupted", kind="error")
    code = code if isinstance(code, int) else 0
    if arguments is None and several:
        # Threads of torch's process groups may still hold tensors and abort a process that has
        # done its work, which torchrun would take for a failure: leave without taking them down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _wrong_usage(error: Any) -> int:
    """Print in one line what is wrong with the command line, or the help if it was empty."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    text = error.format_message().strip().rstrip(".?").removeprefix("Invalid value: ")
    text = text.replace(". Did you mean", "; did you mean")
    context = getattr(error, "ctx", None)
    hint = f"; see: {context.command_path} --help" if context is not None else ""
    _console.line(text[:1].lower() + text[1:] + hint, kind="error")
    return 2


def _failure(error: Exception) -> int:
    """Print in one line what failed."""
    from longtail._checks import InputError, MissingExtraError

    text = f"{type(error).__name__}: {error} (a bug in longtail? --debug shows the traceback)"
    if isinstance(error, _console.Failure | InputError | MissingExtraError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    elif isinstance(error, MemoryError):
        text = f"not enough memory: {error}" if str(error) else "not enough memory"
    _console.line(text, kind="error")
    return 1
