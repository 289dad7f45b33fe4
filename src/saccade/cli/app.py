"""The command line: one verb a file; torch is imported only by the commands that need it."""

import os
import sys
from typing import Annotated

import typer

from saccade import __version__
from saccade.cli import convert, demo, doctor, models, predict, pull
from saccade.errors import ResourceError, SaccadeError

app = typer.Typer(
    name="saccade",
    help="Vision Transformers you can see inside, and ship.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo.demo, predict.predict, models.models, convert.convert, pull.pull, doctor.doctor):
    app.command()(verb)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saccade {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vision Transformers you can see inside, and ship."""
    if debug:
        os.environ["SACCADE_DEBUG"] = "1"


def main() -> None:
    """Run a command; an error that a person can mend is one sentence and the right exit code."""
    try:
        app()
    except SaccadeError as error:
        _leave(error, error.exit_code)
    except MemoryError as error:
        _leave(
            ResourceError(
                f"out of memory: {error or 'the machine has no more to give'}; use a smaller model"
            ),
            5,
        )
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _leave(error, 70, "this is a fault of saccade: ")


def _leave(error: Exception, code: int, before: str = "") -> None:
    if os.environ.get("SACCADE_DEBUG") == "1":
        raise error
    told = f"{before}{error}" if str(error) else f"{before}{type(error).__name__}"
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}error:{plain} {told}", file=sys.stderr)
    sys.exit(code)
