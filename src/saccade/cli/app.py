"""The command line: one verb a file; torch is imported only by the commands that need it."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from saccade import __version__
from saccade.cli import (
    bench,
    check,
    compare,
    complete,
    convert,
    demo,
    doctor,
    embed,
    evaluate,
    explain,
    export,
    fill,
    models,
    predict,
    prune,
    pull,
    train,
    translate,
)
from saccade.errors import ResourceError, SaccadeError
from saccade.signals import Interrupt, listening

app = typer.Typer(
    name="saccade",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: it can be copied, and rich would take a third of the time to start
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (
    demo.demo,
    check.check,
    train.train,
    evaluate.evaluate,
    compare.compare,
    prune.prune,
    bench.bench,
    predict.predict,
    explain.explain,
    embed.embed,
    export.export,
    translate.translate,
    complete.complete,
    fill.fill,
    models.models,
    convert.convert,
    pull.pull,
    doctor.doctor,
)
for verb in VERBS:
    app.command()(verb)
FULL = (errno.ENOSPC, errno.EDQUOT)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"saccade {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    _debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vision Transformers you can see inside, and ship. To begin: `saccade demo`."""


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run a command; an error that a person can mend is one sentence and the right exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name may hold bytes that no encoding has
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # typer's parser looks for them, in 25 ms
    words = sys.argv[1:] if words is None else list(words)
    debug = "--debug" in words[: next((i for i, word in enumerate(words) if word[:1] != "-"), None)]
    interrupt = Interrupt()
    try:
        with listening(interrupt):  # SIGTERM leaves as Ctrl-C does
            code = app(words, prog_name="saccade", standalone_mode=False)
        sys.stdout.flush()  # here, so that a reader that has gone is met inside of the try
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SystemExit as end:  # typer meets most broken pipes first, and calls them an error
        sys.exit(0 if isinstance(end.__context__, BrokenPipeError) else end.code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as error:
        if interrupt.came:
            sys.exit(130)
        if debug:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            sys.exit(2)
        _leave(*_told(error))


def _told(error: Any) -> tuple[str, int]:
    """The sentence for the person at the keyboard, and the exit code."""
    words = str(error) or type(error).__name__
    if isinstance(error, SaccadeError):
        return words, error.exit_code
    if hasattr(error, "format_message"):  # from the parser of the command line
        words = error.format_message().strip().rstrip(".")
        path = error.ctx.command_path if getattr(error, "ctx", None) else "saccade"
        return f"{words[:1].lower()}{words[1:]}; see `{path} --help`", 2
    if isinstance(error, MemoryError) or "allocate memory" in words or "out of memory" in words:
        return (
            "the machine has no memory left for this; use a smaller model or picture",
            ResourceError.exit_code,
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return f"no space is left to write the output ({error.strerror}); make room", ResourceError.exit_code
    return (
        f"this is a fault of saccade ({type(error).__name__}: {words}); "
        f"`saccade --debug ...` shows where it came from, please report it"
    ), 70


def _leave(told: str, code: int) -> NoReturn:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(told.split("\n")))
    print(f"{red}error:{plain} {line}", file=sys.stderr)
    sys.exit(code)
