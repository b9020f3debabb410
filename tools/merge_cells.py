#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins the documents of several `segue cells --json` runs into one.

    tools/merge_cells.py part1.json part2.json ... > bench/results/never-slower.json

All must come from the same machine, build and settings, but for depths, batches, acceptances and
rounds, which a cell says in the joined document. A cell that was measured twice is refused: nobody
picks the better of two runs.
"""
import json
import sys

LISTS = ("depths", "batch", "acceptance")


def merge(documents: list[dict]) -> dict:
    first = documents[0]
    cells = {}
    for document in documents:
        for part in ("machine", "build", "threads", "device_name"):
            if document[part] != first[part]:
                raise ValueError(f"'{part}' differs: {document[part]} and {first[part]}")
        for key, value in document["settings"].items():
            if key not in (*LISTS, "rounds") and value != first["settings"][key]:
                raise ValueError(f"setting '{key}' differs: {value} and {first['settings'][key]}")
        for cell in document["cells"]:
            name = (cell["batch"], cell["depth"], cell["profile"])
            if name in cells:
                raise ValueError(f"cell {name} was measured twice")
            rounds = next(len(a["controller"]) for a in cell["alternatives"] if a["spec"] == "auto")
            cells[name] = {"rounds": rounds, **cell}
    profiles = list(dict.fromkeys(p for d in documents for p in d["settings"]["acceptance"]))
    order = sorted(cells, key=lambda name: (name[0], name[1], profiles.index(name[2])))
    settings = {key: value for key, value in first["settings"].items() if key != "rounds"}
    settings["depths"] = sorted({name[1] for name in order})
    settings["batch"] = sorted({name[0] for name in order})
    settings["acceptance"] = profiles
    interrupted = any(document["interrupted"] for document in documents)
    return {**first, "interrupted": interrupted, "settings": settings, "cells": [cells[name] for name in order]}


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    documents = []
    for path in sys.argv[1:]:
        with open(path) as file:
            documents.append(json.load(file))
    try:
        merged = merge(documents)
    except ValueError as error:
        print(f"merge_cells: {error}", file=sys.stderr)
        return 1
    # One line a cell: a record that can be read in a diff.
    cells = merged.pop("cells")
    head = json.dumps(merged, indent=1)
    lines = ",\n".join("  " + json.dumps(cell, separators=(",", ":")) for cell in cells)
    print(head[:-2] + ',\n "cells": [\n' + lines + "\n ]\n}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
