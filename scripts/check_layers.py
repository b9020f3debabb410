#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects includes that the folder table does not allow.

ALLOWED is the table of AGENTS.md ("Folders"): for each folder, the folders (or single headers) that
its files may include besides their own. HEAVY names third-party headers and the only places for them.
Prints one line per violation; exit status 1 when there is any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = "include/segue"
BELOW_MODEL = [PUBLIC, "core", "device", "format/gguf", "format/safetensors", "text",
               "ops/cpu", "ops/cuda", "kv", "attention"]
ALLOWED = {
    PUBLIC: [],
    "core": [PUBLIC],
    "device": [PUBLIC, "core"],
    "format/gguf": [PUBLIC, "core"],
    "format/safetensors": [PUBLIC, "core"],
    "text": [PUBLIC, "core", "format/gguf"],
    "ops/cpu": [PUBLIC, "core", "device"],
    "ops/cuda": [PUBLIC, "core", "device", "ops/cpu", "kv/view.h"],
    "kv": [PUBLIC, "core", "device"],
    "attention": [PUBLIC, "core", "device", "kv/view.h"],
    "attention/cpu": [PUBLIC, "core", "device", "attention", "kv/view.h"],
    "attention/cuda": [PUBLIC, "core", "device", "attention", "kv/view.h"],
    "attention/api": [PUBLIC, "core", "device", "attention", "attention/cuda", "kv"],
    "model": [*BELOW_MODEL, "attention/cuda"],
    "speculate": [PUBLIC, "core", "model/lm.h", "model/assistant.h", "kv"],
    "engine": [*BELOW_MODEL, "model", "speculate"],
    "lab": [*BELOW_MODEL, "attention/cpu", "attention/cuda", "model", "speculate", "engine"],
    # `inspect` and `tokenize` show what the file reader and the tokenizer see; the measuring commands
    # open the runtime that the lab measures.
    "cli": [PUBLIC, "core", "lab", "format/gguf/describe.h", "format/safetensors/describe.h",
            "text/tokenizer.h", "engine/runtime.h"],
}
# Tests and benchmarks drive their subject with real pools and files, so they may reach further.
TESTS_ALSO = {
    "attention": ["kv", "attention/cpu"],
    "attention/cpu": ["kv"],
    "attention/cuda": ["kv"],
    "ops/cuda": ["kv", "attention/cuda"],
    "speculate": BELOW_MODEL + ["model"],
}
HEAVY = {
    "nlohmann/": ["src/core/json.cc"],
    "CLI/": ["src/cli/"],
    "cuda": ["src/device/", "src/attention/cuda/", "src/ops/cuda/"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path: str) -> str:
    """The folder of the table that holds `path` (relative to src/ or to include/); longest match."""
    if path.startswith("segue/"):
        return PUBLIC
    folders = [f for f in ALLOWED if path.startswith(f + "/")]
    return max(folders, key=len) if folders else ""


def allows(entries: list[str], included: str) -> bool:
    """Is `included` in one of the folders, or one of the single headers, of `entries`?"""
    return any(included == entry or folder_of(included) == entry for entry in entries)


def violations(file: pathlib.Path):
    name = file.relative_to(ROOT).as_posix()
    inside = name.removeprefix("src/").removeprefix("include/")
    folder = folder_of(inside)
    if not folder:
        yield f"{name}: the folder is not in the table of scripts/check_layers.py"
        return
    entries = [folder, *ALLOWED[folder]]
    if file.stem.endswith(("_test", "_bench")):
        entries += TESTS_ALSO.get(folder, [])
    for match in INCLUDE.finditer(file.read_text()):
        kind, included = match.groups()
        for prefix, places in HEAVY.items():
            if included.startswith(prefix) and not any(name.startswith(p) for p in places):
                yield f"{name}: <{included}> belongs to {', '.join(places)} only"
        if kind == "<":
            continue
        if "/" not in included:
            # Without a folder: the same directory's generated or private header.
            if not (ROOT / "src" / folder / included).exists() and included != "build_facts.h":
                yield f'{name}: "{included}" has no folder'
        elif not folder_of(included):
            yield f'{name}: "{included}" is in no folder of the table'
        elif not allows(entries, included):
            yield f'{name}: {folder} must not include "{included}"'


def main() -> int:
    files = [p for top in ("src", "include") for p in (ROOT / top).rglob("*")]
    files = sorted(p for p in files if p.suffix in {".h", ".cc", ".cu", ".cuh"})
    found = [line for file in files for line in violations(file)]
    print("\n".join(found) if found else f"check_layers: {len(files)} files, every include is allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
