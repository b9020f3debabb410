#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every file names the standard headers that it uses (itself, or the header beside it).

Standard libraries include one another's parts differently in each version: a file that lives from what
comes along compiles with one and not with the next. Only names that such a change has taken away before, or
easily can, are looked for.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALGORITHMS = (
    "adjacent_find|all_of|any_of|clamp|copy|copy_n|count|count_if|equal|fill|fill_n|find|find_if|generate|is_sorted|"
    "lower_bound|max|max_element|min|min_element|minmax|mismatch|none_of|nth_element|partial_sort|remove_if|replace|"
    "reverse|rotate|search|shuffle|sort|stable_sort|transform|unique|upper_bound"
)
NAMES = {
    "algorithm": rf"std::(ranges::)?({ALGORITHMS})\(",
    "array": r"std::array<",
    "atomic": r"std::atomic\b",
    "bit": r"std::(bit_cast|bit_width|countr_zero|has_single_bit|popcount)\b",
    "cmath": r"std::(abs|ceil|exp|exp2|fabs|floor|isfinite|isinf|isnan|llround|log|log2|lround|pow|round|sqrt)\(",
    "cstdlib": r"std::(abort|aligned_alloc|exit|free|getenv|malloc)\(",
    "cstring": r"std::(memchr|memcmp|memcpy|memset|strcmp|strerror|strlen)\(",
    "functional": r"std::function<",
    "limits": r"std::numeric_limits\b",
    "memory": r"std::(make_shared|make_unique|shared_ptr|unique_ptr)\b",
    "mutex": r"std::(lock_guard|mutex|scoped_lock|unique_lock)\b",
    "numeric": r"std::(accumulate|gcd|inner_product|iota|midpoint|reduce)\(",
    "optional": r"std::(nullopt|optional)\b",
    "thread": r"std::(this_thread|thread)\b",
}
INCLUDE = re.compile(r"^\s*#\s*include\s+<(\w+)>", re.MULTILINE)
TEST = re.compile(r"(_model|_slow|_gpu)?_test$")


def included(path: pathlib.Path) -> set[str]:
    return set(INCLUDE.findall(path.read_text())) if path.exists() else set()


def missing(path: pathlib.Path):
    """The headers that `path` uses and neither it nor the header beside it includes."""
    beside = path.with_name(TEST.sub("", path.stem) + ".h")
    known = included(path) | included(beside)
    code = re.sub(r"//.*", "", path.read_text())
    return [header for header, used in NAMES.items() if header not in known and re.search(used, code)]


def main() -> int:
    files = [p for top in ("include", "src", "tests", "fuzz", "examples") for p in (ROOT / top).rglob("*")]
    files = sorted(p for p in files if p.suffix in (".cc", ".h"))
    problems = [f"{p.relative_to(ROOT)}: uses <{header}> and does not include it" for p in files for header in missing(p)]
    print("\n".join(problems) or f"{len(files)} files include the standard headers they use")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
