#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes reference.safetensors: tokens of a prompt and what PyTorch computes from them, to check another implementation against.

Run: reference.py model.safetensors reference.safetensors
hidden.0 .. hidden.2 [T, dim] enter layers 0 .. 2; k, v [T, head_dim] are those of the global layer; logits [T, vocab].
"""
import sys

import torch
from safetensors.torch import save_file

from train import load
from words import encode

PROMPT = ("We hold these truths to be self-evident, The code of velora is 402913. that all men are created equal, "
          "The word of bamiku is lantern. and that they are. The code of velara is 771204. \n"
          "The code of velora is 402913.")


@torch.no_grad()
def main(model, out):
    m = load(model)
    t = torch.tensor(encode(PROMPT))
    x = {"hidden.0": m.model.embed_tokens(t)}
    for i, layer in enumerate(m.model.layers[:-1]):
        x[f"hidden.{i + 1}"] = layer.local(x[f"hidden.{i}"][None])[0]
    k, v = m.model.layers[-1].kv(x[f"hidden.{len(m.model.layers) - 1}"])
    logits = m(t)
    m64 = load(model).double()
    torch.set_default_dtype(torch.float64)
    l64 = m64(t)
    torch.set_default_dtype(torch.float32)
    save_file(dict(x, tokens=t.int(), k=k, v=v, logits=logits.contiguous()), out, metadata={"text": PROMPT})
    print(len(t), "tokens; largest difference of the logits from the same model in float64",
          f"{(logits - l64).abs().max():.2e}", "of", f"{l64.abs().max():.1f}")
    print("argmax after the question:", bytes(logits[-8:-1].argmax(-1).tolist()).decode())


main(*sys.argv[1:3])
