#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode of a Hugging Face model whose keys and values are spread over ranks: logits have the same bits on any number of ranks.

Run: torchrun --nproc-per-node 4 python/examples/hugging_face.py     or without torchrun, on one rank

Three lines differ from a program on one rank; they are marked. The model is drawn at random: windows of 64 positions, as Gemma 3 has them.
"""
import hashlib
import os

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Gemma3TextConfig

import tree_attn.hugging_face  # 1

PROMPT, CHUNK, WORDS = 300, 64, 20


def main():
    torch.set_num_threads(1)
    group = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        group = dist.group.WORLD
    torch.manual_seed(2408)
    config = Gemma3TextConfig(vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=16, query_pre_attn_scalar=16, sliding_window=64,
                              layer_types=["sliding_attention", "sliding_attention", "full_attention"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tree_attn").eval()  # 2
    cache = tree_attn.hugging_face.Cache(config, group=group)  # 3
    tokens = torch.randint(97, (1, PROMPT))
    digest = hashlib.sha256()
    with torch.no_grad():
        for begin in range(0, PROMPT, CHUNK):
            logits = model(tokens[:, begin:begin + CHUNK], cache=cache).logits
        for _ in range(WORDS):
            digest.update(logits.numpy().tobytes())
            word = logits[:, -1:].argmax(-1)
            logits = model(word, cache=cache).logits
    held = sum(cache.layers[0].attention.holds(i) for i in range(cache.get_seq_length()))
    cache.close()
    lines = [digest.hexdigest()[:16]] * (dist.get_world_size() if group else 1)
    if group:
        dist.all_gather_object(lines, lines[0])
    if group is None or dist.get_rank() == 0:
        assert len(set(lines)) == 1, "ranks disagree"
        print(f"{len(lines)} ranks, {PROMPT + WORDS} words, {held} of their keys on rank 0: logits {lines[0]}")
    if group:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
