#!/usr/bin/python3
"""Loss, logits and the gradient of every tensor of the gpt and mlp families against PyTorch in float64, on fresh random shapes.

usage: gradients.py MODEL_GRAD [--cases N]     (MODEL_GRAD: the driver built from tests/worker/models/model_grad.c; EBB_SEED replays a run)
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(__file__))
import gpt_torch as oracle

TOLERANCE = 1e-4  # relative to the largest gradient of the tensor


def header(c, samples, batch_max):
    sizes = list(c.get("sizes", [])) + [0] * 16
    return struct.pack("<16s6I16IQ2I", c["family"].encode(), c.get("layers", 0), c.get("width", 0), c.get("heads", 0), c.get("context", 0),
                       c.get("vocab", 0), len(c.get("sizes", [])), *sizes[:16], 0, samples, batch_max)


def run(driver, c, params, first, second, samples, batch_max):
    with tempfile.TemporaryDirectory() as d:
        path_in, path_out = os.path.join(d, "in"), os.path.join(d, "out")
        with open(path_in, "wb") as f:
            f.write(header(c, samples, batch_max) + params.astype("<f4").tobytes() + first.tobytes() + second.tobytes())
        subprocess.run([driver, path_in, path_out], check=True)
        data = open(path_out, "rb").read()
    at, tensors = 8, []
    for _ in range(struct.unpack_from("<Q", data)[0]):
        n = struct.unpack_from("<I", data, at)[0]
        name = data[at + 4:at + 4 + n].decode()
        tensors.append((name, struct.unpack_from("<Q", data, at + 4 + n)[0]))
        at += 12 + n
    loss, eval_loss, accuracy = struct.unpack_from("<3d", data, at)
    at += 24
    numel = sum(n for _, n in tensors)
    grads = np.frombuffer(data, "<f4", numel, at)
    logits = np.frombuffer(data, "<f4", offset=at + 4 * numel)
    return tensors, loss, eval_loss, accuracy, grads, logits


def case(rng, driver, number):
    samples = int(rng.integers(1, 6))
    batch_max = samples + int(rng.integers(0, 4))
    if number % 3 != 2:
        heads = int(rng.integers(1, 5))
        c = {"family": "gpt", "layers": int(rng.integers(1, 4)), "heads": heads, "width": heads * int(rng.integers(8, 24)),
             "context": int(rng.integers(1, 40)), "vocab": int(rng.integers(2, 300))}
        if number == 0:
            c.update(layers=4, heads=4, width=128, context=64, vocab=256)
        shapes = oracle.gpt_shapes(c)
        first = rng.integers(0, c["vocab"], (samples, c["context"])).astype("<i4")
        second = rng.integers(0, c["vocab"], (samples, c["context"])).astype("<i4")
        loss_of = lambda p: oracle.gpt_loss(p, c, torch.from_numpy(first).long(), torch.from_numpy(second).long())
        logits_of = lambda p: oracle.gpt_logits(p, c, torch.from_numpy(first).long())
    else:
        c = {"family": "mlp", "sizes": [int(v) for v in rng.integers(2, 70, int(rng.integers(2, 6)))]}
        shapes = oracle.mlp_shapes(c)
        first = rng.normal(size=(samples, c["sizes"][0])).astype("<f4")
        second = rng.integers(0, c["sizes"][-1], samples).astype("<i4")
        loss_of = lambda p: oracle.mlp_loss(p, c, torch.from_numpy(first).double(), torch.from_numpy(second).long())
        logits_of = None
    # Matrices about as large as training makes them (gain / sqrt(fan_in)): float32 itself loses more than the tolerance in a saturated softmax.
    gain = float(rng.choice([0.1, 0.5, 1.0]))
    values = {n: (rng.normal(size=s) * (gain / np.sqrt(s[-1]) if len(s) == 2 else 0.2) + (1.0 if "ln" in n and n.endswith("weight") else 0.0)).astype("<f4")
              for n, s in shapes.items()}
    flat = np.concatenate([v.ravel() for v in values.values()])
    tensors, loss, eval_loss, _, grads, logits = run(driver, c, flat, first, second, samples, batch_max)
    assert [n for n, _ in tensors] == list(shapes), f"tensor order differs: {tensors}"
    p = {n: torch.from_numpy(v).double().requires_grad_() for n, v in values.items()}
    want = loss_of(p)
    want.backward()
    worst, at, largest = 0.0, 0, max(v.grad.abs().max().item() for v in p.values())
    for name, numel in tensors:
        mine = grads[at:at + numel].astype(np.float64)
        theirs = p[name].grad.numpy().ravel()
        # A tensor whose true gradient is (nearly) nothing, as that of the keys' bias, is held against the model's largest gradient.
        scale = max(np.abs(theirs).max(), 1e-3 * largest)
        error = np.abs(mine - theirs).max() / scale
        if error > TOLERANCE:
            sys.exit(f"FAIL case {number} {c}: gradient of {name} is off by {error:.2e} (largest {scale:.3e})")
        worst = max(worst, error)
        at += numel
    for label, value in (("loss", loss), ("evaluation loss", eval_loss)):
        if abs(value - want.item()) > TOLERANCE * max(1e-3, abs(want.item())):
            sys.exit(f"FAIL case {number} {c}: {label} {value} instead of {want.item()}")
    if logits_of is not None:
        theirs = logits_of(p).detach().numpy().ravel()
        if np.abs(logits - theirs).max() > TOLERANCE * max(1e-3, np.abs(theirs).max()):
            sys.exit(f"FAIL case {number} {c}: logits differ")
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--cases", type=int, default=30)
    args = parser.parse_args()
    seed = int(os.environ.get("EBB_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"seed: EBB_SEED={seed}", flush=True)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    worst = max(case(rng, args.driver, n) for n in range(args.cases))
    print(f"{args.cases} models: every gradient within {worst:.1e} of float64")


main()
