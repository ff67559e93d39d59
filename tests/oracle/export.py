#!/usr/bin/python3
"""What `ebb export` writes opens with the safetensors package, and PyTorch computes the same logits from it to 1e-4.

safetensors is not in Debian 12: a venv in the build folder (over Debian's packages, so with Debian's torch) gets it from PyPI.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
from ebbtest import Run, add_arguments, check, kjv, main  # noqa: E402

MODEL = {"layers": 2, "width": 64, "heads": 2, "context": 32, "vocab": 256}
JOB = """\
name: export
seed: 3
model: {{family: gpt, layers: 2, width: 64, heads: 2, context: 32, vocab: 256}}
data: {{path: {data}, format: bytes, val_fraction: 0.05}}
optimizer: {{name: adamw, lr: 2.0e-3, weight_decay: 0.1, clip_norm: 1.0}}
shards: 2
workers: {{min: 2, max: 2, threads: 1}}
batch: 8
steps: 150
unit_steps: 10
eval: {{samples_max: 256}}
"""


def enter_venv(build):
    """Runs this script again by a Python that has safetensors."""
    try:
        import safetensors.torch  # noqa: F401
        return
    except ImportError:
        pass
    venv = Path(build).resolve() / "venv"
    python = venv / "bin/python3"
    check_call = subprocess.check_call
    if os.environ.get("EBB_IN_VENV"):
        sys.exit("safetensors is not in the venv although it was just installed there")
    if not python.exists():
        check_call(["/usr/bin/python3", "-m", "venv", "--system-site-packages", str(venv)])
    if subprocess.call([str(python), "-c", "import safetensors.torch"], stderr=subprocess.DEVNULL) != 0:
        check_call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "safetensors"])
    os.environ["EBB_IN_VENV"] = "1"
    os.execv(python, [str(python), *sys.argv])


def our_logits(args, scratch, parameters, tokens):
    import torch

    flat, text, out = scratch / "parameters", scratch / "tokens", scratch / "logits"
    flat.write_bytes(b"".join(value.contiguous().numpy().tobytes() for value in parameters))
    text.write_bytes(tokens)
    words = [Path(args.build) / "tests/oracle/oracle_logits", *MODEL.values(), flat, text, out]
    subprocess.run(list(map(str, words)), check=True)
    return torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32).reshape(len(tokens), MODEL["vocab"])


def body(args, scratch):
    import safetensors
    import safetensors.torch
    import torch

    import gpt_torch

    text = kjv(scratch)
    job = scratch / "job.yaml"
    job.write_text(JOB.format(data=text))
    run = Run(args, scratch / "run", job).start()
    file, state = scratch / "model.safetensors", scratch / "state.safetensors"
    try:
        run.finish(300)
        order, _ = run.export(file)  # our own reader: keeps the order in the file, which is the manifest's
        done = run.tool("export", run.folder, "--out", state, "--optimizer")
        check(done.returncode == 0, f"ebb export --optimizer: {done.stderr.strip()}")
    finally:
        run.stop()
    parameters = safetensors.torch.load_file(str(file))
    check(set(parameters) == set(order), "the package and our reader see different tensors")
    for name, (shape, values) in order.items():
        check(list(parameters[name].shape) == shape and parameters[name].flatten().tolist() == values.tolist(), f"{name} differs between readers")
    with safetensors.safe_open(str(file), "pt") as opened:
        print("metadata:", opened.metadata())

    tokens = text.read_bytes()[5000 : 5000 + MODEL["context"]]
    ours = our_logits(args, scratch, [parameters[name] for name in order], tokens)
    theirs = gpt_torch.gpt_logits(parameters, MODEL, torch.tensor([list(tokens)]))[0]
    error = (ours - theirs).abs().max().item()
    print(f"{len(parameters)} tensors; logits of {len(tokens)} tokens differ by at most {error:.1e} (largest logit {theirs.abs().max().item():.2f})")
    check(error <= 1e-4, f"logits differ by {error:.2e}")

    whole = safetensors.torch.load_file(str(state))
    extra = sorted(set(whole) - set(parameters))
    check(len(extra) >= 2 * len(parameters), f"--optimizer should add two slots per tensor, it added {len(extra)} tensors")
    for name, value in parameters.items():
        check(torch.equal(whole[name], value), f"{name} differs with --optimizer")
    print(f"--optimizer adds {len(extra)} tensors, the first is {extra[0]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    enter_venv(arguments.build)
    sys.exit(main(lambda scratch: body(arguments, scratch), arguments, "export"))
