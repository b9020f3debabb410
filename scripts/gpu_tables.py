# SPDX-License-Identifier: Apache-2.0
"""Tables of what `segue sweep --device cuda --json` and attention/cuda/harness record; tables.py places them."""
import json
import pathlib
import statistics


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def gpu_table(document: dict, results: pathlib.Path) -> str:
    if "counters" in document:
        return counters(document["counters"])
    if "steps" in document:
        return steps(document["steps"])
    cells = document["cells"]
    if "outputs" in cells[0]:
        return products(document)
    if all(c["policy"] == "stock" for c in cells):
        return stock(cells)
    if all(c.get("prefill") for c in cells):
        return prefill(cells, json.loads((results / "cuda-prefill-peer-h200.json").read_text()))
    return sweep(document)


def pairs(document: dict) -> str:
    """One line per depth and setting of tools/pair_ladders.py: two builds that took turns."""
    times = lambda values: f"{statistics.median(values):.2f}" + (
        f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else "")
    return markdown(["model, change", "depth", "spec", "floor", "before", "after", "before / after"], [[
        group["name"], str(r["depth"]), r["spec"], f"{r['floor_ms']:.2f}", times(r["before_ms"]),
        times(r["after_ms"]), f"{r['ratio']:.2f}x"
    ] for group in document["pairs"] for r in group["rows"]])


def products(document: dict) -> str:
    """One line per matrix of ops_cuda_bench: time and share of the read ceiling, TFLOP/s where rows are many."""
    cells = [c for c in document["cells"] if c["width"] == 0]
    rows = list(dict.fromkeys(c["rows"] for c in cells))
    table = []
    for shape in dict.fromkeys(c["shape"] for c in cells):
        line = [c for c in cells if c["shape"] == shape]
        table.append([shape, f"{line[0]['inputs']} → {line[0]['outputs']}", f"{line[0]['floor_us']:.1f}", *(
            f"{c['us']:.1f} ({100 * c['read_share']:.0f} %)" if c["rows"] <= 32 else
            f"{c['us']:.0f} ({c['tflops']:.0f} TFLOP/s)" for c in line)])
    return f"Read ceiling {document['read_gbps']:.0f} GB/s, {document['gpu']}, {document['build']['commit']}; µs\n\n" + \
        markdown(["matrix", "inputs → outputs", "floor", *(f"rows {r}" for r in rows)], table)


def sweep(document: dict) -> str:
    """One line per shape, depth and batch; a column per row count: time and share of the read ceiling, or where
    there are batches time over the floor and MB of partials; then what 8 and 16 rows cost over one."""
    cells = [c for c in document["cells"] if c["policy"] == "segue"]
    rows = list(dict.fromkeys(c["rows"] for c in cells))
    batched = any(c["batch"] > 1 for c in cells)
    key = lambda c: (c["shape"], c["layout"], c["depth"], c["batch"])
    found = {(key(c), c["rows"]): c for c in cells}
    ratios = [] if batched else [r for r in (8, 16) if r in rows and 1 in rows]

    def cell(line, count) -> str:
        c = found.get((line, count))
        if c is None:
            return "–"
        share = (f"{c['ratio_to_bound']:.2f}x, {c['partial_bytes'] / 1e6:.0f} MB" if batched
                 else f"{c['percent_of_read']:.1f} %")
        return f"{c['us']['median']:.1f} ({share})"

    header = ["shape", "layout", "depth", "batch", "KV MB", "floor µs", *(f"rows {r}" for r in rows),
              *(f"t({r})/t(1)" for r in ratios)]
    table = []
    for line in dict.fromkeys(key(c) for c in cells):
        first = next(c for c in cells if key(c) == line)
        table.append([line[0], line[1], str(line[2]), str(line[3]), f"{first['bytes'] / 1e6:.0f}",
                      f"{first['floor_us']:.1f}", *(cell(line, r) for r in rows),
                      *(f"{found[line, r]['us']['median'] / found[line, 1]['us']['median']:.2f}" for r in ratios)])
    return f"Read ceiling {document['read_gbps']:.0f} GB/s, {document['gpu']['gpu']}, {document['build']['commit']}\n\n" + \
        markdown(header, table)


def prefill(cells: list[dict], peer: dict) -> str:
    """Prompt rows of an empty cache, beside FlashAttention-2 at the same sizes in the same call of the machine."""
    peers = {(c["head_dim"], c["rows"]): c for c in peer["cells"]}
    dims = {"llama-70b": 128, "s-direct": 256, "gemma-4-31b-global": 512}
    table = []
    for c in cells:
        other = peers.get((dims[c["shape"]], c["rows"]))
        table.append([c["shape"], str(c["rows"]), f"{c['us']['median']:.0f}", f"{c['tflops']:.0f}",
                      *((f"{other['us']:.0f}", f"{100 * other['us'] / c['us']['median']:.0f} %") if other
                        else ("–", "–"))])
    return markdown(["shape", "rows", "µs", "TFLOP/s", "FlashAttention-2, µs", "its time over ours"], table)


def steps(found: list[dict]) -> str:
    return markdown(["shape", "step", "µs", "parts alone, added"], [[
        s["shape"], s["step"], f"{s['us']['median']:.0f}", f"{s['parts_alone_sum_us']:.0f}"
    ] for s in found])


def stock(cells: list[dict]) -> str:
    """Policy stock runs one row in segments and two rows whole."""
    us = {(c["shape"], c["depth"], c["rows"]): c["us"]["median"] for c in cells}
    return markdown(["shape", "depth", "1 row, µs", "2 rows, µs", "2 rows over 1"], [[
        shape, str(depth), f"{us[shape, depth, 1]:.1f}", f"{us[shape, depth, 2]:.1f}",
        f"{us[shape, depth, 2] / us[shape, depth, 1]:.1f}x"
    ] for shape, depth in dict.fromkeys((s, d) for s, d, _ in us)])


def counters(cells: list[dict]) -> str:
    header = ["cell", "kernel", "µs", "blocks", "memory", "L2", "tensor cores", "issue", "where warps wait (samples)"]
    return markdown(header, [[
        f"{c['shape']} {c['batch']} x {c['depth']}, {c['rows']} rows", c["kernel"], f"{c['us']:.1f}",
        f"{c['blocks']:.0f}", *(f"{c[name + '_percent']:.0f} %" for name in ("memory", "l2", "tensor", "issue")),
        ", ".join(f"{name} {share:.0f} %" for name, share in list(c["samples_percent"].items())[:6])
    ] for c in cells])
