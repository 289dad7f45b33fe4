"""The panels of the page: the map of a class, the attention of a patch, and the answer after each layer."""

from collections.abc import Iterable, Sequence

from saccade.explain.explanation import method_title
from saccade.explain.page.attention_data import PackedAttention
from saccade.explain.page.content import MethodResult, PageContent
from saccade.report.html import Html, name, section, soft, table, tag, text
from saccade.report.plots import Cell, cells
from saccade.report.thumbnails import shrink
from saccade.wording import percent

TINY = 64
"""Sides of up to this many pixels are shown with square pixels."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 900, 300, 46, 34, 12, 190
"""The graph by depth and its margins, in pixels."""


def drawing_controls() -> Html:
    """Return the controls that all maps share."""
    return tag(
        "div",
        tag("label", "Heat ", Html('<input type="range" id="strength" min="0" max="100" value="85">')),
        tag("label", Html('<input type="checkbox" id="smooth">'), " smooth"),
        tag("label", Html('<input type="checkbox" id="lines" checked>'), " grid"),
        cls="looks",
        role="group",
        aria_label="How the maps are drawn",
    )


def _image(content: PageContent) -> tuple[Html, bool]:
    """Return the image, and whether it is tiny."""
    seen, tiny = shrink(content.picture.copy(), max(content.picture.size), TINY, quality=90)
    return tag("img", src=seen, alt=f"The image as the model sees it: {content.name}"), tiny


def _framed(content: PageContent, anchor: str, *over: Html) -> Html:
    (image, tiny), (width, height) = _image(content), content.picture.size
    kind = "stage tiny" if tiny else "stage"
    return tag("div", image, *over, id=anchor, cls=kind, style=f"aspect-ratio: {width} / {height}")


def _stage(content: PageContent, kind: str, label: str) -> Html:
    heat = tag("canvas", id=f"{kind}-canvas", role="img", aria_label=label)
    return _framed(content, f"{kind}-stage", heat, tag("div", role="grid", aria_label=label))


def _choice(group: str, value: object, chosen: bool, *inner: str) -> Html:
    ticked = " checked" if chosen else ""
    radio = Html(f'<input type="radio" name="{group}" value="{value}"{ticked}>')
    return tag("label", radio, *inner, cls="choice")


def _fieldset(legend: str, cls: str, choices: Iterable[Html]) -> Html:
    return tag("fieldset", tag("legend", legend), tag("div", *choices, cls=cls))


def _classes(content: PageContent) -> Html:
    def level(share: float) -> Html:
        return tag("span", cls="level", style=f"width: {max(0.0, min(1.0, share)) * 100:.1f}%")

    return _fieldset(
        "Evidence for",
        "choices",
        (
            _choice(
                "class",
                each.index,
                i == 0,
                tag("span", name(each.label)),
                tag("span", percent(each.score), cls="amount"),
                level(each.score),
            )
            for i, each in enumerate(content.answers)
        ),
    )


def _methods(content: PageContent) -> Html:
    return _fieldset(
        "According to",
        "choices methods",
        (
            _choice(
                "method",
                each.name,
                each.name == content.method,
                tag("span", method_title(each.name)),
                _mark(each),
            )
            for each in content.results
        ),
    )


def _mark(result: MethodResult) -> Html:
    good = {True: "good", False: "bad", None: None}[result.good]
    return tag("small", result.verdict, cls=good) if result.verdict else tag("small")


def _tops(kind: str, caption: str, amount: str) -> Html:
    head = tag(
        "tr",
        tag("th", "", scope="col", aria_label="Rank"),
        tag("th", "Where", scope="col"),
        tag("th", amount, scope="col"),
    )
    whole = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", id=f"{kind}-rows"), cls="tops"
    )
    return tag("details", tag("summary", caption), whole)


def _here(kind: str) -> Html:
    return tag("p", "", id=f"{kind}-here", cls="here")


def map_panel(title: str, content: PageContent) -> Html:
    """Return the map of a class by a method, with pickers for both."""
    cold = tag("span", tag("i", cls="cold"), "against", id="map-key", hidden="hidden")
    key = tag("div", tag("span", "little ", tag("i"), " much evidence"), cold, cls="key", aria_hidden="true")
    answer = content.answers[0]
    caption = tag("figcaption", tag("b", name(answer.label)), f", confidence {percent(answer.score)}")
    image = tag("figure", _framed(content, "map-image"), caption)
    over = tag("figure", _stage(content, "map", "Heat map over the image"), tag("figcaption", key))
    left = tag("div", tag("div", image, over, cls="beside"), _here("map"))
    right = tag(
        "div",
        tag("div", tag("p", id="map-summary", aria_live="polite"), tag("p", id="map-score", cls="verdict")),
        _classes(content),
        _methods(content),
        _tops("map", "The ten hottest cells", "Share of the heat"),
        cls="panel",
    )
    return section("map", title, tag("div", left, right, cls="pair wide"))


def attention_panel(title: str, content: PageContent) -> Html:
    """Return the attention of a patch, with pickers for layer and head."""
    if content.attention is None:
        return section("gaze", title, soft(content.why))
    packed = content.attention
    count = len(packed.layers)
    slider = Html(f'<input type="range" id="layer" min="1" max="{count}" value="{count}">')
    layers = tag(
        "div",
        Html('<label for="layer"><b>Layer</b></label>'),
        slider,
        Html('<output id="layer-said" for="layer"></output>'),
        cls="slide",
    )
    left = tag(
        "div",
        tag("div", id="fronts", cls="tokens", role="group", aria_label="Tokens that are not patches"),
        _stage(content, "gaze", "What the chosen token attends to"),
        _here("gaze"),
    )
    right = tag(
        "div",
        layers,
        *([_heads(packed)] if not packed.averaged and packed.heads > 1 else []),
        tag("p", id="gaze-summary", aria_live="polite"),
        _tops("gaze", "The ten that it attends to most", "Share of its attention"),
        cls="panel",
    )
    atlas = tag(
        "figure",
        tag("h3", "Every layer and head at once"),
        tag("div", id="atlas", cls="atlas", role="img", aria_label="Small maps of every layer and head"),
        tag("figcaption", "Click one to enlarge it; layer and head can also be chosen above."),
    )
    lead = "Choose a patch: the brighter another one, the more it attends to it. "
    return section("gaze", title, tag("p", lead, packed.summary), tag("div", left, right, cls="pair"), atlas)


def _heads(packed: PackedAttention) -> Html:
    words = ["mean", *(str(head + 1) for head in range(packed.heads))]
    return _fieldset(
        "Head", "heads", (_choice("head", i - 1, i == 0, tag("span", word)) for i, word in enumerate(words))
    )


def depth_panel(title: str, content: PageContent) -> Html:
    """Return the probabilities after each layer as a graph and a table."""
    first = content.answers[0]
    since = _settled(content)
    said = (
        f"From {f'layer {since}' if since else 'the embedding'} on, the model predicts {first.label!r}."
        if since < len(content.lens) - 1
        else f"Only the last layer predicts {first.label!r}."
    )
    heads = ["after layer", *(each.label for each in content.answers), "most likely"]
    forms = {str(i): "percent" if 0 < i <= len(content.answers) else "text" for i in range(len(heads))}
    rows: list[tuple[Cell, ...]] = [
        (str(depth) if depth else "embedding", *values, f"{guess.label} ({percent(guess.score)})")
        for depth, (values, guess) in enumerate(zip(content.lens, content.guesses, strict=True))
    ]
    numbers = table("depth-numbers", "The numbers", heads, cells(forms, rows))
    graph = tag(
        "div", _graph(content, said), cls="scroll plot", role="region", aria_label="Chart", tabindex="0"
    )
    note = "The model's head applied to the stream after each layer (the logit lens, nostalgebraist 2020)."
    return section(
        "depth",
        title,
        tag(
            "figure",
            graph,
            tag("figcaption", tag("strong", said), " ", note),
            tag("details", tag("summary", "The numbers"), numbers),
            cls="wide",
        ),
    )


def _settled(content: PageContent) -> int:
    """Return the first depth from which on the first answer is the most likely."""
    since = len(content.guesses) - 1
    while since > 0 and content.guesses[since - 1].index == content.answers[0].index:
        since -= 1
    return since


def _graph(content: PageContent, said: str) -> Html:
    """Draw probabilities by depth as lines in the colours of the page."""
    last = max(len(content.lens) - 1, 1)

    def x(depth: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * depth / last

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{x(last):.1f}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share * 100:.0f}%</text>'
        )
    parts += [
        f'<text x="{x(depth):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{depth}</text>'
        for depth in range(0, last + 1, max(1, last // 12))
    ]
    for i, height in enumerate(_apart([y(value) for value in content.lens[-1]][:4])):
        points = " ".join(f"{x(depth):.1f},{y(values[i]):.1f}" for depth, values in enumerate(content.lens))
        label = text(_short(content.answers[i].label))
        parts.append(f'<polyline class="series c{i}" points="{points}"/>')
        parts.append(f'<text class="name" x="{x(last) + 10:.1f}" y="{height + 4:.1f}">{label}</text>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" class="lens" role="img" aria-label="{text(said)}"'
    return Html(f"<svg {box}>{''.join(parts)}</svg>")


def _short(label: str, limit: int = 24) -> str:
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _apart(heights: Sequence[float], gap: float = 17) -> list[float]:
    """Move labels up until none covers another, the lowest first."""
    moved = list(heights)
    floor = float(HEIGHT - BOTTOM)
    for i in sorted(range(len(moved)), key=lambda i: -moved[i]):
        moved[i] = min(moved[i], floor)
        floor = moved[i] - gap
    return moved
