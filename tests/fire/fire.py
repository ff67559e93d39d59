#!/usr/bin/python3
"""Exactly once under fire.

Trains the counter model, whose every step adds exactly 1 to every parameter, while killing its programs at random: SIGKILL to workers, shards,
the coordinator, and now and then to `ebb run` itself (everything dies at once; then `ebb run --resume`). Zombies: a worker is stopped for longer than its
lease, its unit goes to another one, and it comes back with its old pushes. At the end every parameter must equal the number of steps: less is a lost
push, more a doubled one.

    tests/fire/fire.py --kills 200 [--seed N] [--durability journal|fsync|snapshot|all]

A round is one job from start to end; rounds go on until the kills are used up, the last one is left to finish. The seed fixes victims and pauses; what the
programs were doing at that moment is up to the machine.
"""
import argparse
import random
import secrets
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ebbtest import Failed, Run, add_arguments, check, main, send  # noqa: E402

WORKERS = 3
LEASE_S = 1.0
KINDS = {"worker": 50, "shard": 25, "coordinator": 13, "zombie": 10, "everything": 2}  # chances in percent

JOB = """\
name: fire
seed: 7
model: {{family: counter, numel: {numel}}}
data: {{format: none}}
optimizer: {{name: sgd, lr: 1.0}}
durability: {durability}
shards: 2
workers: {{min: {workers}, max: {workers}}}
batch: 1
steps: {steps}
unit_steps: 16
checkpoint: {{journal_bytes: 1048576, interval: 250ms}}
lease: {lease_ms}ms
chunk_elems: 1000
"""


class Fire:
    def __init__(self, args, scratch, durability, kills, rng):
        self.args, self.scratch, self.durability, self.rng = args, scratch, durability, rng
        self.left = kills
        self.count = dict.fromkeys(KINDS, 0)
        self.steps = self.rounds = self.lost = self.doubled = 0
        self.rate = args.steps / args.round_seconds  # steps per second under fire; measured from the second round on

    def all_rounds(self):
        while self.left > 0:
            began = time.monotonic()
            steps = max(200, int(self.rate * self.args.round_seconds))
            self.one_round(steps)
            self.rate = steps / (time.monotonic() - began)

    def one_round(self, steps):
        self.rounds += 1
        folder = self.scratch / f"{self.durability}-{self.rounds}"
        job = folder.with_suffix(".yaml")
        job.write_text(JOB.format(numel=self.args.numel, durability=self.durability, workers=WORKERS, steps=steps, lease_ms=int(LEASE_S * 1000)))
        run = Run(self.args, folder, job).start()
        try:
            self.shoot(run)
            run.finish(120 + 10 * self.args.round_seconds)
            tensors, _ = run.export(folder.with_suffix(".safetensors"))
        finally:
            run.stop()
        values = [v for _, array in tensors.values() for v in array]
        check(len(values) == self.args.numel, f"{len(values)} parameters were exported, expected {self.args.numel}")
        self.steps += steps
        self.lost += max(0, steps - int(min(values)))
        self.doubled += max(0, int(max(values)) - steps)
        check(set(values) == {float(steps)}, f"{folder}: parameters count {min(values):.0f} to {max(values):.0f} steps, expected {steps} everywhere")

    def shoot(self, run):
        """Kills until the run ends or the kills are used up."""
        asleep = {}  # pid -> when to wake it
        quiet_since = time.monotonic()
        while self.left > 0 and run.process.poll() is None:
            time.sleep(self.rng.uniform(0.02, self.args.pause))
            now = time.monotonic()
            for pid in [pid for pid, when in asleep.items() if when <= now]:
                send(pid, signal.SIGCONT)
                del asleep[pid]
            kind = self.rng.choices(list(KINDS), KINDS.values())[0]
            if kind == "everything":
                if not run.children():
                    continue
                for pid in asleep:
                    send(pid, signal.SIGCONT)
                asleep.clear()
                run.process.kill()
                run.process.wait()
                run.resume()
                self.hit(kind)
                continue
            prefix = "worker" if kind == "zombie" else kind
            victims = {name: pid for name, pid in run.children().items() if name.startswith(prefix) and pid not in asleep}
            if not victims:  # not there yet, or between death and replacement
                if now - quiet_since > 60:
                    run.explain()
                    raise Failed(f"no living {prefix} to kill for 60 s")
                continue
            quiet_since = now
            pid = victims[self.rng.choice(sorted(victims))]
            if kind == "zombie":
                if len(asleep) + 1 < WORKERS and send(pid, signal.SIGSTOP):
                    asleep[pid] = now + LEASE_S * self.rng.uniform(1.2, 2.5)
                    self.count[kind] += 1
            elif send(pid, signal.SIGKILL):
                self.hit(kind)
        if run.process.poll() is None:
            time.sleep(max([0.0] + [when - time.monotonic() for when in asleep.values()]))
        for pid in asleep:
            if pid in run.children().values():
                send(pid, signal.SIGCONT)

    def hit(self, kind):
        self.count[kind] += 1
        self.left -= 1


def body(args, scratch):
    seed = args.seed if args.seed is not None else secrets.randbits(32)
    levels = ["journal", "fsync", "snapshot"] if args.durability == "all" else [args.durability]
    print(f"seed {seed}: replay with --seed {seed} --kills {args.kills} --durability {args.durability}", flush=True)
    row = "{:<10}" + "{:>12}" * 10
    print(row.format("durability", "rounds", "worker", "shard", "coordinator", "everything", "(zombies)", "steps", "lost", "doubled", "seconds"), flush=True)
    total, failed = 0, None
    for i, level in enumerate(levels):
        share = args.kills // len(levels) + (i < args.kills % len(levels))
        fire = Fire(args, scratch, level, share, random.Random(f"{seed}/{level}"))
        began = time.monotonic()
        try:
            fire.all_rounds()
        except Failed as why:
            failed = why
        count = fire.count
        total += share - fire.left
        print(row.format(level, fire.rounds, count["worker"], count["shard"], count["coordinator"], count["everything"], count["zombie"], fire.steps, fire.lost,
                         fire.doubled, f"{time.monotonic() - began:.0f}"), flush=True)
        if failed:
            raise failed
    print(f"{total} kills: no step lost, none doubled (95 % bound: {3 / max(total, 1):.4f} per kill)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs over all durability levels (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: a fresh one, printed")
    parser.add_argument("--durability", choices=["journal", "fsync", "snapshot", "all"], default="all")
    parser.add_argument("--numel", type=int, default=20000, help="parameters of the counter (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.5, help="longest pause between two kills in seconds (default: %(default)s)")
    parser.add_argument("--round-seconds", type=float, default=15, help="about how long one job should last (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of the first job; later ones follow the measured rate (default: %(default)s)")
    arguments = parser.parse_args()
    sys.exit(main(lambda scratch: body(arguments, scratch), arguments, "fire"))
