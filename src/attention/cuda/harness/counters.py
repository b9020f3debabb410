# SPDX-License-Identifier: Apache-2.0
"""Hardware counters of single launches of `segue sweep` on a GPU, read with Nsight Compute (ncu), as one small JSON.

    counters.py --segue build/cuda/bin/segue --json counters.json llama-70b:131072:1:16 gemma-4-31b-global:4096:64:8

A cell is SHAPE:DEPTH:BATCH:ROWS; its decode kernel, and the reduction after it where there is one, are profiled
in the first captured call. Clocks are left alone; ncu flushes the caches before a launch, as rotation does in the sweep.
"""

import argparse
import csv
import json
import subprocess
import tempfile

SECTIONS = ("SpeedOfLight", "WarpStateStats", "SchedulerStats", "LaunchStats", "MemoryWorkloadAnalysis",
            "ComputeWorkloadAnalysis", "SourceCounters")
COUNTERS = {
    "us": "gpu__time_duration.sum",
    "blocks": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
    "memory_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
SAMPLES = "smsp__pcsamp_warps_issue_stalled_"


def profile(segue: str, shape: str, depth: int, batch: int, rows: int) -> list[dict]:
    """The check of a cell that is alone launches both kernels twice; batches of whole sequences have no reduction."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/cell.ncu-rep"
        sweep = [segue, "sweep", "--device", "cuda", "--policies", "segue", "--rounds", "3", "-q", "--shape", shape,
                 "--depths", str(depth), "--batch", str(batch), "--rows", str(rows), "--json", f"{folder}/cell.json"]
        sections = [word for section in SECTIONS for word in ("--section", section)]
        found = []
        for kernel in ("decode", "reduce"):
            command = ["ncu", "--clock-control", "none", "-k", f"regex:^{kernel}", "--launch-skip", "2",
                       "--launch-count", "1", *sections, "-f", "-o", report, *sweep]
            subprocess.run(command, check=True, capture_output=True)
            raw = subprocess.run(["ncu", "-i", report, "--page", "raw", "--csv"], capture_output=True, text=True)
            lines = [line for line in raw.stdout.splitlines() if line.startswith('"')]
            if len(lines) < 3:
                continue
            names, units, values = csv.reader(lines)
            found.append({"kernel": kernel, **read(dict(zip(names, values)), dict(zip(names, units)))})
        return found


def read(values: dict[str, str], units: dict[str, str]) -> dict:
    def number(name: str) -> float:
        return float(values[name].replace(",", "")) if values.get(name) else 0.0

    result = {key: number(name) for key, name in COUNTERS.items()}
    result["us"] *= {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}[units[COUNTERS["us"]].replace("second", "s")]
    samples = {name.removeprefix(SAMPLES): number(name)
               for name in values if name.startswith(SAMPLES) and not name.endswith("not_issued")}
    total = sum(samples.values()) or 1.0
    result["samples_percent"] = {name: round(100 * count / total, 1)
                                 for name, count in sorted(samples.items(), key=lambda item: -item[1])
                                 if count >= 0.02 * total}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segue", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("cells", nargs="+", metavar="SHAPE:DEPTH:BATCH:ROWS")
    options = parser.parse_args()
    cells = []
    for text in options.cells:
        shape, *numbers = text.split(":")
        depth, batch, rows = map(int, numbers)
        for counters in profile(options.segue, shape, depth, batch, rows):
            cells.append({"shape": shape, "depth": depth, "batch": batch, "rows": rows, **counters})
            print(text, counters, flush=True)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"counters": cells}, file, indent=1)


if __name__ == "__main__":
    main()
