"""Synchronous training with PyTorch: AdamW, clipping, the schedule. With gpt_torch.py the oracle of whole training runs; nothing of ours in it."""
import math

import torch

from gpt_torch import gpt_loss


def loss(p, model, data, offsets):
    """Mean cross entropy in nats over windows of context + 1 bytes of data (uint8) at offsets (int64)."""
    windows = data[offsets[:, None] + torch.arange(model["context"] + 1)].long()
    return gpt_loss(p, model, windows[:, :-1], windows[:, 1:])


def schedule(step, steps, warmup, min_ratio, kind):
    """Factor on the learning rate of step 0, 1, ..."""
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress
    return min_ratio + (1 - min_ratio) * shape


def train(p, data, batches, job, progress=None):
    """Trains p (name -> tensor, updated in place) synchronously over the batches (lists of byte offsets); returns the loss of each step."""
    p = {name: value.requires_grad_(True) for name, value in p.items()}
    opt = job["optimizer"]
    matrices = [value for value in p.values() if value.ndim > 1]
    others = [value for value in p.values() if value.ndim == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": opt["weight_decay"]}, {"params": others, "weight_decay": 0.0}], lr=opt["lr"], betas=opt["betas"], eps=opt["eps"]
    )
    losses = []
    for step, offsets in enumerate(batches):
        for group in adamw.param_groups:
            sched = opt["schedule"]
            group["lr"] = opt["lr"] * schedule(step, len(batches), sched["warmup_steps"], sched["min_lr_ratio"], sched["kind"])
        value = loss(p, job["model"], data, torch.tensor(offsets))
        adamw.zero_grad()
        value.backward()
        if opt["clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(p.values(), opt["clip_norm"])
        adamw.step()
        losses.append(value.item())
        if progress and (step + 1) % 200 == 0:
            print(f"  {progress}: step {step + 1}/{len(batches)}, loss {value.item():.4f}", flush=True)
    for value in p.values():
        value.requires_grad_(False)
    return losses


def validate(p, data, train_bytes, samples, job):
    """Mean loss over the first `samples` held-out windows."""
    total = 0.0
    with torch.no_grad():
        for first in range(0, samples, 64):
            offsets = train_bytes + torch.arange(first, min(first + 64, samples)) * job["model"]["context"]
            total += loss(p, job["model"], data, offsets).item() * len(offsets)
    return total / samples
