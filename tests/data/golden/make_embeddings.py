#!/usr/bin/env python3
"""Reference embeddings of the golden models, by transformers.

usage: python make_embeddings.py [id ...]        (no id: all models)

For each model this writes embeddings.f32 beside its model.safetensors: raw little-endian float32, four rows of hidden_size values, not
normalised: of the short prompt the last token's hidden state after the final norm and the mean over all tokens, then the same of the long
prompt. Means are taken in float64. Needs what make_golden.py needs; for gpt_oss accelerate too; made with torch 2.15.0 and transformers 5.24.0 on a CPU.
"""
import json
import os
import sys
import tempfile

import torch

import make_golden

HERE = os.path.dirname(os.path.abspath(__file__))


def states(model, ids):
    return model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0].double()


def main(ids):
    for name in ids or make_golden.MODELS:
        folder = os.path.join(HERE, name)
        spec = make_golden.MODELS[name]
        with tempfile.TemporaryDirectory() as plain:
            model = make_golden.load(make_golden.plain_fp8(folder, plain) if spec.get("fp8") else folder, spec)
        with open(os.path.join(folder, "prompt.json")) as f:
            prompts = json.load(f)
        rows = []
        for which in ("short", "long"):
            h = states(model, prompts[which])
            rows += [h[-1], h.mean(0)]
        torch.stack(rows).numpy().astype("<f4").tofile(os.path.join(folder, "embeddings.f32"))
        print(name, len(rows[0]), [round(r.norm().item(), 3) for r in rows], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
