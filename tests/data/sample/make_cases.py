#!/usr/bin/env python3
"""make_cases.py - writes cases.txt: requests, logits, and the exact probabilities of the next token, computed with numpy in double precision by the definitions of
vLLM (masks, min_tokens, bias, penalties, min_p, top_k, top_p) and of Hugging Face's typical decoding. Needs numpy; nothing of it is needed to run the tests.

A case whose cuts lie so near a threshold that float32 may decide otherwise is drawn again, so every implementation must have exactly the same support.

    case NAME temperature top_k top_p min_p typical_p repetition presence frequency min_tokens
    prompt N ids / answer N ids / ends N ids / bias N id value ... / allowed N ids / bad N length ids ...
    logits N values / probs N values
"""
import sys

import numpy as np

V = 40
MARGIN = 1e-4


class Near(Exception):
    pass


def keep_until(order, p, mass):
    """How many of them, in this order, until their sum reaches mass."""
    cum = np.cumsum(p[order])
    if np.any(np.abs(cum[:-1] - mass) < MARGIN):
        raise Near
    return int(np.searchsorted(cum, mass)) + 1


def edited(c, logits):
    l = logits.astype(np.float64)
    if c["allowed"]:
        mask = np.ones(V, bool)
        mask[c["allowed"]] = False
        l[mask] = -np.inf
    for word in c["bad"]:
        rest = word[:-1]
        if len(rest) <= len(c["answer"]) and c["answer"][len(c["answer"]) - len(rest):] == rest:
            l[word[-1]] = -np.inf
    if len(c["answer"]) < c["min_tokens"]:
        l[c["ends"]] = -np.inf
    for i, b in c["bias"]:
        l[i] += b
    both = np.unique(c["prompt"] + c["answer"]).astype(int)
    l[both] = np.where(l[both] > 0, l[both] / c["repetition"], l[both] * c["repetition"])
    count = np.bincount(c["answer"], minlength=V)
    l -= c["frequency"] * count
    l -= c["presence"] * (count > 0)
    return l


def probabilities(c, logits):
    l = edited(c, logits)
    if c["temperature"] < 1e-5:
        top = np.sort(l)
        if top[-1] - top[-2] < MARGIN:
            raise Near
        return (np.arange(V) == np.argmax(l)).astype(float)
    p = np.exp((l - l.max()) / c["temperature"])
    if np.any(np.abs(p - c["min_p"]) < MARGIN) and c["min_p"]:
        raise Near
    p[p < c["min_p"]] = 0
    p /= p.sum()
    if c["top_k"] and c["top_k"] < V:
        order = np.argsort(-p, kind="stable")
        if p[order[c["top_k"]]] and p[order[c["top_k"] - 1]] - p[order[c["top_k"]]] < MARGIN * p[order[0]]:
            raise Near
        p[order[c["top_k"]:]] = 0
        p /= p.sum()
    if c["top_p"] < 1:
        order = np.argsort(-p, kind="stable")
        p[order[keep_until(order, p, c["top_p"]):]] = 0
        p /= p.sum()
    if c["typical_p"] < 1:
        some = p > 0
        far = np.full(V, np.inf)
        entropy = -(p[some] * np.log(p[some])).sum()
        far[some] = np.abs(-np.log(p[some]) - entropy)
        order = np.argsort(far, kind="stable")
        n = keep_until(order, p, c["typical_p"])
        if n < some.sum() and far[order[n]] - far[order[n - 1]] < MARGIN:
            raise Near
        p[order[n:]] = 0
        p /= p.sum()
    return p


OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition": 1.0, "presence": 0.0, "frequency": 0.0, "min_tokens": 0,
       "prompt": [], "answer": [], "ends": [], "bias": [], "allowed": [], "bad": []}
