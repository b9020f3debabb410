#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of README.md and docs/ from bench/results.

    scripts/tables.py            rewrite every table
    scripts/tables.py --check    exit status 1 when a table differs from its data

A table is what stands between `<!-- table:NAME -->` and `<!-- /table -->`; NAME is a file
bench/results/NAME.json in the format of `segue ladder --json` or `segue sweep --json`. While that file
does not exist the table must be empty.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
TABLE = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
MARKERS = re.compile(r"^<!-- (?:table:[\w-]+|/table) -->$", re.MULTILINE)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


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
    header = ["shape", "depth", "rows", "policy", "path", "workgroups", "µs", "GB/s", "% of read"]
    return markdown(header, [[
        str(c["shape"]), str(c["depth"]), str(c["rows"]), c["policy"], c["path"], str(c["workgroups"]),
        f"{c['us']['median']:.1f}", f"{c['gbps']:.1f}", f"{c['percent_of_read']:.0f}"
    ] for c in document["cells"]])


def render(name: str) -> str:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return ""
    document = json.loads(path.read_text())
    return ladder(document) if "rows" in document else sweep(document)


def rewritten(text: str) -> str:
    return TABLE.sub(lambda m: m.group(1) + render(m.group(2)) + m.group(4), text)


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
