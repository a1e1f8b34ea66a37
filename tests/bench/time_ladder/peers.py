# SPDX-License-Identifier: Apache-2.0
"""Times the decode of other libraries on a GPU: medians of CUDA-graph replays, inputs larger than the L2 cache in turns.

Run: python peers.py < SHAPES, a JSON list of the "shape" lines of time_ladder; prints a line of JSON per shape and library
Each library has keys and values in the layout it is made for. Before it is timed, its result is held against a sum in double. Beside each time stands
that of a kernel that only reads the same bytes in the same process, where TREE_ATTN_READ_LIBRARY names the library of tests/bench/on_a_card.
"""
import ctypes
import importlib
import json
import math
import os
import sys
import warnings

TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
TOLERANCE = 0.03  # of the largest element: below what a lost key costs, above what BF16 does
PAGE = 16  # keys per page of a paged cache


class Case:
    """A shape with its inputs: q [b, heads, d]; per set keys and values [b, kv heads, n, d], or with `by_position` [b, n, kv heads, d]."""

    def __init__(self, torch, shape, device, by_position):
        self.torch, self.shape, self.device = torch, shape, device
        self.lengths, self.batch, self.capacity = shape["lengths"], len(shape["lengths"]), max(shape["lengths"])
        self.heads, self.kv_heads, self.dim = shape["heads"], shape["kv_heads"], shape["dim"]
        self.group = self.heads // self.kv_heads
        self.dtype = getattr(torch, TYPES[shape["dtype"]])
        self.q = self.normal(0, (self.batch, self.heads, self.dim))
        self.sets = []
        for i in range(shape["n_sets"]):
            arrays = [self.normal(2 * i + which, (self.batch, self.kv_heads, self.capacity, self.dim)) for which in (1, 2)]
            self.sets.append([array.transpose(1, 2).contiguous() for array in arrays] if by_position else arrays)
        self.by_position = by_position

    def normal(self, seed, size):
        generator = self.torch.Generator(device=self.device).manual_seed(8800 + seed)
        return self.torch.randn(size, generator=generator, device=self.device, dtype=self.dtype)

    def reference(self):
        """Attention of the first set in double, [b, heads, d]."""
        torch, (keys, values) = self.torch, self.sets[0]
        if self.by_position:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        z = torch.empty((self.batch, self.heads, self.dim), dtype=torch.float64, device=self.device)
        for i, n in enumerate(self.lengths):
            for head in range(self.kv_heads):
                rows = slice(head * self.group, (head + 1) * self.group)
                scores = self.q[i, rows].double() @ keys[i, head, :n].double().T / math.sqrt(self.dim)
                z[i, rows] = torch.softmax(scores, dim=-1) @ values[i, head, :n].double()
        return z


def sdpa(backend):
    """PyTorch's scaled_dot_product_attention by one of its backends. The heads of a group are positions of one head: one read of its keys serves them all."""

    def make(case):
        attention = importlib.import_module("torch.nn.attention")
        functional = case.torch.nn.functional
        q = case.q.view(case.batch, case.kv_heads, case.group, case.dim)
        mask = None
        if len(set(case.lengths)) > 1:
            ends = case.torch.tensor(case.lengths, device=case.device)
            mask = (case.torch.arange(case.capacity, device=case.device) < ends[:, None]).view(case.batch, 1, 1, case.capacity)

        def run(i):
            with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
                return functional.scaled_dot_product_attention(q, *case.sets[i], attn_mask=mask).view(case.batch, case.heads, case.dim)

        return run

    return make


def flash_attention(module):
    """FlashAttention's decode."""

    def make(case):
        library = importlib.import_module(module)
        lengths = case.torch.tensor(case.lengths, dtype=case.torch.int32, device=case.device)
        q = case.q.view(case.batch, 1, case.heads, case.dim)

        def run(i):
            z = library.flash_attn_with_kvcache(q, *case.sets[i], cache_seqlens=lengths)
            return (z[0] if isinstance(z, tuple) else z).view(case.batch, case.heads, case.dim)

        return run

    return make


def flashinfer_single(tensor_cores):
    """FlashInfer's decode of one sequence."""

    def make(case):
        library = importlib.import_module("flashinfer")
        if case.batch > 1:
            raise ValueError("one sequence only")

        def run(i):
            keys, values = case.sets[i]
            z = library.single_decode_with_kv_cache(case.q[0], keys[0], values[0], kv_layout="NHD", use_tensor_cores=tensor_cores)
            return z.view(1, case.heads, case.dim)

        return run

    return make


def pages_of(lengths, capacity):
    """Returns where a cache of one piece has its pages: (first of each sequence in the list, list, keys in the last page of each)."""
    begins, pages = [0], []
    for i, n in enumerate(lengths):
        pages += range(i * capacity // PAGE, i * capacity // PAGE + -(-n // PAGE))
        begins.append(len(pages))
    return begins, pages, [(n - 1) % PAGE + 1 for n in lengths]


def flashinfer_batch(tensor_cores):
    """FlashInfer's decode of a batch, on a paged cache. Its plan is made once, as for all steps of the same lengths."""

    def make(case):
        library, torch = importlib.import_module("flashinfer"), case.torch
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device=case.device)
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        tables = [torch.tensor(list_, dtype=torch.int32, device=case.device) for list_ in pages_of(case.lengths, case.capacity)]
        wrapper.plan(*tables, case.heads, case.kv_heads, case.dim, PAGE, q_data_type=case.dtype, kv_data_type=case.dtype)
        paged = [tuple(array.view(-1, PAGE, case.kv_heads, case.dim) for array in arrays) for arrays in case.sets]
        return lambda i: wrapper.run(case.q, paged[i])

    return make


