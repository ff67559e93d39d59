"""The gpt and mlp families in PyTorch, written from their definition: the oracle for losses, gradients, logits and whole training runs."""
import math

import torch
import torch.nn.functional as F


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))


def gpt_shapes(c):
    """Ordered {tensor name: shape} of a gpt configuration (dict with layers, width, heads, context, vocab)."""
    w = c["width"]
    shapes = {"wte.weight": (c["vocab"], w), "wpe.weight": (c["context"], w)}
    for l in range(c["layers"]):
        h = f"h.{l}."
        shapes.update({
            h + "ln_1.weight": (w,), h + "ln_1.bias": (w,),
            h + "attn.qkv.weight": (3 * w, w), h + "attn.qkv.bias": (3 * w,),
            h + "attn.proj.weight": (w, w), h + "attn.proj.bias": (w,),
            h + "ln_2.weight": (w,), h + "ln_2.bias": (w,),
            h + "mlp.fc.weight": (4 * w, w), h + "mlp.fc.bias": (4 * w,),
            h + "mlp.proj.weight": (w, 4 * w), h + "mlp.proj.bias": (w,)})
    shapes.update({"ln_f.weight": (w,), "ln_f.bias": (w,)})
    return shapes


def mlp_shapes(c):
    shapes = {}
    for i in range(len(c["sizes"]) - 1):
        shapes[f"fc.{i}.weight"] = (c["sizes"][i + 1], c["sizes"][i])
        shapes[f"fc.{i}.bias"] = (c["sizes"][i + 1],)
    return shapes


def gpt_logits(p, c, tokens):
    """Logits (B, T, vocab) of tokens (B, T)."""
    batch, steps = tokens.shape
    w, heads = c["width"], c["heads"]
    x = p["wte.weight"][tokens] + p["wpe.weight"][:steps]
    mask = torch.ones(steps, steps, dtype=torch.bool).tril()
    for l in range(c["layers"]):
        h = f"h.{l}."
        y = F.layer_norm(x, (w,), p[h + "ln_1.weight"], p[h + "ln_1.bias"], 1e-5)
        q, k, v = F.linear(y, p[h + "attn.qkv.weight"], p[h + "attn.qkv.bias"]).split(w, dim=2)
        q, k, v = (t.view(batch, steps, heads, w // heads).transpose(1, 2) for t in (q, k, v))
        a = (q @ k.transpose(-2, -1)) / math.sqrt(w // heads)
        a = a.masked_fill(~mask, float("-inf")).softmax(-1)
        y = (a @ v).transpose(1, 2).reshape(batch, steps, w)
        x = x + F.linear(y, p[h + "attn.proj.weight"], p[h + "attn.proj.bias"])
        y = F.layer_norm(x, (w,), p[h + "ln_2.weight"], p[h + "ln_2.bias"], 1e-5)
        y = gelu(F.linear(y, p[h + "mlp.fc.weight"], p[h + "mlp.fc.bias"]))
        x = x + F.linear(y, p[h + "mlp.proj.weight"], p[h + "mlp.proj.bias"])
    x = F.layer_norm(x, (w,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return F.linear(x, p["wte.weight"])


def gpt_loss(p, c, tokens, targets):
    logits = gpt_logits(p, c, tokens)
    return F.cross_entropy(logits.reshape(-1, c["vocab"]), targets.reshape(-1))


def mlp_logits(p, c, x):
    last = len(c["sizes"]) - 2
    for i in range(last + 1):
        x = F.linear(x, p[f"fc.{i}.weight"], p[f"fc.{i}.bias"])
        x = torch.relu(x) if i < last else x
    return x


def mlp_loss(p, c, x, y):
    return F.cross_entropy(mlp_logits(p, c, x), y)
