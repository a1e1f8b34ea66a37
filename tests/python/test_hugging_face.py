#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers drawn at random: logits are those of its own attention, and have the same bits on 1 to 8 processes over gloo.

Run: ./run python --peers    or, on other numbers of processes: python3 tests/python/test_hugging_face.py --ranks 1,8
"""
import copy
import hashlib
import sys
import types
import unittest

import torch
import transformers

import tree_attn.hugging_face
from test_group import play, run_scene

RANKS = range(1, 9)
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16, "pad_token_id": 0}
WINDOWS = {"sliding_window": 50, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
MODELS = {"plain": transformers.LlamaConfig(num_key_value_heads=4, **SIZES), "grouped": transformers.Qwen3Config(num_key_value_heads=2, **SIZES),
          "windows": transformers.Gemma3TextConfig(num_key_value_heads=1, query_pre_attn_scalar=16, **WINDOWS, **SIZES),
          "learned sinks": transformers.GptOssConfig(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **WINDOWS, **SIZES)}
N, CHUNKED = 150, 140
TOKENS = torch.randint(97, (2, N + 10), generator=torch.Generator().manual_seed(71))


def drawn(config, attention):
    torch.manual_seed(72)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    for name, x in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(x)
    return model


def logits_of(model, cache, begin, end):
    with torch.no_grad():
        return model(TOKENS[:, begin:end], cache=cache).logits


def decoded(config, group):
    """Logits of a prompt in chunks of 64, of three tokens one by one, and after a draft of 5 that was refused; and the cache."""
    model, cache = drawn(config, "tree_attn"), tree_attn.hugging_face.Cache(config, group=group)
    logits = [logits_of(model, cache, begin, min(begin + 64, N)) for begin in range(0, N, 64)]
    logits += [logits_of(model, cache, i, i + 1) for i in range(N, N + 3)]
    draft = logits_of(model, cache, N + 3, N + 8)
    cache.crop(-5)
    again = logits_of(model, cache, N + 3, N + 8)
    assert torch.equal(draft, again), "a draft that was refused has left something"
    cache.crop(-3)  # two of five are taken
    logits.append(logits_of(model, cache, N + 5, N + 6))
    assert cache.get_seq_length() == N + 6
    return torch.cat([*logits, again], 1), cache


def scene_models(group):
    parts = []
    for config in MODELS.values():
        logits, cache = decoded(config, group)
        held = [sum(layer.attention.holds(i) for i in range(N + 6)) for layer in cache.layers]
        parts.append(f"{hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:16]} {held[0] if len(set(held)) == 1 else held}")
        cache.close()
    return "; ".join([*parts, outputs_in_chunks(group)])


def outputs_in_chunks(group):
    """A digest of outputs of attention in chunks of 1, 7 and 64, and in drafts of 5 of which the first are refused, whose bits are the same; and how many keys this rank holds."""
    generator = torch.Generator().manual_seed(73)
    q, k, v = (torch.randn((1, heads, CHUNKED, 16), generator=generator) for heads in (4, 2, 2))
    found = set()
    for chunk in (1, 7, 64, 5):
        layer, rows = tree_attn.hugging_face._Layer(group, {}), []

        def attend(part, keys):
            update = layer.update(keys[:, :, part], v[:, :, part])
            return tree_attn.hugging_face.attend(types.SimpleNamespace(), q[:, :, part], *update, None, 0.25, sliding_window=90)[0]

        for begin in range(0, CHUNKED, chunk):
            part = slice(begin, begin + chunk)
            if chunk == 5:
                attend(part, -k)
                layer.crop(-5)
            rows.append(attend(part, k))
        found.add(f"{hashlib.sha256(torch.cat(rows, 1).numpy().tobytes()).hexdigest()[:16]} {sum(layer.attention.holds(i) for i in range(CHUNKED))}")
        layer.attention.close()
    assert len(found) == 1, found
    return found.pop()


class HuggingFace(unittest.TestCase):
    def test_logits_are_those_of_the_attention_of_transformers(self):
        for name, config in MODELS.items():
            with self.subTest(name):
                logits, cache = decoded(config, None)
                with torch.no_grad():
                    expected = drawn(config, "eager")(TOKENS[:, :N + 8]).logits
                self.assertLess((logits[:, :N + 3] - expected[:, :N + 3]).abs().max(), 2e-4)
                self.assertLess((logits[:, -5:] - expected[:, N + 3:]).abs().max(), 2e-4)
                cache.close()

    def test_bits_are_those_of_one_rank_and_every_key_is_kept_once(self):
        alone = scene_models(None)
        for size in RANKS:
            lines = [[part.split() for part in line.split("; ")] for line in play("models", size, __file__)]
            for model, part in enumerate(alone.split("; ")):
                self.assertEqual({line[model][0] for line in lines}, {part.split()[0]}, [*MODELS, "chunks of 1, 7 and 64, drafts of 5"][model])
                self.assertEqual(sum(int(line[model][1]) for line in lines), N + 6 if model < len(MODELS) else CHUNKED)

    def test_what_it_does_not_take_is_refused_in_a_line(self):
        config = MODELS["grouped"]
        model, cache = drawn(config, "tree_attn"), tree_attn.hugging_face.Cache(config)
        padding = torch.ones(2, 8, dtype=torch.int64)
        padding[0, 0] = 0
        with torch.no_grad(), self.assertRaisesRegex(ValueError, "takes no padding and no mask"):
            model(TOKENS[:, :8], attention_mask=padding, cache=cache)
        with self.assertRaisesRegex(ValueError, "an array requires a gradient"):
            model(TOKENS[:, :8], cache=tree_attn.hugging_face.Cache(config))
        with self.assertRaisesRegex(ValueError, "layers of chunked_attention have no such cache"):
            tree_attn.hugging_face.Cache(types.SimpleNamespace(get_text_config=lambda decoder: types.SimpleNamespace(layer_types=["chunked_attention"])))
        with self.assertRaisesRegex(ValueError, r"crop\(-9\) of 0 positions"):
            cache.crop(-9)
        k = torch.zeros(1, 2, 3, 16)
        for copied in (torch.clone, lambda keys: k):
            keys, values = cache.update(k, k, 0)
            other = copied(keys)
            with self.assertRaisesRegex(ValueError, "has got other keys than those that its cache gave"):
                tree_attn.hugging_face.attend(types.SimpleNamespace(), torch.zeros(1, 4, 3, 16), other, values, None)
        with self.assertRaisesRegex(ValueError, "has got other keys"):  # of a layer that shares them
            tree_attn.hugging_face.attend(types.SimpleNamespace(), torch.zeros(1, 4, 3, 16), keys, values, None)
        with self.assertRaisesRegex(ValueError, "beams would move sequences"):
            cache.layers[0].reorder_cache(None)
        with torch.no_grad(), self.assertRaisesRegex(ValueError, "this cache is for a model with attn_implementation='tree_attn'"):
            drawn(copy.deepcopy(config), "sdpa")(TOKENS[:, :8], cache=cache)
        with torch.no_grad():  # and the next call is right
            self.assertTrue(torch.equal(model(TOKENS[:, :8], cache=cache).logits, model(TOKENS[:, :8]).logits))

    def test_generate(self):
        config = MODELS["grouped"]
        assistant = drawn(copy.deepcopy(config), "eager")
        for options in ({}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
            words = [drawn(config, attention).generate(TOKENS[:1, :20], max_new_tokens=6, do_sample=False, cache=cache, **(options if cache else {}))
                     for attention, cache in (("tree_attn", tree_attn.hugging_face.Cache(config)), ("eager", None))]
            self.assertTrue(torch.equal(*words), list(options))

    def test_autocast(self):
        config = MODELS["plain"]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits, expected = (drawn(config, attention)(TOKENS[:, :70], cache=cache).logits
                                for attention, cache in (("tree_attn", tree_attn.hugging_face.Cache(config)), ("eager", None)))
        self.assertLess((logits - expected).abs().max(), 0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--scene"]:
        run_scene(sys.argv[2], globals())
    if sys.argv[1:2] == ["--ranks"]:
        RANKS = tuple(map(int, sys.argv[2].split(",")))
        del sys.argv[1:3]
    unittest.main()
