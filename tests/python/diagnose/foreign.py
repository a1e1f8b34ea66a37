# SPDX-License-Identifier: Apache-2.0
"""Right dumps whose partials and merges are those of PyTorch, FlashInfer and JAX on a CPU, for the test of tree_attn.diagnose.

PyTorch: scaled_dot_product_attention, its flash kernel with lse, and its formula. FlashInfer: the references of its decode over pages, which
return o in BF16 and lse in base two, and of its merge. JAX: jax.nn.dot_product_attention. A rank's kernel sees the keys of its rank alone; a row
that sees none of them has o = 0 and lse = -inf.
"""
import functools

import jax
import jax.numpy
import numpy
import torch
from flashinfer.trace.templates import attention as flashinfer
from flashinfer.trace.templates import cascade

import generate

torch.set_num_threads(1)
OF_TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OF_JAX = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# b, key heads, heads, l, d, d_v: few, for each is compiled.
SHAPES = [(1, 1, 8, 1, 64, 64), (1, 2, 8, 1, 128, 128), (1, 4, 4, 4, 32, 32), (1, 2, 4, 2, 64, 64)]
HELD = [(2, 1, 5, 3, 40, 33), (3, 3, 6, 1, 72, 48), (2, 2, 12, 5, 24, 100), (1, 3, 3, 7, 192, 65)]


def of_torch(flash, c, dtype, k, v, seen, scale):
    q, k, v = (torch.from_numpy(numpy.ascontiguousarray(x)).to(OF_TORCH[dtype]) for x in (c.q, k, v))
    k, v = (x.repeat_interleave(c.h // c.kvh, 1) for x in (k, v))
    mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~torch.from_numpy(seen), -numpy.inf)
    if flash and c.d == c.dv:
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask, scale=scale)
    else:
        o = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, attn_mask=mask, scale=scale)[0]
        lse = torch.logsumexp(scale * q.float() @ k.float().transpose(2, 3) + mask.float(), -1)
    return o.float().numpy(), lse.float().numpy()


def of_flashinfer(c, dtype, k, v, seen, scale):
    """Each row is a request, whose pages of one key are those that it sees; values wider or narrower than keys go in parts."""
    rows, n = c.b * c.l, seen.shape[1]
    q = torch.from_numpy(c.q.transpose(0, 2, 1, 3).reshape(rows, c.h, c.d)).to(OF_TORCH[dtype])
    pages = [torch.from_numpy(x.transpose(0, 2, 1, 3).reshape(c.b * n, 1, c.kvh, -1)).to(OF_TORCH[dtype]) for x in (k, v)]
    lists = [b * n + numpy.flatnonzero(seen[i]) for b in range(c.b) for i in range(c.l)]
    ends = torch.from_numpy(numpy.cumsum([0] + [len(x) for x in lists]))
    outs = []
    for at in range(0, c.dv, c.d):
        part = pages[1][..., at:at + c.d]
        padded = torch.nn.functional.pad(part, (0, c.d - part.shape[-1]))
        o, lse = flashinfer._gqa_paged_decode_reference(q, pages[0], padded, ends, torch.from_numpy(numpy.concatenate(lists)), scale)
        outs.append(o[..., :part.shape[-1]])
    o, lse = torch.cat(outs, -1).float().numpy(), lse.numpy() * numpy.float32(numpy.log(2))
    return o.reshape(c.b, c.l, c.h, c.dv).transpose(0, 2, 1, 3), lse.reshape(c.b, c.l, c.h).transpose(0, 2, 1)


@functools.partial(jax.jit, static_argnames="by_formula")
def _jax_attention(q, k, v, seen, scale, cap, by_formula):
    """lse is computed here: that of dot_product_attention has the type of q."""
    group = q.shape[1] // k.shape[1]
    s = scale * jax.numpy.einsum("bhld,bhnd->bhln", q.astype("float32"), k.repeat(group, 1).astype("float32"), precision="highest")
    s = jax.numpy.where(seen, jax.numpy.where(cap > 0, cap * jax.numpy.tanh(s / cap), s), -jax.numpy.inf)
    if by_formula:
        o = jax.nn.softmax(s, -1) @ v.repeat(group, 1).astype("float32")
    else:
        o = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, v)), mask=seen[None, None], scale=scale).swapaxes(1, 2)
    return o.astype("float32"), jax.nn.logsumexp(s, -1)


