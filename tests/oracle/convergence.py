#!/usr/bin/python3
"""Convergence against an independent oracle.

The same GPT is trained by `ebb run` and by PyTorch (gpt_torch.py, train_torch.py): same initial values (exported from the shards), same batches, AdamW with warm-up, cosine schedule
and clipping.

  1. One worker, one step in flight, so training is synchronous: the loss of each of the first 200 steps agrees with PyTorch's to 1e-3 relative.
  2. Two and four workers, asynchronous, with the defaults of a job file: after the same number of samples the held-out loss is within 3 % of PyTorch's. The
     learning rate is one that four workers bear (docs/consistency.md says why and which).

    tests/oracle/convergence.py            # 118,016 parameters, 2000 steps: about a minute (ctest oracle.convergence)
    tests/oracle/convergence.py --full     # the model of examples/kjv-gpt.yaml, 12,000 steps at 1e-3: about an hour
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
import torch  # noqa: E402

import train_torch  # noqa: E402
from ebbtest import Run, add_arguments, check, kjv, main  # noqa: E402

SMALL = {"layers": 2, "width": 64, "heads": 2, "context": 32, "vocab": 256}
FULL = {"layers": 4, "width": 128, "heads": 4, "context": 64, "vocab": 256}


def make_job(args, data, model, steps):
    return {
        "name": "oracle",
        "seed": args.seed,
        "model": {"family": "gpt", **model},
        "data": {"path": str(data), "format": "bytes", "val_fraction": 0.05},
        "optimizer": {"name": "adamw", "lr": args.lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0,
                      "schedule": {"kind": "cosine", "warmup_steps": args.warmup, "min_lr_ratio": 0.1}},
        "shards": 2,
        "workers": {"min": 1, "max": 1, "threads": 1},
        "batch": args.batch,
        "steps": steps,
        "unit_steps": 16,
        "eval": {"samples_max": args.val_samples},
    }  # fmt: skip


def run_job(args, scratch, name, job, log_losses=False):
    """Trains to the end; returns exported parameters, the losses by (stream, seq), and the last evaluation."""
    path = scratch / f"{name}.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    folder = scratch / name
    run = Run(args, folder, path, env={"EBB_LOG": "debug"} if log_losses else None).start()
    try:
        run.finish(args.timeout)
        tensors, metadata = run.export(scratch / f"{name}.safetensors")
    finally:
        run.stop()
    parameters = {key: torch.frombuffer(bytearray(values.tobytes()), dtype=torch.float32).reshape(shape).clone() for key, (shape, values) in tensors.items()}
    losses = {}
    if log_losses:
        for line in (folder / "logs/worker-0.log").read_text().splitlines():
            if " event=step " in line:
                fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
                losses[int(fields["stream"]), int(fields["seq"])] = float(fields["loss"])
    return parameters, losses


def batches_of(args, data, model, steps):
    """[(stream, seq, offsets)], train bytes, held-out samples."""
    program = Path(args.build) / "tests/oracle/oracle_batches"
    words = [program, data, model["context"], 0.05, args.batch, 16, steps, args.seed]
    lines = subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    _, train_bytes, samples = lines.pop().split()
    rows = [list(map(int, line.split())) for line in lines]
    return [(row[0], row[1], row[2:]) for row in rows], int(train_bytes), int(samples)


def body(args, scratch):
    torch.set_num_threads(2 if args.full else 1)  # the small model gains nothing from two, and spinning threads lose much on a busy machine
    model = FULL if args.full else SMALL
    text = kjv(scratch)
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
    steps = args.steps
    plan, train_bytes, held_out = batches_of(args, text, model, steps)
    val_samples = min(held_out, args.val_samples)
    job = make_job(args, text, model, steps)

    # A job with learning rate 0 ends with the values it began with.
    still = make_job(args, text, model, 1)
    still["optimizer"]["lr"] = 0.0
    initial, _ = run_job(args, scratch, "initial", still)
    print(f"{sum(p.numel() for p in initial.values())} parameters, {steps} steps of {args.batch} samples, seed {args.seed}", flush=True)

    oracle = {name: value.clone() for name, value in initial.items()}
    oracle_losses = train_torch.train(oracle, data, [offsets for _, _, offsets in plan], job, "PyTorch")
    sync = train_torch.validate(oracle, data, train_bytes, val_samples, job)
    print(f"PyTorch, synchronous: held-out loss {sync:.4f}", flush=True)

    one = make_job(args, text, model, steps)
    one["consistency"] = {"inflight_max": 1}
    ours, losses = run_job(args, scratch, "workers-1", one, log_losses=True)
    check(len(losses) == steps, f"the worker logged the losses of {len(losses)} steps, expected {steps}")
    worst, where = 0.0, 0
    for step, (stream, seq, _) in enumerate(plan[: args.compare]):
        error = abs(losses[stream, seq] - oracle_losses[step]) / oracle_losses[step]
        if error > worst:
            worst, where = error, step
    value = train_torch.validate(ours, data, train_bytes, val_samples, job)
    print(f"1 worker: first {min(args.compare, steps)} step losses within {worst:.1e} relative of PyTorch's (worst at step {where}); held-out loss {value:.4f}", flush=True)
    check(worst <= 1e-3, f"at step {where} our loss is {losses[plan[where][0], plan[where][1]]:.6f}, PyTorch's {oracle_losses[where]:.6f}")

    for workers in args.workers:
        many = make_job(args, text, model, steps)
        many["workers"] = {"min": workers, "max": workers, "threads": 1}
        ours, _ = run_job(args, scratch, f"workers-{workers}", many)
        value = train_torch.validate(ours, data, train_bytes, val_samples, job)
        ratio = value / sync - 1
        print(f"{workers} workers, asynchronous: held-out loss {value:.4f}, {100 * ratio:+.2f} % of the synchronous one", flush=True)
        check(ratio <= args.limit, f"with {workers} workers the held-out loss is {value:.4f}, more than {100 * args.limit:.0f} % above {sync:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="the model of examples/kjv-gpt.yaml, 12,000 steps at rate 1e-3 (about an hour)")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, help="default: 3e-4, with --full 1e-3")
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--compare", type=int, default=200, help="steps whose losses are compared (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="*")
    parser.add_argument("--limit", type=float, default=0.03, help="allowed excess of the held-out loss, as a fraction (default: %(default)s)")
    parser.add_argument("--val-samples", type=int, default=1024)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds one job may take (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.workers = arguments.workers or [2, 4]
    arguments.steps = arguments.steps or (12000 if arguments.full else 2000)
    arguments.lr = arguments.lr or (1e-3 if arguments.full else 3e-4)
    arguments.batch = arguments.batch or (16 if arguments.full else 8)
    sys.exit(main(lambda scratch: body(arguments, scratch), arguments, "convergence"))
