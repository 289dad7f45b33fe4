"""A page that leads to the pages of several pictures."""

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from saccade.explain.describe import titled
from saccade.explain.explanation import Account
from saccade.report import html as show
from saccade.report.html import Html, joined, name, section, tag
from saccade.wording import count, percent

SIDE = 200


class Entry(NamedTuple):
    """A picture and the file of its page, beside the index."""

    account: Account
    file: str


def index(entries: Sequence[Entry], model: str) -> str:
    """The whole file."""
    heads = joined(
        [
            tag("h1", f"Why it answered so: {count(len(entries), 'picture')}"),
            tag("p", tag("code", name(model)), cls="soft"),
        ]
    )
    cards = tag("ul", *(tag("li", _card(entry)) for entry in entries), cls="gallery")
    title = f"{model}: {count(len(entries), 'picture')}: saccade explain"
    return show.page(title, joined([heads, section("pictures", "Pictures", cards)]), {"pictures": "Pictures"})


def _card(entry: Entry) -> Html:
    account, heatmap = entry.account, entry.account.heatmap
    small = account.overlay()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    address = Html(f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}")
    verdict = [] if account.verdict is None else [tag("span", account.verdict.word)]
    words = tag(
        "figcaption",
        tag("span", tag("b", name(heatmap.label)), f", {percent(heatmap.probability)} sure"),
        tag("span", f"{titled(heatmap.method)}: {account.where}"),
        *verdict,
        tag("code", name(account.name)),
    )
    link = Html(quote(entry.file))
    return tag("figure", tag("a", tag("img", src=address, alt=account.alt), href=link), words)
