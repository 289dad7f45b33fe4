"""Where an explanation is written: a page, a folder of pages, a folder of pictures."""

from pathlib import Path

from saccade.cli.arguments import check_free
from saccade.errors import UsageError

OUT = Path("explained")


def check_place(html: Path | None, pictures: int, noun: str = "pictures") -> None:
    """Refuse a page, or a folder of pages, that could not be written, before any work is done."""
    from saccade.explain.place import check_page, is_file

    if html is not None and is_file(html):
        check_page(html, pictures, noun)
    else:
        check_free(html)


def made_folder(out: Path | None, wanted: bool) -> Path | None:
    """The folder asked for, or a new one if one is wanted."""
    from saccade.files.atomic import new_folder

    if out is None:
        return new_folder(OUT) if wanted else None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made ({error.strerror}); choose another place") from error
    return out
