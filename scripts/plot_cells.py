# SPDX-License-Identifier: Apache-2.0
"""A picture of a `segue cells` document: one line per cell, dots with 95 % intervals.

Used by scripts/tables.py, which keeps docs/never-slower.svg equal to bench/results.
"""
import math

ROW = 15          # pixels
LABELS = 190      # width of the labels on the left
WIDTH = 250       # of a panel
GAP = 60          # between the panels
TOP = 46


class Axis:
    """Ratios to pixels, logarithmic."""

    def __init__(self, left: float, low: float, high: float, ticks: list[float], bar: float):
        self.left, self.low, self.high, self.ticks, self.bar = left, low, high, ticks, bar

    def x(self, ratio: float) -> float:
        ratio = min(max(ratio, self.low), self.high)
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return self.left + WIDTH * share


def text(x: float, y: float, content: str, anchor: str = "start", weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
            f"{content}</text>")


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"/>')


def svg(document: dict) -> str:
    cells = document["cells"]
    groups = list(dict.fromkeys((c["batch"], c["depth"]) for c in cells))
    height = TOP + ROW * (len(cells) + len(groups)) + 24
    most = max(c["to_off"]["high95"] for c in cells)
    off = Axis(LABELS, 0.9, max(2.0, most * 1.05), [0.98, 1.5, 2, 3, 4, 6, 8], 0.98)
    best = Axis(LABELS + WIDTH + GAP, 0.88, 1.2, [0.9, 0.97, 1, 1.05, 1.1, 1.15], 0.97)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABELS + 2 * WIDTH + GAP + 30}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for axis, title in ((off, "auto / off"), (best, "auto / best fixed k")):
        out.append(text(axis.left + WIDTH / 2, 14, title, "middle", "bold"))
        for tick in axis.ticks:
            if not axis.low <= tick <= axis.high:
                continue
            bar = tick == axis.bar
            out.append(text(axis.x(tick), TOP - 14, f"{tick:g}", "middle"))
            out.append(line(axis.x(tick), TOP - 8, axis.x(tick), height - 12,
                            "#c00" if bar else "#ddd", 1.2 if bar else 1))
    y = TOP
    for group in groups:
        y += ROW
        batch, depth = group
        out.append(text(4, y, f"depth {depth}, batch {batch}", weight="bold"))
        for cell in cells:
            if (cell["batch"], cell["depth"]) != group:
                continue
            y += ROW
            out.append(text(20, y, f"acceptance {cell['profile']}"))
            for axis, ratio in ((off, cell["to_off"]), (best, cell["to_best"])):
                colour = "#c00" if ratio["low95"] < axis.bar else "#06c"
                middle = y - 4
                out.append(line(axis.x(ratio["low95"]), middle, axis.x(ratio["high95"]), middle,
                                colour, 2))
                out.append(f'<circle cx="{axis.x(ratio["median"]):.1f}" cy="{middle:.1f}" r="3" '
                           f'fill="{colour}"/>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
