#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Segue's attention from Python: ctypes on the C ABI, tensors by DLPack, results checked.

    examples/attention.py --library build/release/lib/libsegue_attention.so
    examples/attention.py --library libsegue_attention.so --device cuda     (needs torch)

On the CPU it needs nothing but Python: a small ragged step against a loop in double precision. On a
GPU it compares decode, verify, prefill and mixed steps of several shapes with torch in float64, checks
that rows have equal bytes alone and in a block, and replays a captured graph at other lengths.
Exit status 1 when anything differs.
"""
import argparse
import ctypes as C
import json
import math
import random
import sys

CPU, CUDA = 0, 1
F32, F16, BF16 = 0, 1, 2
LAYOUTS = {"device": 0, "token-major": 1, "head-major": 2}


class Error(C.Structure):
    _fields_ = [("code", C.c_int32), ("message", C.c_char * 1020)]


class Config(C.Structure):
    _fields_ = [("size", C.c_uint64)] + [
        (name, C.c_int32) for name in ("device", "threads", "q_heads", "kv_heads", "head_dim", "window")
    ] + [("scale", C.c_float), ("softcap", C.c_float)] + [
        (name, C.c_int32)
        for name in ("kv_type", "io_type", "layout", "page_size", "decode_rows", "reserved")
    ] + [("policy", C.c_char_p), ("kernel", C.c_char_p)]


class Limits(C.Structure):
    _fields_ = [("size", C.c_uint64), ("sequences", C.c_int32), ("rows_per_sequence", C.c_int32),
                ("rows", C.c_int64), ("kv_len", C.c_int64), ("workspace_bytes", C.c_uint64),
                ("table_stride", C.c_int32), ("reserved", C.c_int32)]


class Sequence(C.Structure):
    _fields_ = [("depth", C.c_int64), ("rows", C.c_int32), ("prefill", C.c_int32)]


class Call(C.Structure):
    _fields_ = [("size", C.c_uint64)] + [
        (name, C.c_void_p) for name in ("q", "out", "lse", "sinks", "k", "v")
    ] + [(name, C.c_int64) for name in ("page_stride", "head_stride", "token_stride")] + [
        ("pages", C.c_int32), ("early_reads", C.c_int32), ("page_tables", C.c_void_p),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_uint64), ("stream", C.c_void_p)]


class Append(C.Structure):
    _fields_ = [("size", C.c_uint64), ("k_rows", C.c_void_p), ("v_rows", C.c_void_p),
                ("k_row_stride", C.c_int64), ("v_row_stride", C.c_int64), ("k", C.c_void_p),
                ("v", C.c_void_p), ("page_stride", C.c_int64), ("head_stride", C.c_int64),
                ("token_stride", C.c_int64), ("pages", C.c_int32), ("reserved", C.c_int32),
                ("page_tables", C.c_void_p), ("stream", C.c_void_p)]


class DLTensor(C.Structure):  # dlpack.h, version 0
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32),
                ("ndim", C.c_int32), ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16),
                ("shape", C.POINTER(C.c_int64)), ("strides", C.POINTER(C.c_int64)),
                ("byte_offset", C.c_uint64)]


def address(array):
    """Where the elements of a contiguous tensor lie: anything with DLPack, or a ctypes array."""
    if array is None:
        return None
    if not hasattr(array, "__dlpack__"):
        return C.addressof(array)
    capsule = array.__dlpack__()
    get = C.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = C.c_void_p, [C.py_object, C.c_char_p]
    tensor = DLTensor.from_address(get(capsule, b"dltensor"))
    expected = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and tensor.shape[i] > 1 and tensor.strides[i] != expected:
            raise ValueError("the tensor is not contiguous")
        expected *= tensor.shape[i]
    return tensor.data + tensor.byte_offset


class Library:
    def __init__(self, path):
        self.c = C.CDLL(path)
        for name, result in (("segue_build", C.c_char_p), ("segue_abi_version", C.c_uint32),
                             ("segue_plan_workspace_bytes", C.c_uint64),
                             ("segue_plan_explain", C.c_uint64), ("segue_attention_page_bytes", C.c_int64),
                             ("segue_attention_k_offset", C.c_int64),
                             ("segue_attention_v_offset", C.c_int64)):
            getattr(self.c, name).restype = result
        if self.c.segue_abi_version() < 1:
            raise RuntimeError("the library is older than this program")

    def call(self, name, *arguments):
        error = Error()
        if getattr(self.c, name)(*arguments, C.byref(error)) != 0:
            raise RuntimeError(f"{name}: {error.message.decode()}")


class Attention:
    """One kind of layer."""

    def __init__(self, library, **settings):
        self.library = library
        config = Config()
        library.c.segue_attention_config_init(C.byref(config))
        for name, value in settings.items():
            setattr(config, name, value)
        self.handle = C.c_void_p()
        library.call("segue_attention_create", C.byref(config), C.byref(self.handle))
        self.page_bytes = library.c.segue_attention_page_bytes(self.handle)

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.c.segue_attention_destroy(self.handle)

    def offset(self, which, head, token, dim):
        return getattr(self.library.c, f"segue_attention_{which}_offset")(self.handle, head, token, dim)


class Plan:
    """Steps within limits; `run` is one layer of the current step."""

    def __init__(self, attention, **settings):
        self.library = attention.library
        limits = Limits()
        self.library.c.segue_limits_init(C.byref(limits))
        for name, value in settings.items():
            setattr(limits, name, value)
        self.handle = C.c_void_p()
        self.library.call("segue_plan_create", attention.handle, C.byref(limits), C.byref(self.handle))
        self.workspace_bytes = self.library.c.segue_plan_workspace_bytes(self.handle)

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.c.segue_plan_destroy(self.handle)

    def update(self, step, stream=None):
        sequences = (Sequence * len(step))(*[Sequence(*sequence) for sequence in step])
        self.library.call("segue_plan_update", self.handle, sequences, len(step), C.c_void_p(stream))

    def run(self, stream=None, **tensors):
        call = Call()
        self.library.c.segue_call_init(C.byref(call))
        call.workspace_bytes = self.workspace_bytes
        self._send("segue_plan_run", call, stream, **tensors)

    def append(self, stream=None, **tensors):
        """k_rows and v_rows [rows, kv_heads, head_dim] go to the pages of k and v."""
        append = Append()
        self.library.c.segue_append_init(C.byref(append))
        self._send("segue_plan_append", append, stream, **tensors)

    def _send(self, name, what, stream, pages, **tensors):
        for field, tensor in tensors.items():
            setattr(what, field, address(tensor))
        what.pages, what.stream = pages, stream
        self.library.call(name, self.handle, C.byref(what))

    def explain(self):
        text = C.create_string_buffer(self.library.c.segue_plan_explain(self.handle, None, C.c_uint64(0)))
        self.library.c.segue_plan_explain(self.handle, text, C.c_uint64(len(text)))
        return json.loads(text.value)


# --- the CPU, with nothing but Python -----------------------------------------------------------------


def check_cpu(library):
    q_heads, kv_heads, dim, page, window = 4, 2, 64, 16, 50
    step = [(70, 3, 0), (0, 0, 0), (4, 1, 0)]
    attention = Attention(library, device=CPU, threads=2, q_heads=q_heads, kv_heads=kv_heads,
                          head_dim=dim, window=window, kv_type=F32, io_type=F32, page_size=page)
    plan = Plan(attention, sequences=len(step), rows_per_sequence=4, kv_len=256)
    stride = 256 // page
    numbers = random.Random(1)
    keys = {(s, t, h): ([numbers.gauss(0, 1) for _ in range(dim)], [numbers.gauss(0, 1) for _ in range(dim)])
            for s, (depth, rows, _) in enumerate(step) for t in range(depth + rows) for h in range(kv_heads)}
    pages = 12
    page_floats = attention.page_bytes // 4
    pool = {which: (C.c_float * (pages * page_floats))(*[math.nan] * (pages * page_floats)) for which in "kv"}
    tables = (C.c_int32 * (stride * len(step)))(*[-1] * (stride * len(step)))
    free = list(range(pages))
    numbers.shuffle(free)
    for (s, t, h), row in keys.items():
        entry = s * stride + t // page
        if tables[entry] < 0:
            tables[entry] = free.pop()
        for which, values in zip("kv", row):
            for d, value in enumerate(values):
                at = tables[entry] * page_floats + attention.offset(which, h, t % page, d) // 4
                pool[which][at] = value
    rows = [(s, depth + i) for s, (depth, count, _) in enumerate(step) for i in range(count)]
    elements = len(rows) * q_heads * dim
    q = (C.c_float * elements)(*[numbers.gauss(0, 1) for _ in range(elements)])
    out = (C.c_float * elements)(*[math.nan] * elements)
    workspace = (C.c_char * (plan.workspace_bytes + 1))()
    plan.update(step)
    plan.run(q=q, out=out, k=pool["k"], v=pool["v"], page_tables=tables, workspace=workspace, pages=pages)

    worst = 0.0
    for r, (s, position) in enumerate(rows):
        for head in range(q_heads):
            at = (r * q_heads + head) * dim
            kv = head // (q_heads // kv_heads)
            visible = range(max(0, position - window + 1), position + 1)
            scores = [sum(q[at + d] * pool_k for d, pool_k in enumerate(keys[s, t, kv][0])) / math.sqrt(dim)
                      for t in visible]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            for d in range(dim):
                expected = sum(w * keys[s, t, kv][1][d] for w, t in zip(weights, visible)) / sum(weights)
                worst = max(worst, abs(out[at + d] - expected))
    what = plan.explain()
    print(f"{len(rows)} rows with {what['kernel']}, {what['path']} path: largest error {worst:.1e}")
    return worst < 1e-5


# --- a GPU, against torch ------------------------------------------------------------------------------


class TorchCase:
    """Sequences with random K and V in a pool that is NaN elsewhere, and their reference."""

    def __init__(self, torch, library, shape, lengths, rows, window=0, layout="device", page=16, seed=1):
        self.torch, self.window, self.lengths, self.page = torch, window, lengths, page
        self.q_heads, self.kv_heads, self.dim = shape
        torch.manual_seed(seed)
        self.attention = Attention(library, device=CUDA, q_heads=self.q_heads, kv_heads=self.kv_heads,
                                   head_dim=self.dim, window=window, page_size=page, layout=LAYOUTS[layout])
        self.stride = (max(lengths) + page - 1) // page
        self.plan = Plan(self.attention, sequences=len(lengths), rows_per_sequence=rows, kv_len=max(lengths),
                         table_stride=self.stride)
        cuda = {"device": "cuda", "dtype": torch.bfloat16}
        self.k, self.v = ([torch.randn(n, self.kv_heads, self.dim, **cuda) for n in lengths] for _ in "kv")
        counts = [(n + page - 1) // page for n in lengths]
        self.pages = sum(counts) + 3
        order = torch.randperm(self.pages).tolist()
        self.tables = torch.full((len(lengths), self.stride), -7, dtype=torch.int32)
        elements = self.attention.page_bytes // 2
        self.pool = [torch.full((self.pages, elements), math.nan, **cuda) for _ in "kv"]
        offsets = [torch.tensor([[[self.attention.offset(which, h, t, d) // 2 for d in range(self.dim)]
                                  for h in range(self.kv_heads)] for t in range(page)], device="cuda")
                   for which in "kv"]
        for s, count in enumerate(counts):
            mine, order = order[:count], order[count:]
            self.tables[s, :count] = torch.tensor(mine, dtype=torch.int32)
            for pool, rows_of, where in zip(self.pool, (self.k[s], self.v[s]), offsets):
                padded = torch.full((count * page, self.kv_heads, self.dim), math.nan, **cuda)
                padded[:lengths[s]] = rows_of
                pool[torch.tensor(mine, device="cuda")[:, None], where.reshape(1, -1)] = padded.reshape(count, -1)
        self.tables = self.tables.cuda()
        self.workspace = torch.empty(self.plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        most = rows * len(lengths)
        self.q = torch.randn(most, self.q_heads, self.dim, **cuda)
        self.out = torch.empty_like(self.q)

    def enqueue(self):
        self.plan.run(q=self.q, out=self.out, k=self.pool[0], v=self.pool[1], page_tables=self.tables,
                      workspace=self.workspace, pages=self.pages,
                      stream=self.torch.cuda.current_stream().cuda_stream)

    def update(self, step):
        self.plan.update(step, self.torch.cuda.current_stream().cuda_stream)

    def run(self, step):
        self.out.fill_(math.nan)
        self.update(step)
        self.enqueue()
        return self.out[:sum(s[1] for s in step)].clone()

    def reference(self, step):
        torch, rows, first = self.torch, [], 0
        group = self.q_heads // self.kv_heads
        for s, (depth, count, _) in enumerate(step):
            if count == 0:
                continue
            length = depth + count
            q = self.q[first:first + count].double().transpose(0, 1)
            k, v = (x[s][:length].double().transpose(0, 1).repeat_interleave(group, 0) for x in (self.k, self.v))
            position = torch.arange(depth, length, device="cuda")[:, None]
            key = torch.arange(length, device="cuda")[None, :]
            hidden = key > position
            if self.window:
                hidden |= key <= position - self.window
            scores = (q @ k.transpose(1, 2) / math.sqrt(self.dim)).masked_fill(hidden, -math.inf)
            rows.append((torch.softmax(scores, -1) @ v).transpose(0, 1))
            first += count
        return torch.cat(rows)

    def error(self, step):
        found, expected = self.run(step).double(), self.reference(step)
        return ((found - expected).norm() / expected.norm()).item()


def check_cuda(library, layouts):
    import torch
    good = True

    def report(ok, line):
        nonlocal good
        good = good and ok
        print(("ok     " if ok else "WRONG  ") + line)

    shapes = {"(32, 4, 512)": ((32, 4, 512), 0), "(16, 8, 256)": ((16, 8, 256), 0),
              "(32, 16, 256, window 1024)": ((32, 16, 256), 1024), "(64, 8, 128)": ((64, 8, 128), 0),
              "(8, 2, 64)": ((8, 2, 64), 0)}
    for layout in layouts:
        for name, (shape, window) in shapes.items():
            case = TorchCase(torch, library, shape, [5000, 3000, 40], 64, window, layout)
            steps = {"decode": [(4999, 1, 0), (2500, 1, 0), (39, 1, 0)],
                     "verify": [(4991, 9, 0), (100, 4, 0), (0, 0, 0)],
                     "mixed": [(4980, 5, 0), (2936, 64, 1), (0, 17, 1)]}
            for kind, step in steps.items():
                error = case.error(step)
                report(error < 5e-3, f"{name} {layout} {kind}: error {error:.1e}, {case.plan.explain()['kernel']}")
            block = case.run([(4991, 9, 0)])
            q = case.q.clone()
            for row in (0, 4, 8):
                case.q[0] = q[row]
                same = torch.equal(case.run([(4991 + row, 1, 0)])[0], block[row])
                report(same, f"{name} {layout}: row {row} of 9 {'equals' if same else 'DIFFERS FROM'} the row alone")
            case.q.copy_(q)
            check_append(torch, case, f"{name} {layout}", report)
            check_graph(torch, case, steps["verify"], steps["decode"], f"{name} {layout}", report)
    torch.cuda.synchronize()
    return good


def check_append(torch, case, name, report):
    """Rows that the library writes lie where the offsets say, and nothing else is touched."""
    step = [(4936, 64, 0), (0, 0, 0), (0, 40, 0)]
    rows = [torch.cat((x[0][4936:5000], x[2][:40])).contiguous() for x in (case.k, case.v)]
    fresh = [torch.full_like(pool, math.nan) for pool in case.pool]
    case.update(step)
    case.plan.append(k_rows=rows[0], v_rows=rows[1], k=fresh[0], v=fresh[1], pages=case.pages,
                     page_tables=case.tables, stream=torch.cuda.current_stream().cuda_stream)
    good = True
    for pool, written in zip(case.pool, fresh):
        there = ~written.isnan()
        good = good and int(there.sum()) == rows[0].numel() and torch.equal(written[there], pool[there])
    report(good, f"{name}: appended rows are {'where they belong' if good else 'IN THE WRONG PLACE'}")


def check_graph(torch, case, first, second, name, report):
    """Captured at one step, replayed at another: the same bytes as without a graph."""
    expected = [case.run(first), case.run(second)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        case.update(first)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            case.enqueue()
        for step, wanted in zip((first, second, first), (*expected, expected[0])):
            case.out.fill_(math.nan)
            case.update(step)
            graph.replay()
            same = torch.equal(case.out[:len(wanted)], wanted)
            report(same, f"{name}: graph replay {'equals' if same else 'DIFFERS FROM'} the plain run")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--layouts", default="device", help="cuda: of " + ", ".join(LAYOUTS))
    arguments = parser.parse_args()
    library = Library(arguments.library)
    print(library.c.segue_build().decode())
    if arguments.device == "cpu":
        good = check_cpu(library)
    else:
        good = check_cuda(library, arguments.layouts.split(","))
    print("all in order" if good else "something differs")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
