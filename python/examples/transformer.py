#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode of a small transformer in PyTorch whose keys and values are spread over ranks: logits have the same bits on any number of ranks.

Run: mpirun -n 4 python3 python/examples/transformer.py     or without mpirun, on one rank

The model has grouped heads, rotary positions and a gated feed-forward layer; its weights are drawn. Every rank computes the layers; only
attention is shared: a rank appends the keys of the positions that it holds and throws the others away, and step() merges what all have.
"""
import argparse
import hashlib

import torch

import tree_attn

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, WORDS = 3, 128, 8, 2, 16, 97


def weights():
    """Matrices of all layers, from one seed."""
    torch.manual_seed(2408)
    draw = lambda rows, columns: torch.randn(rows, columns) * columns ** -0.5  # noqa: E731
    kv = KV_HEADS * HEAD_DIM
    layer = lambda: {"q": draw(HEADS * HEAD_DIM, WIDTH), "k": draw(kv, WIDTH), "v": draw(kv, WIDTH), "o": draw(WIDTH, HEADS * HEAD_DIM),  # noqa: E731
                     "gate": draw(4 * WIDTH, WIDTH), "up": draw(4 * WIDTH, WIDTH), "down": draw(WIDTH, 4 * WIDTH)}
    return {"embed": torch.randn(WORDS, WIDTH), "layers": [layer() for _ in range(LAYERS)]}


def norm(x):
    return x * torch.rsqrt(x.square().mean() + 1e-6)


def rotate(x, position):
    """Rotary positions: pairs (j, j + d/2) of each head turn by position / 10000^(2 j / d)."""
    half = HEAD_DIM // 2
    angle = position * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def forward(model, caches, word, position):
    """The logits after one more word."""
    x = model["embed"][word]
    for layer, cache in zip(model["layers"], caches):
        h = norm(x)
        q = rotate((layer["q"] @ h).view(HEADS, HEAD_DIM), position)
        if cache.holds(position):
            k, v = rotate((layer["k"] @ h).view(KV_HEADS, HEAD_DIM), position), (layer["v"] @ h).view(KV_HEADS, HEAD_DIM)
            cache.append(k[:, None], v[:, None])
        else:
            cache.append(None, None, n=1)
        z, _ = cache.step(q[None, :, None])
        x = x + layer["o"] @ z.reshape(-1)
        h = norm(x)
        x = x + layer["down"] @ (torch.nn.functional.silu(layer["gate"] @ h) * (layer["up"] @ h))
    return model["embed"] @ norm(x)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--words", type=int, default=200, help="length of the text (200)")
    n_words = options.parse_args().words
    comm = None
    try:
        from mpi4py import MPI
        comm = MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None
    except ImportError:
        pass  # alone
    torch.set_num_threads(1)
    model, digest, word = weights(), hashlib.sha256(), 1
    caches = [tree_attn.Attention(comm, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM) for _ in range(LAYERS)]
    with torch.no_grad():
        for position in range(n_words):
            logits = forward(model, caches, word, position)
            digest.update(logits.numpy().tobytes())
            word = int(logits.argmax())
    held = sum(caches[0].holds(position) for position in range(n_words))
    for cache in caches:
        cache.close()
    digests = comm.allgather(digest.hexdigest()) if comm else [digest.hexdigest()]
    if comm is None or comm.rank == 0:
        assert len(set(digests)) == 1, "ranks disagree"
        print(f"{len(digests)} ranks, {n_words} words, {held} of {n_words} keys on rank 0: logits {digests[0][:16]}")


if __name__ == "__main__":
    main()
