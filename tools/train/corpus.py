# SPDX-License-Identifier: Apache-2.0
"""Builds the training corpus from Debian documentation packages.

Usage: python corpus.py --work DIR [--debs DIR] [--limit-tokens N]

Steps, each skipped where its output is already in DIR: download the packages named in sources.json (apt-get download;
--debs names a folder that already holds them), unpack, extract text, drop what was seen before (paragraphs of 80
characters or more, over the whole corpus), split by document, train the tokenizer on the training part, encode.

Writes into DIR: tokenizer.json, tokens.npz.xz (what train.py reads: uint16 tokens of both splits and where documents
begin), held_out.jsonl (text of the held-out documents) and corpus.json (counts, versions, licences).
"""
import argparse
import fnmatch
import glob
import hashlib
import io
import json
import lzma
import os
import subprocess

import numpy as np

import text
import vocabulary

HELD_OUT_PERCENT = 2
MINIMUM_CHARACTERS = 400
PARAGRAPH_CHARACTERS = 80  # shorter paragraphs may repeat


def unpack(packages, work, debs):
    """Returns {package: (folder, version)}."""
    os.makedirs(debs, exist_ok=True)
    os.makedirs(os.path.join(work, "unpacked"), exist_ok=True)
    found = {}
    for package in packages:
        name = package["name"]
        if not glob.glob(os.path.join(debs, name + "_*.deb")):
            subprocess.run(["apt-get", "download", "-q", name], cwd=debs, check=True, stdout=subprocess.DEVNULL)
        deb = sorted(glob.glob(os.path.join(debs, name + "_*.deb")))[-1]
        folder = os.path.join(work, "unpacked", name)
        if not os.path.isdir(folder):
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        version = subprocess.run(["dpkg-deb", "-f", deb, "Version"], check=True, capture_output=True, text=True)
        found[name] = (folder, version.stdout.strip())
    return found


def files_of(package, folder):
    for root, directories, names in os.walk(folder):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(root, name)
            inside = "/" + os.path.relpath(path, folder)
            if os.path.islink(path) or not any(fnmatch.fnmatch(inside, p) for p in package["include"]):
                continue
            if not any(fnmatch.fnmatch(inside, p) for p in package.get("exclude", [])):
                yield inside, path


def without_repeats(document, seen):
    """Drops long paragraphs that an earlier document had."""
    kept = []
    for paragraph in document.split("\n\n"):
        if len(paragraph) >= PARAGRAPH_CHARACTERS:
            key = hashlib.blake2b(" ".join(paragraph.split()).encode(), digest_size=8).digest()
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept)


def held_out(identity):
    return int(hashlib.sha256(identity.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def extract(packages, folders):
    """Returns (training, held-out), lists of (identity, text), and counts by package."""
    seen, splits, counts = set(), ([], []), {}
    for package in packages:
        name = package["name"]
        folder, version = folders[name]
        documents = characters = 0
        for inside, path in files_of(package, folder):
            document = text.read_document(path)
            ascii_share = sum(c < "\x80" for c in document) / max(1, len(document))
            if ascii_share < 0.9:
                continue
            document = without_repeats(document, seen)
            if len(document) < MINIMUM_CHARACTERS:
                continue
            identity = name + inside
            splits[held_out(identity)].append((identity, document))
            documents += 1
            characters += len(document)
        counts[name] = {"version": version, "licence": package["licence"], "documents": documents,
                        "characters": characters}
        print(f"{name:24} {documents:6} documents {characters / 1e6:7.2f} M characters", flush=True)
    return splits[0], splits[1], counts


def encode(tokenizer, documents):
    """Returns (tokens [n] uint16, starts [documents] int64): every document is <bos> text <eos>."""
    bos, eos = tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("<eos>")
    pieces, starts, total = [], [], 0
    for start in range(0, len(documents), 256):
        batch = [body for _, body in documents[start:start + 256]]
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            ids = np.array([bos] + encoding.ids + [eos], dtype=np.uint16)
            starts.append(total)
            pieces.append(ids)
            total += len(ids)
    return np.concatenate(pieces), np.array(starts, dtype=np.int64)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True)
    parser.add_argument("--debs", help="folder of downloaded packages (default WORK/debs)")
    parser.add_argument("--limit-tokens", type=int, default=40_000_000, help="training tokens to keep at most")
    args = parser.parse_args()
    with open(os.path.join(here, "sources.json")) as file:
        packages = json.load(file)["packages"]
    os.makedirs(args.work, exist_ok=True)

    folders = unpack(packages, args.work, args.debs or os.path.join(args.work, "debs"))
    training, held, counts = extract(packages, folders)
    tokenizer = vocabulary.train(body for _, body in training)
    tokenizer.save(os.path.join(args.work, "tokenizer.json"))
    train_tokens, train_starts = encode(tokenizer, training)
    held_tokens, held_starts = encode(tokenizer, held)
    all_train = len(train_tokens)
    train_tokens = train_tokens[:args.limit_tokens]
    train_starts = train_starts[train_starts < len(train_tokens)]

    raw = io.BytesIO()
    np.savez(raw, train=train_tokens, train_starts=train_starts, held=held_tokens, held_starts=held_starts)
    path = os.path.join(args.work, "tokens.npz.xz")
    with lzma.open(path, "wb", preset=6) as file:
        file.write(raw.getvalue())
    with open(os.path.join(args.work, "held_out.jsonl"), "w") as file:
        for identity, body in held:
            file.write(json.dumps({"id": identity, "text": body}) + "\n")
    characters = sum(len(body) for _, body in training)
    summary = {"packages": counts, "training": {"documents": len(training), "tokens": len(train_tokens)},
               "held_out": {"documents": len(held), "tokens": len(held_tokens)},
               "characters_per_token": round(characters / all_train, 3),
               "bytes_carried": os.path.getsize(path)}
    with open(os.path.join(args.work, "corpus.json"), "w") as file:
        json.dump(summary, file, indent=1)
    print(json.dumps({key: value for key, value in summary.items() if key != "packages"}), all_train)


if __name__ == "__main__":
    main()