# (name, module, whether keys lie position by position, function that makes run(set) for a case)
PEERS = [("PyTorch, cuDNN", "torch", False, sdpa("CUDNN_ATTENTION")), ("PyTorch, flash", "torch", False, sdpa("FLASH_ATTENTION")),
         ("PyTorch, memory-efficient", "torch", False, sdpa("EFFICIENT_ATTENTION")), ("PyTorch, math", "torch", False, sdpa("MATH")),
         ("FlashAttention 2", "flash_attn", True, flash_attention("flash_attn")),
         ("FlashAttention 3", "flash_attn_interface", True, flash_attention("flash_attn_interface")),
         ("FlashInfer, one sequence", "flashinfer", True, flashinfer_single(False)),
         ("FlashInfer, one sequence, tensor cores", "flashinfer", True, flashinfer_single(True)),
         ("FlashInfer, batch", "flashinfer", True, flashinfer_batch(False)),
         ("FlashInfer, batch, tensor cores", "flashinfer", True, flashinfer_batch(True))]


def seconds_in_graph(torch, run, n_sets):
    """Median seconds of a call, replayed in a graph in which the inputs take turns: as time_of() in clocks.cuh."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            begin.record()
            run(i % n_sets)
            end.record()
    torch.cuda.synchronize()
    guess = max(1e-6, 1e-3 * begin.elapsed_time(end))
    n_launches = (1 if guess > 5e-3 else -(-20 // n_sets)) * n_sets
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n_launches):
            run(i % n_sets)
    graph.replay()
    each = []
    for _ in range(int(min(50, max(3, 0.5 / (guess * n_launches))))):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        each.append(1e-3 * begin.elapsed_time(end) / n_launches)
    return sorted(each)[len(each) // 2]


def read_seconds(torch, case, seconds_of):
    """Seconds of a read of a set in this process, the fastest of some grids; None without the library."""
    if not os.environ.get("TREE_ATTN_READ_LIBRARY"):
        return None
    queue = ctypes.CDLL(os.environ["TREE_ATTN_READ_LIBRARY"]).tree_attn_queue_read
    queue.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    n_bytes = sum(array.numel() * array.element_size() for array in case.sets[0])
    sets = [torch.zeros(n_bytes, dtype=torch.uint8, device=case.device) for _ in case.sets]
    sink, n_multiprocessors = torch.zeros(1, dtype=torch.int32, device=case.device), torch.cuda.get_device_properties(0).multi_processor_count

    def run_of(n_blocks, n_threads):
        def run(i):
            if status := queue(sets[i].data_ptr(), n_bytes, sink.data_ptr(), n_blocks, n_threads, torch.cuda.current_stream().cuda_stream):
                raise RuntimeError(f"the read: CUDA error {status}")
        return run

    return min(seconds_of(torch, run_of(n * n_multiprocessors, n_threads), len(case.sets)) for n, n_threads in ((2, 512), (2, 1024)))


def fault_of(z, want):
    """Returns what is wrong with a result; empty if nothing is. False for NaN is wrong."""
    largest, worst = float(want.abs().max()), float((z.double() - want).abs().max())
    return "" if worst <= TOLERANCE * largest else f"WRONG: off by {worst:.2g}, where the largest element is {largest:.2g}"


def lines_of_shape(torch, shape, device, peers, seconds_of):
    """A line per library. @param seconds_of (torch, run, n_sets) -> seconds"""
    for by_position in (False, True):
        wanted = [peer for peer in peers if peer[2] == by_position]
        if not wanted:
            continue
        case = Case(torch, shape, device, by_position)
        want = case.reference()
        read = read_seconds(torch, case, seconds_of)
        for name, _, _, make in wanted:
            line = {"part": "peer", "shape": shape["shape"], "peer": name} | ({"read_seconds": read} if read else {})
            try:
                run = make(case)
                fault = fault_of(run(0), want)
                yield line | ({"note": fault} if fault else {"graph_seconds": seconds_of(torch, run, shape["n_sets"])})
            except Exception as error:  # each library has errors of its own
                words = (str(error).strip().splitlines() or [type(error).__name__])[0]
                yield line | {"note": "does not take it: " + words[:120]}
        del case, want
        if device == "cuda":
            torch.cuda.empty_cache()


def importable(peers):
    """The peers whose module imports, and a line for every other module."""
    missing = {}
    for _, module, _, _ in peers:
        try:
            importlib.import_module(module)
        except Exception as error:  # an extension made for another version fails in ways of its own
            missing[module] = (str(error).strip().splitlines() or [type(error).__name__])[0]
    lines = [{"part": "missing", "peer": module, "note": "not installed: " + why} for module, why in missing.items()]
    return [peer for peer in peers if peer[1] not in missing], lines


def versions_of(peers):
    modules = {module: importlib.import_module(module) for _, module, _, _ in peers}
    return {"part": "versions"} | {name: str(getattr(module, "__version__", "of unknown version")) for name, module in modules.items()}


def main():
    warnings.filterwarnings("ignore")
    shapes = [shape for shape in json.load(sys.stdin) if "softcap" not in shape]
    peers, missing = importable(PEERS)
    for line in missing:
        print(json.dumps(line), flush=True)
    if not any(module == "torch" for _, module, _, _ in peers):
        return 0
    import torch
    print(json.dumps(versions_of(peers)), flush=True)
    if not torch.cuda.is_available():
        print(json.dumps({"part": "missing", "peer": "all", "note": f"PyTorch {torch.__version__} finds no GPU"}), flush=True)
        return 0
    with torch.no_grad():
        for shape in shapes:
            for line in lines_of_shape(torch, shape, "cuda", peers, seconds_in_graph):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
