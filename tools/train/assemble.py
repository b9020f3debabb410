# SPDX-License-Identifier: Apache-2.0
"""Puts the pair's folder together: trained weights, tokenizer, records.

Usage: python assemble.py --work DIR --run DIR --pair DIR

--work is corpus.py's folder, --run train.py's output, --pair the folder to write.
"""
import argparse
import os
import shutil

from tokenizers import Tokenizer

import export


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--work", "--run", "--pair"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(os.path.join(args.work, "tokenizer.json"))
    for part in ("target", "assistant"):
        folder = os.path.join(args.pair, part)
        os.makedirs(folder, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(args.run, part, name), os.path.join(folder, name))
    export.write_tokenizer(os.path.join(args.pair, "target"), tokenizer)
    export.write_generation(os.path.join(args.pair, "assistant"), drafts=4)
    shutil.copyfile(os.path.join(args.run, "train.json"), os.path.join(args.pair, "train.json"))
    shutil.copyfile(os.path.join(args.work, "corpus.json"), os.path.join(args.pair, "corpus.json"))


if __name__ == "__main__":
    main()
