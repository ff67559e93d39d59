#!/usr/bin/env python3
"""Oracle of ps/optimizer.c: torch.optim's equations in float64, against the C driver given as the only argument.

Each case runs 40 updates on the same float32 inputs. Allowed error: float32 rounding, accumulated over the updates. Where torch itself is
installed its optimizers (float64) are compared with these equations too, so that the equations stay honest."""
import math
import random
import struct
import subprocess
import sys

N, UPDATES = 37, 40


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def schedule(c, t):  # t: updates done before
    if t < c["warmup"]:
        return (t + 1) / c["warmup"]
    if c["schedule"] == "constant":
        return 1.0
    span = max(1, c["total"] - c["warmup"])
    p = min(1.0, (t - c["warmup"]) / span)
    shape = 0.5 * (1 + math.cos(math.pi * p)) if c["schedule"] == "cosine" else 1 - p
    return c["floor"] + (1 - c["floor"]) * shape


def step(c, t, lr, p, slots, g):
    """One update of one element; t counts from 1. Returns the new parameter; slots change in place."""
    wd, name = c["wd"], c["name"]
    if name == "adamw":
        p *= 1 - lr * wd
    else:
        g = g + wd * p
    if name == "sgd":
        return p - lr * g
    if name == "momentum":
        slots[0] = c["momentum"] * slots[0] + g
        return p - lr * (g + c["momentum"] * slots[0] if c["nesterov"] else slots[0])
    if name == "adagrad":
        slots[0] += g * g
        return p - lr * g / (math.sqrt(slots[0]) + c["eps"])
    b1, b2 = c["beta1"], c["beta2"]
    slots[0] = b1 * slots[0] + (1 - b1) * g
    slots[1] = b2 * slots[1] + (1 - b2) * g * g
    denom = math.sqrt(slots[1]) / math.sqrt(1 - b2 ** t) + c["eps"]
    return p - lr / (1 - b1 ** t) * slots[0] / denom


def ahead(c, t, p, slots, weight):
    """Where p will be c["ahead"] updates after update t if only the momentum acts: the sum of its steps, each beta times the one before."""
    adam = c["name"] in ("adam", "adamw")
    beta = c["beta1"] if adam else c["momentum"] if c["name"] == "momentum" else 0.0
    if beta == 0.0:
        return p
    lr = c["lr"] * schedule(c, t) * c["scale"] * weight
    direction = slots[0]
    if adam:
        direction = slots[0] / (1 - c["beta1"] ** t) / (math.sqrt(slots[1] / (1 - c["beta2"] ** t)) + c["eps"])
    whole = int(c["ahead"])
    steps = [beta ** i for i in range(1, whole + 1)]
    if c["ahead"] > whole:  # between two whole numbers of updates: the same curve
        steps = [beta * (1 - beta ** c["ahead"]) / (1 - beta)]
    if c["nesterov"]:  # a step without gradient moves by mu b of the decayed b
        steps = [beta * step for step in steps]
    return p - lr * math.fsum(steps) * direction


