"""How the answer came about: the probability of each class read after every layer, as a graph and a table."""

from collections.abc import Sequence

from saccade.explain.page.content import Story
from saccade.report.html import Html, section, table, tag, text
from saccade.report.plots import Cell, cells
from saccade.wording import percent

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 900, 300, 46, 34, 12, 190


def depth_panel(title: str, story: Story) -> Html:
    first = story.answers[0]
    since = _settled(story)
    said = (
        f"Read after layer {since}, the stream already says {first.label!r}, and so it stays."
        if since < len(story.lens) - 1
        else f"Only the last layer makes it {first.label!r}."
    )
    heads = ["after layer", *(each.label for each in story.answers), "likeliest there"]
    forms = {str(i): "percent" if 0 < i <= len(story.answers) else "text" for i in range(len(heads))}
    rows: list[tuple[Cell, ...]] = [
        (str(depth) if depth else "embedding", *values, f"{guess.label} ({percent(guess.score)})")
        for depth, (values, guess) in enumerate(zip(story.lens, story.guesses, strict=True))
    ]
    numbers = table("depth-numbers", "The numbers", heads, cells(forms, rows))
    graph = tag(
        "div", _graph(story, said), cls="scroll plot", role="region", aria_label="Chart", tabindex="0"
    )
    note = (
        "The head of the model applied to the stream after each layer (the logit lens, nostalgebraist 2020)."
    )
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


def _settled(story: Story) -> int:
    """The first depth from which on the first answer is the likeliest."""
    since = len(story.guesses) - 1
    while since > 0 and story.guesses[since - 1].index == story.answers[0].index:
        since -= 1
    return since


def _graph(story: Story, said: str) -> Html:
    """Probabilities by depth, as lines that take their colours from the page."""
    last = max(len(story.lens) - 1, 1)

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
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share * 100:.0f} %</text>'
        )
    parts += [
        f'<text x="{x(depth):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{depth}</text>'
        for depth in range(0, last + 1, max(1, last // 12))
    ]
    for i, place in enumerate(_apart([y(value) for value in story.lens[-1]][:4])):
        points = " ".join(f"{x(depth):.1f},{y(values[i]):.1f}" for depth, values in enumerate(story.lens))
        label = text(_short(story.answers[i].label))
        parts.append(f'<polyline class="series c{i}" points="{points}"/>')
        parts.append(f'<text class="name" x="{x(last) + 10:.1f}" y="{place + 4:.1f}">{label}</text>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" class="lens" role="img" aria-label="{text(said)}"'
    return Html(f"<svg {box}>{''.join(parts)}</svg>")


def _short(label: str, limit: int = 24) -> str:
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _apart(places: Sequence[float], gap: float = 17) -> list[float]:
    """Labels moved up or down until none covers another, those at the bottom first."""
    moved = list(places)
    floor = float(HEIGHT - BOTTOM)
    for i in sorted(range(len(moved)), key=lambda i: -moved[i]):
        moved[i] = min(moved[i], floor)
        floor = moved[i] - gap
    return moved
