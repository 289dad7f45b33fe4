"""The command line: a command parses, calls one function of saccade.api and prints; torch loads late."""

import errno
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from saccade import __version__
from saccade.errors import TOO_MANY_FILES, SaccadeError, StoppedError, UsageError
from saccade.libraries import disable_telemetry, missing, move_caches, wait_passively
from saccade.progress import show_progress
from saccade.signals import Interrupt, listening
from saccade.spellings import architecture, assignments, option_hint, verb_hint
from saccade.wording import printable

VERBS = {
    verb: module
    for module, verbs in (
        ("demo", "demo"),
        ("check", "check"),
        ("train", "train"),
        ("evaluate", "evaluate"),
        ("compare", "compare"),
        ("prune", "prune"),
        ("bench", "bench"),
        ("predict", "predict"),
        ("explain", "explain"),
        ("embed", "embed"),
        ("export", "export"),
        ("text", "translate complete fill"),
        ("models", "runs models convert pull doctor"),
    )
    for verb in verbs.split()
}
"""The commands in the order of the help, and the files here that define them."""
FULL = (errno.ENOSPC, errno.EDQUOT)
MANY = (errno.EMFILE, errno.ENFILE)
REFUSED = {
    errno.ENAMETOOLONG: (2, "the name is too long for the file system; use a shorter one"),
    errno.ELOOP: (2, "it is a link that leads back to itself; remove the link"),
    errno.EACCES: (2, "you lack permission; grant it (chmod) or choose another path"),
    errno.EPERM: (2, "you lack permission; grant it (chmod) or choose another path"),
    errno.EROFS: (2, "the disk is read-only; choose another path"),
    errno.ENOENT: (2, "it does not exist, or no longer does; check the path"),
    errno.ENOTDIR: (2, "part of its path is a file; expected a folder; check the path"),
    errno.EISDIR: (2, "it is a folder; expected a file; check the path"),
    errno.EEXIST: (2, "it already exists; choose another name"),
    errno.ENOTEMPTY: (2, "it is not empty; choose another name"),
    errno.ENXIO: (2, "it is a socket or a device; expected a regular file"),
    errno.EINVAL: (2, "the file system does not accept it; check the name"),
    errno.EIO: (5, "the disk failed; copy the data to another disk"),
    errno.ESTALE: (5, "the network disk is gone; mount it again"),
    errno.ETIMEDOUT: (5, "the disk or network did not answer in time; try again"),
    errno.ENOMEM: (5, "the machine has no memory left; close other programs"),
    errno.EAGAIN: (5, "the machine has no processes or memory left; close other programs"),
    errno.EFBIG: (5, "the file would be larger than allowed; raise the limit (ulimit -f)"),
}
"""Errors of the operating system: the exit code, and what to do."""
LONGEST = 500
"""Characters of an error line; a longer one keeps its start and its end, which says what to do."""
WORD = 120
"""Characters of one word, such as a path, in a line over the limit."""


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"saccade {__version__}")
        raise typer.Exit
    return wanted


