# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's scaled_dot_product_attention on request, as bench_decode.cpp does the decode: same protocol, same elements.

Run: echo 'case F32 4096 4 4 64 1 1
     time PyTorch 0.02' | build-peers/bin/python tests/bench/baseline_torch.py
"""
import json
import mmap
import sys
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def elements(begin, end):
    """The elements [begin, end) before they are rounded to their type: see element() in bench_decode.cpp."""
    low = (1 << 32) - 1
    x = torch.arange(begin, end, dtype=torch.int64) * 2654435761 & low
    x = ((x ^ x >> 15) * 2246822519) & low
    x ^= x >> 13
    return ((x >> 8).to(torch.float32) * 2.0**-23 - 1) * 1.732


class Bench:
    """One case; its keys, values and queries lie one after the other, in pages of 2 MiB where the kernel has them."""

    def __init__(self):
        self.memory, self.filled = None, (None, 0)

    def array(self, dtype, n):
        n_bytes = n * dtype.itemsize
        if self.memory is None or len(self.memory) < n_bytes:
            self.step = None  # its arrays are views of the memory
            self.memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.memory.madvise(mmap.MADV_HUGEPAGE)
            self.filled = (None, 0)
        array = torch.frombuffer(self.memory, dtype=dtype, count=n)
        if self.filled[0] != dtype or self.filled[1] < n:
            at_once = 1 << 20
            for begin in range(0, n, at_once):
                array[begin:begin + at_once] = elements(begin, min(n, begin + at_once))
            self.filled = (dtype, n)
        return array

    def open(self, dtype, keys, heads, kv_heads, dim, queries, threads):
        keys, heads, kv_heads, dim, queries = map(int, (keys, heads, kv_heads, dim, queries))
        torch.set_num_threads(int(threads))
        n_cache = kv_heads * keys * dim
        array = self.array(TYPES[dtype], 2 * n_cache + heads * queries * dim)
        k, v = array[:2 * n_cache].view(2, 1, kv_heads, keys, dim)
        # The heads of a group as positions of one head: one read of its keys serves them all, as with enable_gqa it does not.
        group = heads // kv_heads
        q = array[2 * n_cache:].view(1, kv_heads, group * queries, dim)
        # Query j of l sees the keys up to position N - l + j.
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).repeat(group, 1) if queries > 1 else None
        self.step = q, k, v, seen

    def run(self):
        return torch.nn.functional.scaled_dot_product_attention(*self.step)

    def result(self):
        """z of all heads and their queries, as a flat list."""
        return self.run().to(torch.float32).flatten().tolist()

    def time(self, least):
        """As bench_decode.cpp: one run that is not timed, then as many as fit."""
        self.run()
        n_runs, elapsed, cpu, wall = 0, 0, time.process_time(), time.perf_counter()
        while n_runs == 0 or elapsed < float(least):
            self.run()
            n_runs += 1
            elapsed = time.perf_counter() - wall
        return f"{(time.process_time() - cpu) / n_runs:.9g} {elapsed / n_runs:.9g}"


@torch.no_grad()
def serve(bench, versions):
    """Answers the requests of decode_rounds.py, a line each."""
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "versions":
            answer = json.dumps(versions)
        elif command == "case":
            bench.open(*arguments)
            answer = "ok"
        elif command == "time":
            answer = bench.time(arguments[1])
        elif command == "result":
            answer = " ".join(f"{z:.9g}" for z in bench.result())
        else:
            sys.exit(f"{sys.argv[0]}: no command '{command}'")
        print(answer, flush=True)


if __name__ == "__main__":
    serve(Bench(), {"PyTorch": torch.__version__})
