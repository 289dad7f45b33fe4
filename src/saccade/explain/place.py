"""Where a page is written: one file, or a folder for several; torch is not needed to say no."""

from pathlib import Path

from saccade.errors import UsageError

PAGES = (".html", ".htm")


def check_page(html: Path, pictures: int, noun: str = "pictures") -> None:
    """Refuse, before any work is done, the file of a page that could not be written."""
    if pictures > 1:
        raise UsageError(
            f"{pictures} {noun} were given, and {html} is one page; give a folder, such as --html "
            f"{html.with_suffix('')}"
        )
    if html.exists():
        raise UsageError(f"{html} exists; nothing was written; give another name")
    if not html.parent.is_dir():
        raise UsageError(f"{html} cannot be written: there is no folder {html.parent}; make it first")


def is_file(html: Path) -> bool:
    """Whether the name is that of one page, and not of a folder for several."""
    return html.suffix.lower() in PAGES
