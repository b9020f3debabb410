#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode and prefill speed against llama.cpp on the same GGUF, taking turns in one run.

llama.cpp runs in this process through llama-cpp-python; per depth its context is filled once and every round decodes a
few more tokens (only llama_decode is timed: no sampling, no copying of logits). Segue runs as `segue run --spec off`
once a round, with its own sampling inside the figure. Rounds alternate: llama.cpp with each flash-attention setting,
then Segue. The verdict is the median of the per-round ratios to llama.cpp's better setting.

  python3 tools/compare_llama.py --segue build/release/bin/segue -m model.gguf --text book.txt --json out.json
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)
# Bound threads are llama.cpp's better setting: unbound, both of its OpenMP threads may share one CPU for a while. The
# first thread is bound as soon as the library runs, so Segue's process is given the whole set again.
os.environ.setdefault("OMP_PROC_BIND", "true")
ALL_CPUS = os.sched_getaffinity(0)

try:
    import llama_cpp  # noqa: E402  (the environment must be clean first)
except ImportError:  # --help works without
    llama_cpp = None


class Llama:
    """One context at one depth with one flash-attention setting."""

    def __init__(self, path, threads, depth, rounds, slice_tokens, flash, tokens):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = depth + (rounds + 1) * slice_tokens + 16
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = False
        params.flash_attn_type = 1 if flash else 0
        self.model = path
        self.context = llama_cpp.llama_init_from_model(path, params)
        self.tokens = tokens
        self.position = 0
        self.prefill_s = self.feed(depth, 512)

    def feed(self, count, chunk):
        start = time.perf_counter()
        end = self.position + count
        while self.position < end:
            n = min(chunk, end - self.position)
            part = self.tokens[self.position:self.position + n]
            batch = (llama_cpp.llama_token * n)(*part)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(batch, n)) != 0:
                raise SystemExit("llama_decode failed")
            self.position += n
        llama_cpp.llama_synchronize(self.context)
        return time.perf_counter() - start

    def rate(self, count):
        return count / self.feed(count, 1)

    def close(self):
        llama_cpp.llama_free(self.context)


def segue_rates(args, text, count):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run([args.segue, "run", "-m", args.model, "--prompt-file", text, "-n", str(count), "--spec", "off",
                        "--ignore-eos", "--threads", str(args.threads), "--quiet", "--json", out],
                       check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, ALL_CPUS))
        with open(out, encoding="utf-8") as file:
            return json.load(file)


def write(args, rows, result):
    document = {"llama_cpp_python": llama_cpp.__version__, "model": os.path.basename(args.model), "rows": rows,
                "settings": {"omp_proc_bind": os.environ["OMP_PROC_BIND"], "threads": args.threads, "rounds": args.rounds, "tokens": args.tokens},
                "machine": result["machine"], "build": result["build"], "date": time.strftime("%Y-%m-%d")}
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segue", required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--text", required=True, help="a text; repeated to the depth")
    parser.add_argument("--depths", default="512,2048,8192,16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    if llama_cpp is None:
        parser.error("the Python package llama_cpp is not installed (pip install llama-cpp-python)")

    silent = llama_cpp.llama_log_callback(lambda *_: None)  # kept: llama.cpp calls it until the end
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), llama_cpp.llama_model_default_params())
    vocab = llama_cpp.llama_model_get_vocab(model)
    with open(args.text, "rb") as file:
        text = file.read()
    buffer = (llama_cpp.llama_token * (len(text) + 8))()
    got = llama_cpp.llama_tokenize(vocab, text, len(text), buffer, len(buffer), True, False)
    base = list(buffer[:got])
    depths = [int(d) for d in args.depths.split(",")]
    tokens = []
    while len(tokens) < max(depths) + (args.rounds + 2) * args.tokens:
        tokens += base

    rows = []
    for depth in depths:
        with tempfile.NamedTemporaryFile("wb", delete=False) as file:
            file.write(text * (depth * 8 // len(text) + 1))
            prompt = file.name
        # A prompt of about `depth` tokens: cut the text until the count fits.
        low, high = 0, os.path.getsize(prompt)
        whole = open(prompt, "rb").read()
        while high - low > 16:
            middle = (low + high) // 2
            size = llama_cpp.llama_tokenize(vocab, whole[:middle], middle, (llama_cpp.llama_token * (middle + 8))(),
                                            middle + 8, True, False)
            low, high = (middle, high) if size <= depth else (low, middle)
        with open(prompt, "wb") as file:
            file.write(whole[:low].decode("utf-8", "ignore").encode())
        peers = {name: Llama(model, args.threads, depth, args.rounds, args.tokens, flash, tokens)
                 for name, flash in (("flash", True), ("plain", False))}
        row = {"depth": depth, "segue_decode": [], "segue_prefill": [],
               "llama_decode": {name: [] for name in peers},
               "llama_prefill": {name: depth / peer.prefill_s for name, peer in peers.items()}}
        for _ in range(args.rounds):
            for name, peer in peers.items():
                row["llama_decode"][name].append(peer.rate(args.tokens))
            result = segue_rates(args, prompt, args.tokens)
            row["segue_decode"].append(result["stats"]["decode_tokens_per_s"])
            row["segue_prefill"].append(result["stats"]["prefill_tokens_per_s"])
            row["prompt_tokens"] = result["prompt_tokens"]
        best = max(row["llama_decode"], key=lambda name: statistics.median(row["llama_decode"][name]))
        row["best_llama"] = best
        row["decode_ratio"] = statistics.median(a / b for a, b in zip(row["segue_decode"], row["llama_decode"][best]))
        row["prefill_ratio"] = statistics.median(row["segue_prefill"]) / max(row["llama_prefill"].values())
        rows.append(row)
        print(f"depth {depth:>6}: decode {statistics.median(row['segue_decode']):7.1f} tokens/s, llama.cpp ({best}) "
              f"{statistics.median(row['llama_decode'][best]):7.1f}, ratio {row['decode_ratio']:.2f}; prefill "
              f"{statistics.median(row['segue_prefill']):7.0f}, llama.cpp {max(row['llama_prefill'].values()):7.0f}, "
              f"ratio {row['prefill_ratio']:.2f}", flush=True)
        for peer in peers.values():
            peer.close()
        os.unlink(prompt)
        write(args, rows, result)  # after every depth: a run that is cut short has recorded what it measured


if __name__ == "__main__":
    main()