def of_jax(c, dtype, k, v, seen, scale):
    """Keys are padded to one of three lengths, which are compiled. dot_product_attention has no soft cap, and is not compiled for float16 on a CPU."""
    n, cap = next(m for m in (32, 128, 512) if m >= seen.shape[1]), c.settings["soft_cap"]
    k, v = (numpy.pad(x, ((0, 0), (0, 0), (0, n - x.shape[2]), (0, 0))) for x in (k, v))
    seen = numpy.pad(seen, ((0, 0), (0, n - seen.shape[1])))
    q, k, v = (jax.numpy.asarray(x).astype(OF_JAX[dtype]) for x in (c.q, k, v))
    o, lse = _jax_attention(q, k, v, seen, numpy.float32(scale), numpy.float32(cap), bool(cap) or c.d != c.dv or dtype == "F16")
    return numpy.array(o), numpy.array(lse)


def merge_of_torch(o, lse):
    """o [p, b, h, l, d_v], lse [p, b, h, l]"""
    o, lse = torch.from_numpy(o), torch.from_numpy(lse)
    return (torch.softmax(lse, 0)[..., None] * o).sum(0).numpy(), torch.logsumexp(lse, 0).numpy()


def merge_of_flashinfer(o, lse):
    p, b, h, l, d_v = o.shape
    v = torch.from_numpy(o.transpose(1, 3, 0, 2, 4).reshape(b * l, p, h, d_v))
    s = torch.from_numpy(lse.transpose(1, 3, 0, 2).reshape(b * l, p, h)) / numpy.float32(numpy.log(2))
    out, s = cascade._merge_states_reference(v, s)
    return out.numpy().reshape(b, l, h, d_v).transpose(0, 2, 1, 3), s.numpy().reshape(b, l, h).transpose(0, 2, 1) * numpy.float32(numpy.log(2))


def merge_of_jax(o, lse):
    return numpy.array((jax.nn.softmax(lse, 0)[..., None] * o).sum(0)), numpy.array(jax.nn.logsumexp(lse, 0))


KERNELS = {"torch, flash": (functools.partial(of_torch, True), merge_of_torch), "torch, math": (functools.partial(of_torch, False), merge_of_torch),
           "flashinfer": (of_flashinfer, merge_of_flashinfer), "jax": (of_jax, merge_of_jax)}


class Right:
    """A right dump of a kernel, as generate.Run."""

    def __init__(self, kernel, dtype, seed, held=False):
        random = numpy.random.default_rng([len(kernel), list(OF_TORCH).index(dtype), seed, held])
        shapes = HELD if held else SHAPES
        self.fault, self.seed, self.held = "right", seed, held
        self.case = c = generate.Case(random, held, type=dtype, soft_cap=None if kernel == "jax" else False,
                                      shape=shapes[random.integers(len(shapes))] if kernel == "jax" else None)
        if kernel == "flashinfer" and dtype != "BF16":  # whose o is of fewer bits than the rest says: shown, or it would be a fault
            c.has_partials = True
        # What these kernels do not have is added without a second rounding of o: scales of values, and sinks.
        c.settings["v_scale"] = 2.0 ** round(numpy.log2(c.settings["v_scale"]))
        c.sink_at = "merge"
        of_rank, merge = KERNELS[kernel]
        c.partial_type = "BF16" if kernel == "flashinfer" else dtype  # of o, which the kernel returns
        if not c.has_partials and c.out_type == "F32":
            c.out_type = c.partial_type
        s = c.settings
        # A kernel reads keys of 8 bits widened to the type of q, with their scale in that of the scores and in its output.
        partials = []
        for r in range(c.p):
            k, v, seen = c.rank(r)
            v = numpy.where(seen.any(0)[:, None], v, numpy.float32(0))
            o, lse = numpy.zeros((c.b, c.h, c.l, c.dv), "float32"), numpy.full((c.b, c.h, c.l), -numpy.inf, "float32")
            if seen.any():
                own = [numpy.array(x) for x in of_rank(c, dtype, k, v, seen, s["scale"] * s["k_scale"])]
                live = seen.any(1)[:, None]
                o = numpy.where(live, own[0] * numpy.float32(s["v_scale"]), o).astype("float32")
                lse = numpy.where(live[:, 0], own[1], lse).astype("float32")
            partials.append((generate.rounded(o, c.partial_type), lse.astype("float32")))
        o, lse = (numpy.stack(x) for x in zip(*partials))
        if c.sink is not None:
            o = numpy.concatenate([o, 0 * o[:1]])
            lse = numpy.concatenate([lse, numpy.broadcast_to(c.sink[:, None], lse.shape[1:])[None]])
        out, lse = merge(o, lse)
        self.result = {"partials": partials, "out": out, "lse": lse}
        self.dump, self.types = c.dump(self.result)
        self.settings = c.shown_settings()
