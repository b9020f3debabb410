# SPDX-License-Identifier: Apache-2.0
"""A picture of a `segue sweep --device cuda` document with many batches: time over the time of reading the KV once.

Used by scripts/tables.py, which keeps docs/cuda-sweep-batch-sizes-h200.svg equal to bench/results.
"""
import math

from plot_cells import line, text

LEFT, TOP, WIDTH, HEIGHT, GAP = 44, 40, 300, 190, 56
COLOURS = {1: "#06c", 8: "#c60", 16: "#393"}
HIGHEST = 3.2


def svg(document: dict) -> str:
    cells = document["cells"]
    groups = list(dict.fromkeys((c["shape"], c["depth"]) for c in cells))
    batches = sorted({c["batch"] for c in cells})
    columns = 2
    high = (len(groups) + columns - 1) // columns
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + columns * (WIDTH + GAP)}" '
        f'height="{high * (TOP + HEIGHT + 30)}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (shape, depth) in enumerate(groups):
        left = LEFT + i % columns * (WIDTH + GAP)
        top = TOP + i // columns * (TOP + HEIGHT + 30)
        x = lambda batch: left + WIDTH * math.log(batch / batches[0]) / math.log(batches[-1] / batches[0])
        y = lambda ratio: top + HEIGHT * (HIGHEST - min(ratio, HIGHEST)) / (HIGHEST - 1)
        out.append(text(left + WIDTH / 2, top - 14, f"{shape}, {depth} keys: time over the KV's", "middle", "bold"))
        for ratio in (1, 1.5, 2, 2.5, 3):
            out.append(line(left, y(ratio), left + WIDTH, y(ratio), "#ddd", 1))
            out.append(text(left - 6, y(ratio) + 4, f"{ratio:g}", "end"))
        for batch in (1, 2, 4, 8, 16, 32, 64):
            if batches[0] <= batch <= batches[-1]:
                out.append(text(x(batch), top + HEIGHT + 14, str(batch), "middle"))
        for j, rows in enumerate(dict.fromkeys(c["rows"] for c in cells)):
            mine = sorted((c["batch"], c["ratio_to_bound"]) for c in cells
                          if (c["shape"], c["depth"], c["rows"]) == (shape, depth, rows))
            colour = COLOURS.get(rows, "#666")
            points = " ".join(f"{x(batch):.1f},{y(ratio):.1f}" for batch, ratio in mine)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            out += [f'<circle cx="{x(batch):.1f}" cy="{y(ratio):.1f}" r="2.2" fill="{colour}"/>' for batch, ratio in mine]
            out.append(text(left + WIDTH - 60, top + 12 + 14 * j, f"{rows} row{'s' if rows > 1 else ''}"))
            out.append(line(left + WIDTH - 82, top + 8 + 14 * j, left + WIDTH - 66, top + 8 + 14 * j, colour, 2))
    out.append("</svg>")
    return "\n".join(out) + "\n"
