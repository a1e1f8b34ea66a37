# SPDX-License-Identifier: Apache-2.0
"""torch.ops.tree_attn: attention, merge, and append and step of a cache, as operators that torch.compile keeps whole.

    import tree_attn.ops
    out, lse = torch.ops.tree_attn.attention(q, k, v, causal=True)
    out, lse = torch.ops.tree_attn.merge(o1, lse1, o2, lse2)
    layer = tree_attn.ops.Layer(tree_attn.Attention(heads=8, head_dim=64))
    layer.append(k, v)                             both inside a compiled function too
    out, lse = layer.step(q)

append and step change a tensor of one element, the state of a Layer, so that a compiler keeps their order and their number. Nothing is
differentiated: inputs that require a gradient are refused.
"""
import itertools
import weakref
from typing import Optional, Tuple

import torch

import tree_attn

_layers = weakref.WeakValueDictionary()  # by number
_numbers = itertools.count()


def _refuse_gradients(*tensors):
    for x in tensors:
        if x is not None and x.requires_grad:  # an operator is not told whether gradients are enabled
            raise ValueError("a tensor requires a gradient, which the output would not have: pass its detach()")


def _sinks(sinks, sink):
    return sinks if sink is None else sink


@torch.library.custom_op("tree_attn::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: Optional[float] = None, causal: bool = False, window: Optional[int] = None,
              sinks: Optional[int] = None, sink: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """tree_attn.attention(); sink: learned logits."""
    _refuse_gradients(q, k, v, sink)
    return tree_attn.attention(q, k, v, scale, causal, window, _sinks(sinks, sink))


@attention.register_fake
def _(q, k, v, scale=None, causal=False, window=None, sinks=None, sink=None):
    _refuse_gradients(q, k, v, sink)
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("tree_attn::merge", mutates_args=())
def merge(o1: torch.Tensor, lse1: torch.Tensor, o2: torch.Tensor, lse2: torch.Tensor, form: str = "natural") -> Tuple[torch.Tensor, torch.Tensor]:
    """tree_attn.merge()."""
    _refuse_gradients(o1, lse1, o2, lse2)
    return tree_attn.merge(o1, lse1, o2, lse2, form)


@merge.register_fake
def _(o1, lse1, o2, lse2, form="natural"):
    _refuse_gradients(o1, lse1, o2, lse2)
    return o1.new_empty(o1.shape), o1.new_empty(o1.shape[:3], dtype=torch.float32)


@torch.library.custom_op("tree_attn::append", mutates_args={"state"})
def append(number: int, state: torch.Tensor, k: Optional[torch.Tensor], v: Optional[torch.Tensor], entry: int = 0, n: Optional[int] = None) -> None:
    """append() of the Layer of a number."""
    _refuse_gradients(k, v)
    _layers[number].attention.append(k, v, entry, n)
    state.add_(1)


@append.register_fake
def _(number, state, k, v, entry=0, n=None):
    _refuse_gradients(k, v)


@torch.library.custom_op("tree_attn::step", mutates_args={"state"})
def step(number: int, state: torch.Tensor, q: torch.Tensor, value_dim: int, causal: bool = False, window: Optional[int] = None, sinks: Optional[int] = None,
         sink: Optional[torch.Tensor] = None, by_heads: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    """step() of the Layer of a number, whose values have value_dim components."""
    _refuse_gradients(q, sink)
    output = _layers[number].attention.step(q, causal, window, _sinks(sinks, sink), by_heads=by_heads)
    state.add_(1)
    return output


@step.register_fake
def _(number, state, q, value_dim, causal=False, window=None, sinks=None, sink=None, by_heads=False):
    _refuse_gradients(q, sink)
    return q.new_empty((*q.shape[:3], value_dim)), q.new_empty(q.shape[:3], dtype=torch.float32)


class Layer:
    """An Attention whose append() and step() are operators."""

    def __init__(self, attention):
        self.attention, self.number, self.value_dim = attention, next(_numbers), attention._out_axes[1]
        with torch.inference_mode(False):  # or it could not change outside of that mode
            self.state = torch.zeros(1, dtype=torch.int64)
        _layers[self.number] = self

    def append(self, k, v=None, entry=0, n=None):
        """Attention.append()."""
        torch.ops.tree_attn.append(self.number, self.state, k, v, entry, n)

    def step(self, q, causal=False, window=None, sinks=None, sink=None, by_heads=False):
        """Attention.step(); sink: learned logits. @returns out in the type of q, lse in float32"""
        return torch.ops.tree_attn.step(self.number, self.state, q, self.value_dim, causal, window, sinks, sink, by_heads)