HISTORY = {"prompt": [1, 2, 3, 3, 9, 1], "answer": [4, 2, 4, 4, 7]}
CASES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_k_1": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "top_p_tiny": {"top_p": 0.01},
    "min_p": {"min_p": 0.12},
    "typical_p": {"typical_p": 0.5},
    "typical_p_wide": {"typical_p": 0.95},
    "typical_p_tiny": {"typical_p": 0.01},
    "repetition": {**HISTORY, "repetition": 1.4},
    "repetition_rewards": {**HISTORY, "repetition": 0.6},
    "repetition_prompt_only": {"prompt": [0, 5, 5, 6], "repetition": 2.0},
    "presence": {**HISTORY, "presence": 1.5},
    "presence_rewards": {**HISTORY, "presence": -1.5},
    "presence_not_of_the_prompt": {"prompt": [0, 5, 5, 6], "presence": 2.0, "frequency": 2.0},
    "frequency": {**HISTORY, "frequency": 0.7},
    "frequency_rewards": {**HISTORY, "frequency": -0.7},
    "presence_beside_repetition": {**HISTORY, "bias": [[1, 5.0], [3, 5.0], [9, 5.0]], "repetition": 1.1, "presence": 2.0},
    "all_penalties": {**HISTORY, "repetition": 1.3, "presence": 0.4, "frequency": 0.3},
    "bias": {"bias": [[3, 4.0], [11, -100.0], [12, 2.5]]},
    "bias_before_penalties": {**HISTORY, "bias": [[4, 5.0], [9, -3.0]], "repetition": 1.5, "frequency": 0.2},
    "min_tokens": {**HISTORY, "min_tokens": 6, "ends": [0, 8, 17]},
    "min_tokens_reached": {**HISTORY, "min_tokens": 5, "ends": [0, 8, 17]},
    "allowed": {"allowed": [2, 3, 5, 8, 13, 21, 34]},
    "allowed_one": {"allowed": [17]},
    "bad_word": {**HISTORY, "bad": [[6]]},
    "bad_words": {**HISTORY, "bias": [[12, 4.0], [13, 4.0]], "bad": [[7, 10], [4, 7, 11], [4, 12], [9, 4, 2, 4, 4, 7, 13], [2, 4, 4, 7, 14]]},
    "greedy": {**HISTORY, "temperature": 0.0, "repetition": 1.8, "presence": 1.0},
    "greedy_bias": {"temperature": 0.0, "bias": [[33, 20.0]]},
    "top_k_top_p": {"top_k": 12, "top_p": 0.8},
    "min_p_top_k_top_p": {"temperature": 1.3, "min_p": 0.04, "top_k": 15, "top_p": 0.9},
    "top_k_typical": {"top_k": 15, "typical_p": 0.6},
    "top_p_typical": {"temperature": 1.5, "top_p": 0.9, "typical_p": 0.6},
    "min_p_typical": {"min_p": 0.05, "typical_p": 0.7},
    "everything": {**HISTORY, "temperature": 1.4, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9, "repetition": 1.2, "presence": 0.3, "frequency": 0.2,
                   "min_tokens": 9, "ends": [0, 5], "bias": [[8, 1.5], [30, -2.0]], "allowed": list(range(0, 40, 2)) + [7, 9], "bad": [[7, 6], [12]]},
    "penalties_then_cuts": {**HISTORY, "temperature": 0.8, "repetition": 1.5, "frequency": 0.5, "top_k": 10, "top_p": 0.85},
}


def line(out, name, values):
    print(name, len(values), *values, file=out)


def main():
    rng = np.random.default_rng(20)
    with open(sys.argv[1] if len(sys.argv) > 1 else "cases.txt", "w") as out:
        for name, change in CASES.items():
            c = {**OFF, **change}
            while True:
                logits = np.round(rng.normal(0, 2, V), 3).astype(np.float32)
                try:
                    p = probabilities(c, logits)
                    break
                except Near:
                    pass
            print("case", name, *(c[k] for k in list(OFF)[:9]), file=out)
            for k in ("prompt", "answer", "ends"):
                line(out, k, c[k])
            print("bias", len(c["bias"]), *(x for b in c["bias"] for x in b), file=out)
            line(out, "allowed", c["allowed"])
            line(out, "bad", [x for w in c["bad"] for x in [len(w), *w]])
            line(out, "logits", [f"{x:.3f}" for x in logits])
            line(out, "probs", [f"{x:.9g}" for x in p])


main()