def options(
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vision Transformers you can see inside, and ship. To start: `saccade demo`."""


def build_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Return the command line with some of its commands; a file is imported only for its own."""
    app = typer.Typer(
        name="saccade",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain text: it can be copied, and rich takes a third of the time to start
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for verb in verbs:
        command = getattr(import_module(f"saccade.cli.{VERBS[verb]}"), verb)
        # \b keeps the lines as they are
        app.command(
            epilog="\n".join(["\b", "Examples:", *(f"  {line}" for line in getattr(command, "examples", ()))])
        )(command)
    return app


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run a command; an error that the user can correct is one sentence and its own exit code."""
    # a closed stream (`>&-`) is None, and the next file opened would get its number
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name may hold bytes that no encoding has
            stream.reconfigure(errors="backslashreplace")
    disable_telemetry()
    move_caches()
    wait_passively()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # typer's parser spends 25 ms on them
    interrupt = Interrupt(_busy)
    # the installed command listens until it exits: torch takes a second to exit, enough for another Ctrl-C
    with listening(interrupt, restore=words is not None):  # SIGTERM ends it as Ctrl-C does
        try:
            _run(sys.argv[1:] if words is None else list(words), interrupt)
        except KeyboardInterrupt:  # it came while an error was being reported
            sys.exit(130)
        finally:
            interrupt.leaving = True
            show_progress(False)


def _run(words: list[str], interrupt: Interrupt) -> NoReturn:
    """Run a command and exit."""
    first = next((i for i, word in enumerate(words) if word[:1] != "-"), len(words))
    debug, verb = "--debug" in words[:first], "".join(words[first : first + 1])
    try:
        show_progress()
        _check_words(verb, words[first + 1 :], words[:first])
        app = build_app((verb,) if verb in VERBS else VERBS)
        code = app(words, prog_name="saccade", standalone_mode=False)
        sys.stdout.flush()  # here, so that a closed pipe raises inside the try
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SystemExit as end:  # typer catches most interrupts and broken pipes first
        _end_if(interrupt)
        sys.exit(0 if isinstance(end.__context__, BrokenPipeError) else end.code)
    except (KeyboardInterrupt, typer.Abort):
        _end_if(interrupt)
        sys.exit(130)
    except Exception as error:
        _end_if(interrupt)
        if isinstance(error, StoppedError):  # Ctrl-C is not an error
            print(printable(error, LONGEST), file=sys.stderr)
            sys.exit(error.exit_code)
        if debug:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            sys.exit(2)
        _leave(*_sentence(error))


def _check_words(verb: str, rest: list[str], before: list[str]) -> None:
    """Refuse a command that does not exist, and words such as epochs=3, with what to type instead."""
    if verb and verb not in VERBS and set(before) <= {"--debug"}:
        raise UsageError(_see(f"no such command {verb!r}{verb_hint(verb, rest, VERBS)}", "saccade"))
    if verb not in VERBS or VERBS[verb] == "text":  # whose arguments are texts
        return
    if any(re.match(r"[A-Za-z_]\w*=", word) and not os.path.exists(word) for word in rest):
        group: Any = typer.main.get_command(build_app((verb,)))
        if meant := assignments(verb, rest, *_accepted(group.commands[verb])):
            raise UsageError(
                f"options are written `--name value`, and arguments without a name; try `{meant}`"
            )


def _accepted(command: Any) -> tuple[list[str], list[str]]:
    """Return the options of a command, and its arguments in capitals."""
    options = [name for each in command.params for name in each.opts if name[:1] == "-"]
    return options, [each.metavar or each.name.upper() for each in command.params if each.opts[0][:1] != "-"]


def _fields(command: Any) -> list[str]:
    """Return the recipe fields that a command sets."""
    if command.name != "train":
        return []
    from saccade.tasks import find_task
    from saccade.values import flatten

    return list(flatten(find_task().recipe()))


def _busy() -> list[str]:
    """Return the images that are being decoded, without importing the decoder."""
    decode = sys.modules.get("saccade.data.image.decode")
    return list(decode.busy.values()) if decode is not None else []


def _end_if(interrupt: Interrupt) -> None:
    """After a signal, name the images being read and exit."""
    if interrupt.came:
        if interrupt.reading:
            print(f"interrupted while reading {', '.join(interrupt.reading)}", file=sys.stderr)
        sys.exit(130)


def _sentence(error: Any) -> tuple[str, int]:
    """Return the message for the user and the exit code."""
    words = str(error) or type(error).__name__
    if isinstance(error, SaccadeError):
        return words, error.exit_code
    if hasattr(error, "format_message"):  # from the parser of the command line
        return _usage(error), 2
    if isinstance(error, ModuleNotFoundError) and (words := missing(error.name or "")):
        return words, 2
    if isinstance(error, MemoryError) or "allocate memory" in words or "out of memory" in words:
        return "the machine is out of memory; use a smaller model or image", 5
    if isinstance(error, OSError) and (found := _refused(error)):
        return found
    if "Too many open files" in words:
        return TOO_MANY_FILES, 5
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to read; expected a few levels; flatten it", 3
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return "a name contains bytes that are not UTF-8; rename the file or the folder", 2
    if isinstance(error, ValueError) and "embedded null" in words:
        return "a name contains a null byte, which no file name can; correct the name", 2
    return (
        f"this is a bug in saccade ({type(error).__name__}: {words}); "
        f"run `saccade --debug ...` for the traceback, and please report it"
    ), 70


def _usage(error: Any) -> str:
    """Return the message for a command line that cannot be parsed, with the option or word that was meant."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "saccade"
    words = error.format_message().strip().rstrip(".")
    if option := getattr(error, "option_name", "") if type(error).__name__ == "NoSuchOption" else "":
        words = f"no such option: {option}"
        if ctx:
            words += option_hint(
                option, ctx.command.name or "", *_accepted(ctx.command), _fields(ctx.command)
            )
    elif (extra := re.search(r"extra argument\S* \((\S+?)\)", words)) and (name := architecture(extra[1])):
        words += f"; name an architecture with --model {name}"
    return _see(f"{words[:1].lower()}{words[1:]}", path)


def _see(words: str, path: str) -> str:
    """Return the sentence with the help to read, unless it names that already."""
    end = f"`{path} --help`"
    return words if end in words else f"{words} See {end}" if words[-1:] == "?" else f"{words}; see {end}"


def _refused(error: OSError) -> tuple[str, int] | None:
    """Return the message for a refusal by the operating system, if the user can do something about it."""
    if error.errno in FULL:
        return f"no space is left to write the output ({error.strerror}); make room", 5
    if error.errno in MANY:
        return TOO_MANY_FILES, 5
    if error.errno not in REFUSED:
        return None
    code, advice = REFUSED[error.errno]
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    what = repr(os.fsdecode(names[0])) if names else "a file"
    return f"{what} cannot be used ({error.strerror}): {advice}", code


def _shorten(line: str) -> str:
    """Shorten a line over the limit: first its long words, then its middle."""
    if len(line) > LONGEST:
        line = re.sub(rf"\S{{{WORD + 1},}}", lambda word: _cut(word[0], WORD), line)
    return _cut(line, LONGEST)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    tail = most * 2 // 5
    return f"{text[: most - tail - 3]}...{text[-tail:]}"


def _leave(sentence: str, code: int) -> NoReturn:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    sentence = _cut(" ".join(sentence.split("\n")), 10 * LONGEST)  # a library's message may be megabytes long
    line = _shorten(printable(sentence, len(sentence)))
    print(f"{red}error:{plain} {line}", file=sys.stderr)
    sys.exit(code)
