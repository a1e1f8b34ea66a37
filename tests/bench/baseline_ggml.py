# SPDX-License-Identifier: Apache-2.0
"""Times the attention of llama.cpp on request: ggml_flash_attn_ext() of the package ggml-python, with the elements of baseline_torch.py.

Run: echo 'case F32 4096 4 4 64 1 1
     time llama.cpp 0.02' | build-peers/bin/python tests/bench/baseline_ggml.py
"""
import ctypes
import importlib.metadata

import baseline_torch
import ggml
import torch

TYPES = {"F32": ggml.GGML_TYPE_F32, "BF16": ggml.GGML_TYPE_BF16, "F16": ggml.GGML_TYPE_F16}
BOOKKEEPING = 1 << 20  # bytes of the tensors' descriptions and the graph


class Bench(baseline_torch.Bench):
    context = None

    def tensor(self, type_, array, *extents):
        """An array as a tensor of these extents, the fastest first."""
        tensor = ggml.ggml_new_tensor(self.context, type_, len(extents), (ctypes.c_int64 * len(extents))(*extents))
        tensor.contents.data = array.data_ptr()
        self.arrays.append(array)
        return tensor

    def open(self, dtype, keys, heads, kv_heads, dim, queries, threads):
        keys, heads, kv_heads, dim, queries = map(int, (keys, heads, kv_heads, dim, queries))
        torch.set_num_threads(int(threads))  # of OpenMP, which ggml may share
        n_cache = kv_heads * keys * dim
        array = self.array(baseline_torch.TYPES[dtype], 2 * n_cache + heads * queries * dim)
        if self.context:
            ggml.ggml_free(self.context)
        self.context = ggml.ggml_init(ggml.ggml_init_params(BOOKKEEPING, None, True))
        self.arrays, type_ = [], TYPES[dtype]
        k, v = (self.tensor(type_, each, dim, keys, kv_heads) for each in array[:2 * n_cache].view(2, n_cache))
        q = self.tensor(ggml.GGML_TYPE_F32, array[2 * n_cache:].float(), dim, queries, heads)
        mask = None
        if queries > 1:  # query j of l sees the keys up to position N - l + j
            seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            mask = self.tensor(ggml.GGML_TYPE_F16, torch.zeros(queries, keys).masked_fill(~seen, -torch.inf).half(), keys, queries)
        self.z = ggml.ggml_flash_attn_ext(self.context, q, k, v, mask, dim**-0.5, 0.0, 0.0)
        self.output = torch.empty(queries, heads, dim)
        self.z.contents.data = self.output.data_ptr()
        graph = ggml.ggml_new_graph(self.context)
        ggml.ggml_build_forward_expand(graph, self.z)
        plan = ggml.ggml_graph_plan(graph, int(threads), None)
        self.work = torch.empty(plan.work_size, dtype=torch.uint8)
        plan.work_data = ctypes.cast(self.work.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
        self.step = graph, plan

    def run(self):
        graph, plan = self.step
        if ggml.ggml_graph_compute(graph, ctypes.byref(plan)) != ggml.GGML_STATUS_SUCCESS:
            raise RuntimeError("ggml_graph_compute() failed")

    def result(self):
        self.run()
        return self.output.transpose(0, 1).flatten().tolist()


if __name__ == "__main__":
    baseline_torch.serve(Bench(), {"llama.cpp": f"ggml-python {importlib.metadata.version('ggml-python')}"})
