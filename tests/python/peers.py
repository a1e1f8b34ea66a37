#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Equivalence with other libraries on a CPU: errors against the oracle as fractions of the a-priori bound.

Run: ./run python --peers

The functions of PyTorch and JAX, and the references of FlashInfer, are asked for the same attention as this package: groups of heads,
several queries, causal edges, windows and sinks, types of 16 and 32 bits, short and long sequences, large scores. An error above its bound
is a failure; so is an output of this package that differs from that of a peer by more than both bounds together.
"""
import sys
import time
import warnings

import numpy
import torch
import torch.nn.functional
from torch.nn.attention import flex_attention

import tree_attn

try:
    import jax
    import jax.numpy
except ImportError:
    jax = None
try:
    from flashinfer.trace.templates import attention as flashinfer, cascade
except ImportError:
    flashinfer = None

# Query heads, key/value heads, queries, keys, head dimension, factor of the queries, what is seen.
ALL, CAUSAL = {}, {"causal": True}
SHAPES = [(8, 8, 1, 512, 64, 1, ALL), (8, 2, 1, 4096, 128, 1, ALL), (32, 8, 4, 1000, 128, 1, CAUSAL), (4, 1, 16, 77, 32, 1, CAUSAL),
          (8, 2, 1, 2048, 64, 8, ALL), (2, 2, 1, 1, 16, 1, ALL), (8, 2, 8, 1000, 64, 1, {"causal": True, "window": 100}),
          (8, 2, 8, 1000, 64, 1, {"causal": True, "window": 300, "sinks": 4}), (4, 4, 3, 200, 32, 1, {"window": 70, "sinks": 70})]
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def seen_by(j, a, l, n, causal=False, window=None, sinks=0):
    """Tests whether query j of l sees key a of n: numbers, or tensors of them."""
    end = n - l + 1 + j if causal else n
    return (a < end) & ((a >= end - (window or n)) | (a < sinks))


def mask(q, k, rule):
    l, n = q.shape[2], k.shape[2]
    return seen_by(torch.arange(l)[:, None], torch.arange(n)[None], l, n, **rule)


def sdpa(q, k, v, rule):
    """Heads of a group share keys."""
    seen = mask(q, k, rule)
    group = q.shape[1] // k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=seen)


def flex(q, k, v, rule):
    """FlexAttention without its compiler, which would take minutes here: the same program."""
    l, n = q.shape[2], k.shape[2]
    block_mask = flex_attention.create_block_mask(lambda b, h, j, a: seen_by(j, a, l, n, **rule), None, None, l, n, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is not compiled
        return flex_attention.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)


def of_jax(q, k, v, rule):
    """jax.nn.dot_product_attention, whose layout is [b, l, n_h, d]."""
    x = [jax.numpy.asarray(t.float().transpose(1, 2).contiguous().numpy()).astype(str(t.dtype).split(".")[-1]) for t in (q, k, v)]
    out = jax.nn.dot_product_attention(*x, mask=jax.numpy.asarray(mask(q, k, rule).numpy())[None, None])
    return torch.from_numpy(numpy.array(out.astype("float32"))).transpose(1, 2)


def of_flashinfer(q, k, v, rule):
    """The reference of FlashInfer's single_prefill_with_kv_cache, which runs on a CPU; it has no window."""
    if "window" in rule:
        return None
    return flashinfer._single_prefill_reference(*(x[0].transpose(0, 1) for x in (q, k, v)), **rule).transpose(0, 1)[None]


def merges_differ():
    """Tests whether merge() and the reference of FlashInfer's merge_state differ, over outputs and base-two lse of two sets of keys."""
    o, s = torch.randn(2, 1, 8, 16, 64), 30 * torch.randn(2, 1, 8, 16)
    theirs = cascade._merge_state_reference(o[0], s[0], o[1], s[1])
    ours = tree_attn.merge(o[0], s[0], o[1], s[1], lse="base two")
    worst = [(a - b).abs().max().item() for a, b in zip(ours, (theirs[0], theirs[1] * numpy.log(2)))]
    # Theirs subtract logarithms of up to 2^7, with an error of 2^-18 in the weights.
    print(f"merge, FlashInfer's merge_state: differ by at most {worst[0]:.2g} in out, {worst[1]:.2g} in lse")
    return not (worst[0] <= 2 ** -16 and worst[1] <= 2 ** -16)


def main():
    torch.manual_seed(47)
    torch.set_num_threads(1)
    peers = {"scaled_dot_product_attention": sdpa, "flex_attention": flex}
    if jax is not None:
        peers["jax.nn.dot_product_attention"] = of_jax
    if flashinfer is not None:
        peers["flashinfer, reference"] = of_flashinfer
    print(f"PyTorch {torch.__version__}" + (f", JAX {jax.__version__}" if jax is not None else "; JAX is not installed"))
    print(f"{'heads':>7} {'l':>3} {'keys':>6} {'d':>4} {'type':>9}   this package  " + "  ".join(f"{name:>29}" for name in peers))
    begin, failed = time.monotonic(), 0
    for n_h, n_kv, l, n, d, factor, rule in SHAPES:
        for dtype in TYPES:
            q, k, v = (torch.randn(1, h, m, d).to(dtype) for h, m in ((n_h, l), (n_kv, n), (n_kv, n)))
            q = q * factor
            wide = [x.double() for x in (q, k, v)]
            exact = tree_attn.energy_gradient(*wide, scale=d ** -0.5, **rule)
            u_out = 0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
            ours, bound = tree_attn.attention(q, k, v, **rule)[0], tree_attn.error_bound(*wide, **rule, output_roundoff=u_out)
            # What is not known of a peer's order: a chain of n additions, rescaled at each block of 32 keys or more. In 16 bits, weights may
            # be rounded before they are multiplied: to u of the type, in n and not in D.
            theirs = tree_attn.error_bound(*wide, **rule, n_additions=n, n_rescalings=n / 32, output_roundoff=3 * u_out)
            fractions = [(abs(ours.double().numpy() - exact) / bound).max()]
            for peer in peers.values():
                if (out := peer(q, k, v, rule)) is None:
                    fractions.append(None)
                    continue
                out = out.double().numpy()
                fractions.append((abs(out - exact) / theirs).max())
                failed += not (abs(out - ours.double().numpy()) <= bound + theirs).all()
            failed += not all(fraction is None or fraction <= 1 for fraction in fractions)
            print(f"{n_h:>4}/{n_kv:<2} {l:>3} {n:>6} {d:>4} {str(dtype).split('.')[-1]:>9}   " + f"{fractions[0]:>12.4f}  "
                  + "  ".join(f"{'-' if fraction is None else f'{fraction:.4f}':>29}" for fraction in fractions[1:]) + "   " + ", ".join(f"{name} {value}" for name, value in rule.items()))
    failed += flashinfer is not None and merges_differ()
    print(f"{'all errors are below their bounds' if failed == 0 else f'{failed} comparisons failed'}, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
