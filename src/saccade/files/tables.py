"""Escape text in CSV cells so that no spreadsheet runs it as a formula, and undo it."""

import re

_FORMULA = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
"""What a spreadsheet would run, after any apostrophes that we added; some run the full-width signs too."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def to_cell(text: str) -> str:
    """Return text with an apostrophe in front if it would be a formula; a plain number stays as it is.

    >>> to_cell("=cmd"), to_cell("-1.5"), to_cell("cat")
    ("'=cmd", '-1.5', 'cat')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def from_cell(cell: str) -> str:
    """Return the text from which `to_cell` made a cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
