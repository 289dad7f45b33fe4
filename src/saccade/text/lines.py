"""Read lines of text files, plain or gzip, and the JSON objects in them; errors name the line."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from saccade.data.readers.listing import nearest
from saccade.errors import DataError, check_handles
from saccade.wording import show_name

LONGEST = 20_000
"""Characters per line; a longer line is not a sentence and could exhaust the memory."""
_BOM = b"\xef\xbb\xbf"
_OTHER = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        if not path.is_file():
            raise FileNotFoundError if not os.path.lexists(path) else IsADirectoryError
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
    except FileNotFoundError:
        raise DataError(
            f"{show_name(path)} does not exist; expected a text file; {nearest(str(path))}"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{show_name(path)} is not a regular file; expected a text file") from None
    except PermissionError:
        raise DataError(f"you have no permission to read {show_name(path)}; allow it (chmod u+r)") from None
    except OSError as error:
        check_handles(error)
        raise


def lines(path: Path, longest: int = LONGEST) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and the text of each line, without its newline; one at a time."""
    number, name, most = 0, show_name(path), 4 * longest + 8
    with _opened(path) as file:
        while True:
            number += 1
            try:
                raw = file.readline(most)
            except (OSError, EOFError, zlib.error) as error:
                reason = " ".join(str(error).split())
                raise DataError(
                    f"{name} cannot be read beyond line {number - 1} ({reason}); copy it again"
                ) from error
            if not raw:
                return
            if number == 1:
                raw = _without_bom(name, raw)
            cut = len(raw) == most and not raw.endswith(b"\n")
            text = _decoded(raw, f"line {number} of {name}", cut).removesuffix("\n").removesuffix("\r")
            if len(text) > longest:
                raise DataError(
                    f"line {number} of {name} has more than {longest:,} characters; expected a sentence or a "
                    "paragraph per line; split it or leave it out"
                )
            yield number, text


def _without_bom(name: str, raw: bytes) -> bytes:
    if raw[:2] in _OTHER:
        raise DataError(f"{name} is {_OTHER[raw[:2]]}; expected UTF-8; save it as UTF-8")
    return raw.removeprefix(_BOM)


def _decoded(raw: bytes, where: str, cut: bool) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return raw[: error.start].decode()  # our own limit split a character
        raise DataError(
            f"{where} is not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start + 1}); expected "
            "text in UTF-8; convert it, for example with `iconv -f latin1 -t utf-8`"
        ) from None


def json_fields(text: str, where: str) -> Mapping[str, Any]:
    """Return the object of a line, or the one in its field "translation"."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0]
        raise DataError(f"{where} is not JSON ({reason}); expected an object such as {{...}}") from None
    if not isinstance(found, dict):
        raise DataError(
            f"{where} is {text.strip()[:40]!r}; expected a JSON object with a field for each side"
        )
    if "\\ud" in text.lower():  # a lone surrogate, which JSON may hold and UTF-8 may not
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where} contains half a character (\\ud800 to \\udfff); expected text"
            ) from None
    inner = found.get("translation")
    return inner if isinstance(inner, dict) else found
