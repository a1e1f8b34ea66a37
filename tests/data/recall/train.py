#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the recall model from scratch on the CPU, with PyTorch: train.py [--out model.safetensors]. README.md is its card.

The haystack is text; the questions come after it. Only the last layer looks further back than a window, so a haystack needs
of that layer nothing but keys and values: training on 16 384 tokens costs little more than reading them.
"""
import argparse
import json
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from words import PROSE, Prose, encode, lesson

CONFIG = dict(vocab=128, dim=128, heads=4, kv_heads=1, head_dim=64, ff=256, local_layers=2, window=24,
              rope_base=10000.0, eps=1e-5, scale_base=256.0)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def linear(n, m):
    return nn.Linear(n, m, bias=False)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q_proj = linear(c["dim"], c["heads"] * c["head_dim"])
        self.k_proj = linear(c["dim"], c["kv_heads"] * c["head_dim"])
        self.v_proj = linear(c["dim"], c["kv_heads"] * c["head_dim"])
        self.o_proj = linear(c["heads"] * c["head_dim"], c["dim"])


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c["dim"], c["ff"]), linear(c["dim"], c["ff"])
        self.down_proj = linear(c["ff"], c["dim"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x, cos, sin):
    """Rotary, the halves convention: component i turns with component i + head_dim / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c["dim"], c["eps"]), RMSNorm(c["dim"], c["eps"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def kv(self, x):
        h = self.input_layernorm(x)
        return self.self_attn.k_proj(h), self.self_attn.v_proj(h)

    def finish(self, x, o):
        x = x + self.self_attn.o_proj(o)
        return x + self.mlp(self.post_attention_layernorm(x))

    def local(self, x):
        """[B, T, dim]; a query sees itself and the window - 1 tokens before it. Blocks of `window`: linear in T."""
        c, a = self.c, self.self_attn
        B, T, _ = x.shape
        W, H, d = c["window"], c["heads"], c["head_dim"]
        n = -(-T // W)
        h = F.pad(self.input_layernorm(x), (0, 0, 0, n * W - T))
        angle = torch.arange(-W, W)[:, None].float() * c["rope_base"] ** (-torch.arange(0, d, 2).float() / d)
        cos, sin = angle.cos(), angle.sin()  # only differences of positions count, so every block has the same angles
        q = rotate(a.q_proj(h).view(B, n, W, H, d).transpose(2, 3), cos[W:], sin[W:]).reshape(B * n, H * W, d)
        k, v = a.k_proj(h).view(B, n, W, d), a.v_proj(h).view(B, n, W, d)
        with_last = lambda y: torch.cat([F.pad(y, (0, 0, 0, 0, 1, 0))[:, :-1], y], 2)
        k, v = rotate(with_last(k), cos, sin).reshape(B * n, 2 * W, d), with_last(v).reshape(B * n, 2 * W, d)
        i, j = torch.arange(W)[:, None] + W, torch.arange(2 * W)[None]
        seen = ((j <= i) & (j > i - W)).expand(n, W, 2 * W).clone()
        seen[0, :, :W] = False
        bias = torch.zeros(n, W, 2 * W).masked_fill(~seen, -torch.inf)
        s = (q @ k.transpose(1, 2) * d ** -0.5).view(B, n, H, W, 2 * W) + bias[:, None]
        o = (s.softmax(-1).view(B * n, H * W, 2 * W) @ v).view(B, n, H, W, d).transpose(2, 3)
        return self.finish(x, o.reshape(B, n * W, H * d)[:, :T])


class Inner(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["local_layers"] + 1)])
        self.norm = RMSNorm(c["dim"], c["eps"])


class Model(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c, self.model = c, Inner(c)
        self.lm_head = linear(c["dim"], c["vocab"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                small = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, 0, (0.3 if small else 1.0) * p.shape[1] ** -0.5)
        nn.init.normal_(self.model.embed_tokens.weight, 0, 1.0)
        self.look_back()

    @torch.no_grad()
    def look_back(self, constant=4.0, pairs=8, peak=12.0):
        """A start that saves most of the training: component 0 of every embedding is a constant, and of it the heads of
        the local layers make queries that find the token a fixed number of steps back."""
        c, d = self.c, self.c["head_dim"]
        self.model.embed_tokens.weight[:, 0] = constant
        f = c["rope_base"] ** (-torch.arange(0, d, 2).float() / d)[:pairs]
        for layer, steps in zip(self.model.layers[:-1], ((1, 2, 3, 4), (4, 8, 12, 16), (1, 2, 3, 4))):
            a = (peak * d ** 0.5 / pairs) ** 0.5 * (1 + constant ** 2 / c["dim"]) ** 0.5 / constant
            k = torch.zeros(d)
            k[:pairs] = a
            layer.self_attn.k_proj.weight *= 0.5
            layer.self_attn.q_proj.weight *= 0.5
            layer.self_attn.k_proj.weight[:, 0] = k
            for h, o in enumerate(steps):
                q = torch.zeros(d)
                q[:pairs], q[d // 2:d // 2 + pairs] = a * (f * o).cos(), -a * (f * o).sin()
                layer.self_attn.q_proj.weight[h * d:(h + 1) * d, 0] = q

    def local(self, tokens):
        """Returns what enters the global layer: depends on the last local_layers * (window - 1) tokens only."""
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers[:-1]:
            x = layer.local(x)
        return x

    def scale(self, n):
        """Factor of q.k in the global layer when n keys are visible (scalable softmax)."""
        return math.log(n) / math.log(self.c["scale_base"]) * self.c["head_dim"] ** -0.5

    def logits(self, x):
        return self.lm_head(self.model.norm(x))

    def answers(self, hay, ask, first, count):
        """Logits of `count` positions of every question from `first` on. hay [B, N], ask [B, Q, S]; a question sees the
        haystack and its own past."""
        c, g = self.c, self.model.layers[-1]
        B, Q, S = ask.shape
        N, H, d = hay.shape[1], c["heads"], c["head_dim"]
        K, V = g.kv(self.local(hay))
        x = self.local(ask.view(B * Q, S))
        k, v = g.kv(x)
        x = x[:, first:first + count]
        scale = torch.tensor([self.scale(N + first + 1 + i) for i in range(count)])
        q = (g.self_attn.q_proj(g.input_layernorm(x)).view(B * Q, count, H, d) * scale[:, None, None])
        s1 = (q.reshape(B, Q * count * H, d) @ K.transpose(1, 2)).view(B * Q, count * H, N)
        s2 = (q.reshape(B * Q, count * H, d) @ k.transpose(1, 2)).view(B * Q, count, H, S)
        s2 = s2.masked_fill((torch.arange(S) > first + torch.arange(count)[:, None])[:, None], -torch.inf)
        w = torch.cat([s1, s2.view(B * Q, count * H, S)], -1).softmax(-1)
        o = (w[..., :N].reshape(B, Q * count * H, N) @ V).view(B * Q, count * H, d) + w[..., N:] @ v
        return self.logits(g.finish(x, o.view(B * Q, count, H * d)))

    def forward(self, tokens):
        """The plain definition: logits [T, vocab] of all positions of one prompt [T]."""
        c, g = self.c, self.model.layers[-1]
        T, H, d = len(tokens), c["heads"], c["head_dim"]
        x = self.local(tokens[None])[0]
        k, v = g.kv(x)
        q = g.self_attn.q_proj(g.input_layernorm(x)).view(T, H, d)
        s = torch.einsum("ihd,jd->hij", q, k) * torch.tensor([self.scale(i + 1) for i in range(T)])[:, None]
        s = s.masked_fill(torch.arange(T)[None] > torch.arange(T)[:, None], -torch.inf)
        return self.logits(g.finish(x, torch.einsum("hij,jd->ihd", s.softmax(-1), v).reshape(T, H * d)))


COUNT = 9  # characters of an answer, the full stop included, at most


def batch(rng, prose, B, N, pool, Q, fill, near, twins):
    lead = rng.randrange(2, 24)
    hays, asks, targets = [], [], []
    for _ in range(B):
        while True:
            hay, qa = lesson(rng, prose, N, rng.randrange(max(2, pool // 2), pool + 1), Q, fill * rng.random(), lead, near, twins)
            if qa:
                break
        hays.append(encode(hay))
        asks.append([encode((q + a).ljust(lead + 10 + COUNT, "\n")) for q, a in qa])
        targets.append([encode(a) + [-100] * (COUNT - len(a)) for _, a in qa])
    return torch.tensor(hays), torch.tensor(asks)[..., :-1], torch.tensor(targets), lead + 9


def save(model, path):
    from safetensors.torch import save_file
    how = dict(layers=["window"] * model.c["local_layers"] + ["global"], tokeniser="ASCII bytes, others 63", rotary="halves",
               scale="ln(n) / ln(scale_base) / sqrt(head_dim), n visible keys, in the global layer")
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path, metadata={"config": json.dumps(dict(model.c, **how))})


def load(path):
    from safetensors import safe_open
    with safe_open(path, "pt") as f:
        model = Model(json.loads(f.metadata()["config"]))
        model.load_state_dict({k: f.get_tensor(k) for k in f.keys()})
    return model.eval()


# A phase: learning rate, steps its cosine is laid out for, stages. A stage: steps, haystacks, characters in each, records
# at most, questions to each, part of other text at most, part of the keys one letter off another, part of the values that
# begin like another. Every phase starts its random numbers and its optimiser anew.
PHASES = [(1.5e-3, 2600, [(500, 12, 128, 4, 4, 0.3, 0.2, 0.0), (600, 6, 1024, 30, 16, 0.6, 0.6, 0.0),
                          (600, 1, 8192, 200, 64, 0.8, 0.6, 0.0)]),
          (8e-4, 700, [(300, 1, 16384, 300, 64, 0.9, 0.6, 0.5), (400, 1, 32768, 600, 48, 0.95, 0.6, 0.5)])]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="model.safetensors")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--start", help="weights to start from")
    ap.add_argument("--phase", type=int, default=0, help="the first phase to run")
    ap.add_argument("--text", default=PROSE)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    prose, model = Prose(a.text), load(a.start).train() if a.start else Model()
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    wall, cpu = time.time(), time.process_time()
    for phase, (lr, total, stages) in enumerate(PHASES):
        if phase < a.phase:
            continue
        rng, step = random.Random(a.seed + phase), 0
        opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
        for steps, B, N, pool, Q, fill, near, twins in stages:
            right = seen = whole = asked = 0
            for _ in range(steps):
                for g in opt.param_groups:
                    g["lr"] = lr * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / total)))
                hay, ask, target, first = batch(rng, prose, B, N, pool, Q, fill, near, twins)
                out = model.answers(hay, ask, first, COUNT)
                t = target.view(-1, COUNT)
                loss = F.cross_entropy(out.flatten(0, 1), t.flatten(), ignore_index=-100)
                opt.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                step += 1
                ok, use = out.argmax(-1) == t, t >= 0
                right, seen = right + int((ok & use).sum()), seen + int(use.sum())
                whole, asked = whole + int((ok | ~use).all(1).sum()), asked + len(t)
                if step % 25 == 0:
                    print(f"phase {phase} step {step} haystack {N} loss {loss:.4f} characters {right / seen:.4f} answers "
                          f"{whole / asked:.4f} wall {time.time() - wall:.0f} s cpu {time.process_time() - cpu:.0f} s", flush=True)
                    right = seen = whole = asked = 0
            save(model, a.out)


if __name__ == "__main__":
    main()
