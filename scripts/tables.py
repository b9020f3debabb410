#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of README.md and docs/ from bench/results.

    scripts/tables.py            rewrite every table
    scripts/tables.py --check    exit status 1 when a table differs from its data

A table is what stands between `<!-- table:NAME -->` and `<!-- /table -->`; NAME is a file
bench/results/NAME.json of tools/compare_llama.py or tools/pair_ladders.py, or in the format of `segue ladder --json`, `segue sweep
--json`, `segue cells --json` or attention/cuda/harness. While that file does not exist the table must be
empty. docs/NAME.svg is the picture of cells or of batches, where it exists.
"""
import json
import pathlib
import re
import statistics
import sys

import plot_batches
import plot_cells
from gpu_tables import gpu_table, markdown, pairs

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
TABLE = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
MARKERS = re.compile(r"^<!-- (?:table:[\w-]+|/table) -->$", re.MULTILINE)


def ladder(document: dict) -> str:
    """Depths down, one column per speculation setting and policy: tokens/s and the ratio to `off`."""
    rows = document["rows"]
    settings = list(dict.fromkeys((row["spec"], row["policy"]) for row in rows))
    cells = {(row["depth"], row["spec"], row["policy"]): row for row in rows}

    def cell(depth, setting) -> str:
        row = cells.get((depth, *setting))
        if row is None:
            return "–"
        rate = f"{row['tokens_per_s']['median']:.1f}"
        ratio = row.get("ratio_to_off")
        if not ratio or setting[0] == "off":
            return rate
        return f"{rate} ({ratio['median']:.2f}x, {ratio['low95']:.2f}–{ratio['high95']:.2f})"

    depths = list(dict.fromkeys(row["depth"] for row in rows))
    header = ["depth"] + [f"{spec}, {policy}" for spec, policy in settings]
    return markdown(header, [[str(d)] + [cell(d, s) for s in settings] for d in depths])


def sweep(document: dict) -> str:
    """One line per cell."""
    header = ["shape", "depth", "rows", "policy", "path", "workgroups", "µs", "GB/s", "× bound"]
    return markdown(header, [[
        str(c["shape"]), str(c["depth"]), str(c["rows"]), c["policy"], c["path"], str(c["workgroups"]),
        f"{c['us']['median']:.0f}", f"{c['gbps']:.1f}", f"{c['ratio_to_bound']:.2f}"
    ] for c in document["cells"]])


def llama(document: dict) -> str:
    """One line per depth of tools/compare_llama.py: both engines, no speculation, rounds alternating."""
    header = ["depth", "decode, tokens/s", "llama.cpp", "ratio", "prefill, tokens/s", "llama.cpp", "ratio"]
    return markdown(header, [[
        str(row["depth"]), f"{statistics.median(row['segue_decode']):.0f}",
        f"{statistics.median(row['llama_decode'][row['best_llama']]):.0f}", f"{row['decode_ratio']:.2f}x",
        f"{statistics.median(row['segue_prefill']):.0f}", f"{max(row['llama_prefill'].values()):.0f}",
        f"{row['prefill_ratio']:.2f}x"
    ] for row in document["rows"]])


def oracle_ratio(cell: dict) -> float:
    """Rate, over that of the best fixed k, of a controller that knows which k is best and yet measures
    one step of something else: one without drafts, or of k = 1 where no drafts are best."""
    steps = {}  # by alternative: microseconds and tokens of one step, and of all
    for a in cell["alternatives"]:
        count = sum(a["steps_by_k"]) / cell["batch"]
        us, tokens = sum(a["slice_us"]), sum(a["slice_tokens"])
        steps[a["spec"]] = (us / count, tokens / count, us, tokens)
    rounds = len(next(a for a in cell["alternatives"] if a["spec"] == "auto")["controller"])
    _, _, best_us, best_tokens = steps[cell["best_fixed"]]
    us, tokens, _, _ = steps["k1" if cell["best_fixed"] == "off" else "off"]
    rest_us = (best_tokens / rounds - tokens) * best_us / best_tokens
    return best_us / rounds / (us + rest_us)


def cells(document: dict) -> str:
    """One line per cell of `segue cells`; a bound that misses its bar is in bold."""

    def ratio(value: dict, bar: float) -> str:
        low = f"{value['low95']:.3f}"
        return f"{value['median']:.3f} ({low if value['low95'] >= bar else f'**{low}**'}–{value['high95']:.3f})"

    header = ["batch", "depth", "acceptance", "off, tokens/s", "auto, tokens/s", "auto / off (95 %)",
              "best fixed", "auto / best fixed (95 %)", "oracle / best fixed"]
    rows = []
    for c in document["cells"]:
        rate = {a["spec"]: f"{a['tokens_per_s']:.1f}" for a in c["alternatives"]}
        rows.append([str(c["batch"]), str(c["depth"]), c["profile"], rate["off"], rate["auto"],
                     ratio(c["to_off"], 0.98), c["best_fixed"], ratio(c["to_best"], 0.97),
                     f"{oracle_ratio(c):.3f}"])
    return markdown(header, rows)


def render(name: str) -> str:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return ""
    document = json.loads(path.read_text())
    if "llama_cpp_python" in document:
        return llama(document)
    if "pairs" in document:
        return pairs(document)
    if "rows" in document:
        return ladder(document)
    if "gpu" in document or "counters" in document:
        return gpu_table(document, RESULTS)
    return cells(document) if "profile" in document["cells"][0] else sweep(document)


def rewritten(text: str) -> str:
    return TABLE.sub(lambda m: m.group(1) + render(m.group(2)) + m.group(4), text)


def pictures() -> list[tuple[pathlib.Path, str]]:
    """Every docs/NAME.svg that is drawn from bench/results/NAME.json, and how it should look."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.svg")):
        results = RESULTS / f"{path.stem}.json"
        if results.exists():
            document = json.loads(results.read_text())
            plot = plot_cells if "profile" in document["cells"][0] else plot_batches
            found.append((path, plot.svg(document)))
    return found


def documents() -> list[pathlib.Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def differences() -> list[str]:
    found = []
    for path in documents():
        text = path.read_text()
        name = path.relative_to(ROOT).as_posix()
        if len(MARKERS.findall(text)) != 2 * len(TABLE.findall(text)):
            found.append(f"{name}: a table marker has no partner")
        elif rewritten(text) != text:
            found.append(f"{name}: a table differs from bench/results; run scripts/tables.py")
    for path, drawn in pictures():
        if path.read_text() != drawn:
            name = path.relative_to(ROOT).as_posix()
            found.append(f"{name}: differs from bench/results; run scripts/tables.py")
    return found


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        found = differences()
        print("\n".join(found) if found else "tables: all equal to their data")
        return 1 if found else 0
    for path in documents():
        text = path.read_text()
        if (new := rewritten(text)) != text:
            path.write_text(new)
            print(f"rewrote {path.relative_to(ROOT)}")
    for path, drawn in pictures():
        if path.read_text() != drawn:
            path.write_text(drawn)
            print(f"rewrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
