#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what keeps prose and files honest.

Tables in README.md and docs/ stand between `<!-- table:NAME -->` and `<!-- /table -->` and are written
from bench/results by scripts/tables.py; a table that differs from its data is an error. Files stay under
700 lines, start with a licence line, name no path of one machine, and a TODO has an issue number.
Prints one line per fault; exit status 1 when there is any.
"""
import pathlib
import re
import subprocess
import sys

import tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 700
CODE = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake"}
TEXT = CODE | {".md", ".txt", ".json", ".yml", ""}
BANNED_STEMS = {"utils", "util", "common", "helpers", "helper", "misc"}
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(home|root|work|Users)/\w")
BARE_TODO = re.compile(r"\bTODO\b(?!\(#\d+\))")


def project_files():
    """Files that git knows or would add; a tree without git is walked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return sorted(ROOT / n for n in set(names) if n and (ROOT / n).is_file())
    return sorted(p for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts)


def faults(file: pathlib.Path):
    name = file.relative_to(ROOT).as_posix()
    if file.stem in BANNED_STEMS:
        yield f"{name}: a file name must say what is inside"
    if file.suffix not in TEXT or name.startswith(("tests/golden/", "third_party/", "fuzz/corpus/")):
        return
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return
    lines = text.splitlines()
    if file.suffix in CODE:
        if len(lines) > MAX_LINES:
            yield f"{name}: {len(lines)} lines, the limit is {MAX_LINES}"
        if not any("SPDX-License-Identifier" in line for line in lines[:2]):
            yield f"{name}: no SPDX line at the top"
    if name.startswith("bench/results/"):
        return
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of one machine"
        if BARE_TODO.search(line) and name != "scripts/check_docs.py":
            yield f"{name}:{number}: TODO without an issue number, TODO(#12)"


def main() -> int:
    files = project_files()
    found = [line for file in files for line in faults(file)]
    found += tables.differences()
    if len((ROOT / "AGENTS.md").read_text().splitlines()) > 150:
        found.append("AGENTS.md: more than 150 lines")
    print("\n".join(found) if found else f"check_docs: {len(files)} files and their tables are in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
