"""The files that an explanation leaves: an overlay and its numbers for each picture, pages to click in."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

from saccade.explain.explanation import Account
from saccade.explain.page.content import Story
from saccade.explain.page.index import Entry, index
from saccade.explain.page.page import page
from saccade.explain.place import is_file
from saccade.files.atomic import replacing, write_text


@dataclass
class Keeper:
    """Writes what is known of one picture after another, each file whole or not at all."""

    model: str
    html: Path | None = None
    """The file of the page, or a folder for several."""
    out: Path | None = None
    """The folder for overlays and numbers; it is there already."""
    entries: list[Entry] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def keep(self, account: Account, story: Story | None) -> None:
        """Write the files of a picture."""
        stem = self._stem(account.name)
        if self.out is not None:
            _write(self.out, stem, account)
        if self.html is not None and story is not None:
            if is_file(self.html):
                write_text(self.html, page(story))
                return
            self.html.mkdir(parents=True, exist_ok=True)
            write_text(self.html / f"{stem}.html", page(story))
            self.entries.append(Entry(account, f"{stem}.html"))

    def finish(self) -> Path | None:
        """Write the index if there is a folder of pages; return where to begin reading."""
        if self.html is None or is_file(self.html):
            return self.html if self.html is not None and self.html.exists() else None
        if not self.entries:
            return None
        write_text(self.html / "index.html", index(self.entries, self.model))
        return self.html / "index.html"

    def _stem(self, name: str) -> str:
        """A name for the files of a picture that no other one has."""
        first = "stdin" if name == "-" else Path(name).stem[:100]
        stem, number = first, 1
        while stem.casefold() in {*self.taken, "index"}:
            number += 1
            stem = f"{first}-{number}"
        self.taken.add(stem.casefold())
        return stem


def _write(folder: Path, stem: str, account: Account) -> None:
    file = io.BytesIO()
    account.overlay().save(file, "PNG")
    with replacing(folder / f"{stem}.png", file.getbuffer().nbytes) as place:
        place.write(file.getvalue())
    write_text(folder / f"{stem}.json", json.dumps(account.to_json(), allow_nan=False) + "\n")
