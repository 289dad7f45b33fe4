"""One rule for class names, in folders, manifests, shards, labels.txt and the labels of models.

Runs of white space become one space and the ends are stripped; the text takes Unicode's composed form (NFC);
unprintable characters are escaped as in Python (`\\x1b`). A name has 1 to `LONGEST` characters.
"""

import unicodedata
from collections.abc import Sequence

from saccade.errors import DataError
from saccade.wording import some

LONGEST = 1024
"""Characters of a name; any folder name fits (255 bytes, each escaped to 4 characters)."""


def _escape(char: str) -> str:
    code = ord(char)
    # bytes that are not UTF-8 arrive as bytes from a folder and as these surrogates from a manifest
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(char)[1:-1]


def class_name(raw: str | bytes) -> str:
    """Return the name of a class by the rule above; `class_name(class_name(raw)) == class_name(raw)`.

    The name may be longer than `LONGEST`: the caller refuses or cuts it.
    """
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    # composing takes quadratic time and shortens by 4 at most, so the rest of a very long text is ignored
    text = " ".join(text.split())[: 4 * LONGEST + 4]
    if text.isascii() and text.isprintable():
        return text
    text = unicodedata.normalize("NFC", text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escape(c) for c in text)
        text = unicodedata.normalize("NFC", text)  # an accent may now follow the last letter of an escape
    return text


def name_labels(labels: Sequence[object]) -> list[str]:
    """Return the class names of a model's labels; long ones are cut, as the user cannot rename them."""
    found = (class_name(str(label))[:LONGEST].rstrip() for label in labels)
    return [name or f"class {i}" for i, name in enumerate(found)]


def quote(raw: str | bytes) -> str:
    """Return text in quotes as Python spells it, to distinguish names that look alike."""
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    found = repr(text[: 4 * LONGEST])
    return found if len(found) <= 90 else f"{found[:60]}...{found[-20:]}"


def _check(name: str, raw: str | bytes, where: str) -> None:
    if not name:
        raise DataError(f"a class of {where} is called {quote(raw)}, which is all white space; rename it")
    if len(name) > LONGEST:
        raise DataError(
            f"a class of {where} has a name of more than {LONGEST:,} characters ({quote(raw)}); shorten it"
        )


class Classes:
    """The classes of a source, numbered in the order in which its reader meets them.

    Two Unicode spellings of one name (é composed and decomposed) are one class. Any other two names
    that the rule above would merge are refused.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.names: dict[str, int] = {}
        self._numbers: dict[str | bytes, int] = {}
        self._raw: dict[str, str] = {}
        self._twice: list[str] = []

    def __len__(self) -> int:
        return len(self.names)

    def number(self, raw: str | bytes) -> int:
        """Return the number of a class, given its name as the source spells it."""
        found = self._numbers.get(raw)
        if found is None:
            found = self._numbers[raw] = self._add(raw)
        return found

    def _add(self, raw: str | bytes) -> int:
        name = class_name(raw)
        _check(name, raw, self.source)
        text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
        text = unicodedata.normalize("NFC", text)
        if name in self.names:
            self._twice.append(name)
        if self._raw.setdefault(name, text) != text:
            raise DataError(
                f"{self.source} has the classes {quote(self._raw[name])} and {quote(text)}, which would both "
                f"be called {quote(name)}; expected names that stay distinct; rename or merge them"
            )
        return self.names.setdefault(name, len(self.names))

    def warnings(self) -> list[str]:
        """Return one sentence for the classes whose names were changed and one for each double spelling."""
        other = [f"{quote(raw)} as {quote(name)}" for name, raw in self._raw.items() if name != raw]
        found = [f"class names are simplified: {some(other, limit=1000)}"] if other else []
        return found + [
            f"class {quote(name)} is spelt two ways (Unicode composed and decomposed); both are one class"
            for name in self._twice[:5]
        ]


def check_list(names: Sequence[str], where: str) -> None:
    """Refuse a list with an empty or too long name; duplicates may stay, as their numbers differ."""
    for name in names:
        _check(name, name, where)
