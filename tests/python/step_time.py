#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a step() with tensors of PyTorch beside ta_step() of the same run, called with structures that are filled: at most 15 us more.

Run: ./run python --peers
"""
import time

import torch

import tree_attn

ROUNDS, STEPS, MOST = 400, 10, 15


def main():
    torch.set_num_threads(1)
    layer = tree_attn.Attention(heads=1, head_dim=64)
    k, q = torch.randn(1, 64, 64), torch.randn(1, 1, 1, 64)
    layer.append(k, k)
    out, views, seen = layer.step(q), [tree_attn._View() for _ in range(3)], tree_attn.ctypes.byref(tree_attn._Seen())
    for view, x in zip(views, (q, *out)):
        assert view.set(x)
    addresses, array = [view.address for view in views], q.numpy()
    cases = {"ta_step()": lambda: tree_attn._library.ta_step(layer._handle, addresses[0], seen, *addresses[1:]),
             "PyTorch, out=": lambda: layer.step(q, out=out), "PyTorch": lambda: layer.step(q), "NumPy": lambda: layer.step(array)}
    times = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, call in cases.items():
            begin = time.perf_counter_ns()
            for _ in range(STEPS):
                call()
            times[name].append((time.perf_counter_ns() - begin) / STEPS / 1e3)
    fast = {name: sorted(each)[ROUNDS // 20] for name, each in times.items()}
    for name, each in fast.items():
        print(f"{name:14} {each:6.1f} us, {each - fast['ta_step()']:5.1f} us more (5th percentile of {ROUNDS} interleaved rounds of {STEPS} steps)")
    assert max(fast["PyTorch"], fast["PyTorch, out="]) - fast["ta_step()"] <= MOST, fast


if __name__ == "__main__":
    main()
