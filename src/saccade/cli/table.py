"""Columns for people: nothing is cut or folded, so that what is copied or piped is whole."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Lines with aligned columns; `right` are the numbers of those that are aligned on the right."""
    from rich.cells import cell_len  # a Chinese letter takes two places on the screen

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            gap + cell if i in right else cell + gap
            for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
