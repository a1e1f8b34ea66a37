# SPDX-License-Identifier: Apache-2.0
"""Attention of models of Hugging Face's transformers over ranks, and a cache that keeps the leaves of this rank.

    import tree_attn.hugging_face
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tree_attn")
    cache = tree_attn.hugging_face.Cache(config, group=torch.distributed.group.WORLD)
    with torch.no_grad():
        logits = model(tokens, cache=cache).logits

Every rank runs the whole model; only keys and values are spread. A call takes any number of tokens: chunks of a prompt, one, or a draft, of which
cache.crop(-n) removes the last n. Causal models whose layers see all keys or a window, with learned sinks or without, and no padding: all else is
refused. Needs transformers 5 with AttentionInterface.
"""
import threading

import transformers
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

import tree_attn

_KINDS = {"full_attention", "sliding_attention"}
_waiting = threading.local()  # its layer is the one whose keys the next attend() has to get


def _require(holds, line):
    if not holds:
        raise ValueError(line)


class _Layer(CacheLayerMixin):
    """The cache of one layer: an Attention, opened by the first call that has queries."""

    is_sliding = False
    is_croppable = True

    def __init__(self, group, options):
        super().__init__()
        self._group, self._options, self.attention, self._length = group, options, None, 0

    def lazy_initialization(self, key_states, value_states):
        """Waits for the queries."""

    def update(self, key_states, value_states, *args, **kwargs):
        """The new keys, which carry this layer to attend(). @raises ValueError where another attention has taken those before, which are not all"""
        left, _waiting.layer = getattr(_waiting, "layer", None), None
        _require(left is None, "this cache is for a model with attn_implementation='tree_attn': another attention has seen the new keys alone")
        key_states = key_states.view(key_states.shape)  # a tensor of our own
        key_states.tree_attn_layer = _waiting.layer = self
        return key_states, value_states

    def attend(self, query, key, value, scale, causal, window, sinks):
        """Appends keys and values [b, n_kv, l, d], of which this rank keeps its own, and takes a step."""
        value = value.to(key.dtype)  # autocast has values of another type than rotated keys
        if self.attention is None:
            self.attention = tree_attn.Attention(group=self._group, heads=query.shape[1], kv_heads=key.shape[1], head_dim=key.shape[3],
                                                 value_dim=value.shape[3], batch=key.shape[0], dtype=key.dtype, scale=scale, **self._options)
            self.is_initialized = True
        for entry in range(key.shape[0]):
            self.attention.append(key[entry], value[entry], entry)
        self._length += key.shape[2]
        return self.attention.step(query, causal, window, sinks)[0]

    def get_seq_length(self):
        return self._length

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        return self._length + query_length, 0

    def crop(self, tokens_to_remove):
        """Removes the last -tokens_to_remove positions of all sequences: drafts that were refused."""
        _require(-self._length <= tokens_to_remove <= 0, f"crop({tokens_to_remove}) of {self._length} positions; 0 or a negative number removes the last ones")
        self._truncate(self._length + tokens_to_remove)

    def reset(self):
        self._truncate(0)

    def _truncate(self, n):
        for entry in range(self.attention._out_axes[0][0] if self.attention else 0):
            self.attention.truncate(n, entry)
        self._length = n

    def reorder_cache(self, beam_idx):
        raise ValueError("beams would move sequences, which this cache does not")

    batch_repeat_interleave = batch_select_indices = reorder_cache


class Cache(transformers.Cache):
    """Keys and values of a model, of which this rank keeps its leaves. Options are those of tree_attn.Attention: comm, backend, threads, capacity."""

    def __init__(self, config, group=None, **options):
        config = config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ()) - _KINDS
        _require(not kinds, f"layers of {', '.join(sorted(kinds))} have no such cache: layers that see all keys or a window do")
        super().__init__(layers=[_Layer(group, options) for _ in range(config.num_hidden_layers)])

    def close(self):
        """Closes every layer, on every rank."""
        for layer in self.layers:
            if layer.attention is not None:
                layer.attention.close()


def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, s_aux=None, softcap=None, is_causal=None, **kwargs):
    """The attention of a layer, as AttentionInterface calls it. @returns out [b, l, n_h, d_v], and no weights"""
    expected, _waiting.layer = getattr(_waiting, "layer", None), None
    _require(attention_mask is None, "attn_implementation='tree_attn' takes no padding and no mask: sequences of a batch have one length")
    _require(not dropout, "attn_implementation='tree_attn' has no dropout: call model.eval()")
    _require(softcap is None and kwargs.get("position_bias") is None, "attn_implementation='tree_attn' has no soft cap and no position bias")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    sinks = None if s_aux is None else s_aux.detach()
    layer = getattr(key, "tree_attn_layer", None)
    _require(layer is expected, "attn_implementation='tree_attn' has got other keys than those that its cache gave to this layer: the model changes or shares them")
    if layer is None:
        out, _ = tree_attn.attention(query, key, value, scaling, causal, sliding_window, sinks)
    else:
        out = layer.attend(query, key, value, scaling, causal, sliding_window, sinks)
    return out.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("tree_attn", attend)
AttentionMaskInterface.register("tree_attn", flash_attention_mask)  # None, unless there is padding