def run_driver(driver, c, init, weights, grads):
    head = [c["name"]] + [float(c[k]).hex() for k in ("lr", "beta1", "beta2", "eps", "momentum")] + [str(int(c["nesterov"]))]
    head += [float(c["wd"]).hex(), float(c["scale"]).hex(), c["schedule"], str(c["warmup"]), str(c["total"]), float(c["floor"]).hex(), float(c["ahead"]).hex()]
    lines = [" ".join(head + [str(N), str(UPDATES)]), " ".join(x.hex() for x in init)]
    for w, g in zip(weights, grads):
        lines.append(w.hex() + " " + " ".join(x.hex() for x in g))
    out = subprocess.run([driver], input="\n".join(lines), capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit("driver failed: " + out.stderr)
    return [[float.fromhex(x) for x in line.split()] for line in out.stdout.splitlines()]


def check_torch(c, init, grads):
    """The equations above against torch.optim in float64 (constant schedule, weight 1)."""
    try:
        import torch
    except ImportError:
        return False
    p = torch.tensor(init, dtype=torch.float64, requires_grad=True)
    kw = dict(lr=c["lr"], weight_decay=c["wd"])
    opt = {"sgd": lambda: torch.optim.SGD([p], **kw),
           "momentum": lambda: torch.optim.SGD([p], momentum=c["momentum"], nesterov=c["nesterov"], **kw),
           "adagrad": lambda: torch.optim.Adagrad([p], eps=c["eps"], **kw),
           "adam": lambda: torch.optim.Adam([p], betas=(c["beta1"], c["beta2"]), eps=c["eps"], **kw),
           "adamw": lambda: torch.optim.AdamW([p], betas=(c["beta1"], c["beta2"]), eps=c["eps"], **kw)}[c["name"]]()
    ours, slots = list(init), [[0.0, 0.0] for _ in init]
    for t, g in enumerate(grads, 1):
        p.grad = torch.tensor(g, dtype=torch.float64)
        opt.step()
        ours = [step(c, t, c["lr"], ours[i], slots[i], g[i]) for i in range(N)]
    worst = max(abs(a - b) / (abs(b) + 1e-3) for a, b in zip(ours, p.tolist()))
    if worst > 1e-9:
        sys.exit(f"equations of {c['name']} differ from torch by {worst:g}")
    return True


def main():
    driver = sys.argv[1]
    seed = random.SystemRandom().randrange(1 << 32) if len(sys.argv) < 3 else int(sys.argv[2])
    print(f"seed: {seed} (second argument replays it)")
    rng = random.Random(seed)
    base = dict(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, momentum=0.9, nesterov=False, wd=0.0, scale=1.0, schedule="constant", warmup=0,
                total=UPDATES, floor=0.1, ahead=3)
    cases = []
    for name in ("sgd", "momentum", "adagrad", "adam", "adamw"):
        cases.append(dict(base, name=name))
        cases.append(dict(base, name=name, wd=0.1, beta1=0.8, beta2=0.95, momentum=0.7, schedule="cosine", warmup=7, scale=0.3, ahead=rng.choice([0, 1, 2.5, 7])))
        cases.append(dict(base, name=name, wd=0.01, schedule="linear", warmup=3, lr=0.05, floor=0.0))
    cases.append(dict(base, name="momentum", nesterov=True, wd=0.1))
    torch_seen = False
    for c in cases:
        init = [f32(rng.gauss(0, 1)) for _ in range(N)]
        grads = [[f32(rng.gauss(0, 1) * 10 ** rng.uniform(-3, 1)) for _ in range(N)] for _ in range(UPDATES)]
        weights = [f32(rng.choice([1.0, 0.5, 1 / 3])) for _ in range(UPDATES)]
        got = run_driver(driver, c, init, weights, grads)
        p, slots = list(init), [[0.0, 0.0] for _ in range(N)]
        arrays = {"sgd": 1, "momentum": 2, "adagrad": 2, "adam": 3, "adamw": 3}[c["name"]]
        assert len(got) == (arrays + 1) * UPDATES, "driver printed the wrong number of lines"
        scale = [1.0] * (arrays + 1)  # largest magnitude seen, per array: what rounding is relative to
        worst = 0.0
        for t in range(1, UPDATES + 1):
            lr = c["lr"] * schedule(c, t - 1) * c["scale"] * weights[t - 1]
            for i in range(N):
                p[i] = step(c, t, lr, p[i], slots[i], grads[t - 1][i])
            for a in range(arrays + 1):
                want = p if a == 0 else [s[a - 1] for s in slots] if a < arrays else [ahead(c, t, p[i], slots[i], weights[t - 1]) for i in range(N)]
                row = got[(t - 1) * (arrays + 1) + a]
                for i in range(N):
                    scale[a] = max(scale[a], abs(want[i]))
                    error = abs(row[i] - want[i]) / (abs(want[i]) + 0.01 * scale[a])
                    worst = max(worst, error)
                    if error > 2e-5:
                        sys.exit(f"{c}: update {t} array {a} element {i}: got {row[i]!r}, want {want[i]!r} (relative {error:g})")
        torch_seen |= check_torch(c, init, grads)
        print(f"{c['name']:9s} {c['schedule']:9s} wd {c['wd']:<5} worst relative error {worst:.2e}")
    print("torch compared as well" if torch_seen else "torch is not installed: only the equations were compared")


main()
