#!/usr/bin/python3
"""What the ebb command says to wrong words, folders and files: one clear line, the right exit status, nothing changed.

Starts no programs of a run; bad jobs and whole runs are tests/e2e.
"""
import argparse
import fcntl
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ebbtest import add_arguments, check, ebb_path, main  # noqa: E402

GPT = """name: tiny
model: {family: gpt, layers: 1, width: 16, heads: 2, context: 16, vocab: 256}
data: {path: text.txt, format: bytes, val_fraction: 0.1}
optimizer: {name: adamw, lr: 1.0e-3}
shards: 2
workers: {min: 1, max: 2}
batch: 4
steps: 20
"""
MARK = "# The effective job of this run, written by ebb run.\n"
MLP = "name: m\nmodel: {family: mlp, sizes: [2, 4, 2]}\ndata: {path: t.csv, format: csv, val_fraction: 0.25}\noptimizer: {name: sgd, lr: 0.1}\nsteps: 5\n"


def tree(folder):
    return sorted((str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if not p.is_dir())


class Cli:
    def __init__(self, args, scratch):
        self.ebb, self.cwd, self.n = ebb_path(args.build), scratch, 0

    def call(self, *words, env=None):
        return subprocess.run([str(self.ebb), *map(str, words)], cwd=self.cwd, capture_output=True, text=True, errors="replace", timeout=60,
                              stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))  # fmt: skip

    def refused(self, what, words, status, *contains, env=None):
        """One line on stderr (argp adds a second one that names --help), nothing on stdout, the exit status, and no file touched."""
        before = tree(self.cwd)
        done = self.call(*words, env=env)
        lines = done.stderr.splitlines()
        print(f"  {done.returncode:>3}  {what}: {lines[0] if lines else '(nothing)'}", flush=True)
        check(done.returncode == status, f"{what}: exit status {done.returncode}, expected {status}: {done.stderr}")
        if len(lines) == 2 and lines[1].startswith("Try `ebb"):
            lines.pop()
        check(len(lines) == 1, f"{what}: {len(lines)} lines on stderr: {done.stderr}")
        check(done.stdout == "", f"{what}: something on stdout: {done.stdout}")
        for word in contains:
            check(str(word) in lines[0], f"{what}: the line does not say {str(word)!r}: {lines[0]}")
        check(tree(self.cwd) == before, f"{what}: files were changed")
        self.n += 1

    def well(self, what, words, *contains):
        done = self.call(*words)
        check(done.returncode == 0, f"{what}: exit status {done.returncode}: {done.stderr}")
        for word in contains:
            check(word in done.stdout, f"{what}: the output does not say {word!r}: {done.stdout}")
        self.n += 1
        return done.stdout


def verbs(c):
    done = c.call()
    check(done.returncode == 64 and "Usage" in done.stderr and done.stdout == "", "no verb: usage on stderr and 64 were expected")
    c.refused("unknown verb", ["stauts"], 64, '"stauts"', '"status"')
    c.refused("unknown verb, near to nothing", ["xxxxxxxxxxxx"], 64, '"xxxxxxxxxxxx"; ebb --help')
    c.well("help", ["--help"], "run", "status", "events", "export", "sample", "version")
    c.well("version", ["version"], "ebb 0.")
    for verb in ("run", "status", "events", "export", "sample"):
        c.well(f"{verb} --help", [verb, "--help"], f"Usage: ebb {verb}")
        c.refused(f"{verb}: unknown option", [verb, "--nonsense"], 64, "nonsense")
        if verb != "run":
            c.refused(f"{verb}: two runs", [verb, "a", "b"], 64)
            c.refused(f"{verb}: no run anywhere", [verb, *(["--out", "x"] if verb == "export" else [])], 66, "./runs", "ebb run")
            c.refused(f"{verb}: not a run", [verb, "text.txt", *(["--out", "x"] if verb == "export" else [])], 66, "text.txt", "job.yaml")


def run_words(c):
    c.refused("no job", ["run"], 64, "job file")
    c.refused("two jobs", ["run", "gpt.yaml", "gpt.yaml"], 64)
    c.refused("resume and force", ["run", "gpt.yaml", "--resume", "--force"], 64, "--resume", "--force")
    c.refused("resume without a folder", ["run", "--resume"], 66, "./runs")
    for option in ("--workers", "--steps"):
        for value in ("0", "-1", "abc", "3x", "", "99999999999999999999"):
            c.refused(f"{option} {value!r}", ["run", "gpt.yaml", f"{option}={value}"], 64, option, value)
    c.refused("--workers beyond the bound", ["run", "gpt.yaml", "--workers", "1025"], 64, "1024")
    c.refused("--data is not there", ["run", "gpt.yaml", "--data", "absent.txt"], 66, "absent.txt")
    c.refused("more shards than chunks", ["run", "gpt.yaml", "--shards-do-not-exist"], 64, "shards-do-not-exist")
    (c.cwd / "shards.yaml").write_text(GPT.replace("shards: 2", "shards: 999"))
    c.refused("more shards than chunks", ["run", "shards.yaml", "--dir", "r"], 65, "chunks", "999 shards")
    c.refused("--http beyond ports", ["run", "gpt.yaml", "--http", "65536"], 64, "--http", "65535")
    c.refused("programs are missing", ["run", "gpt.yaml", "--dir", "r"], 66, "ebb-coordinator", "EBB_BIN_DIR", env={"EBB_BIN_DIR": str(c.cwd)})
    (c.cwd / "many.yaml").write_text(GPT.replace("shards: 2", "shards: 400").replace("min: 1, max: 2", "min: 1000, max: 1000"))
    c.refused("more programs than can be", ["run", "many.yaml", "--dir", "r"], 65, "1401", "1280")
    own = c.cwd / "own"
    (own / "coordinator").mkdir(parents=True)
    (own / "coordinator" / "code.c").write_text("mine")
    for force in ([], ["--force"]):
        c.refused(f"a folder that isn't a run's {force}", ["run", "gpt.yaml", "--dir", own, *force], 69, "coordinator", "--dir")
    before = tree(c.cwd)
    out = c.well("dry run", ["run", "gpt.yaml", "--dry-run", "--workers", "2", "--steps", "7"], "steps: 7", "2 workers", "2 shards", "runs/tiny")
    check(tree(c.cwd) == before and not (c.cwd / "runs").exists(), "--dry-run left something behind")
    (c.cwd / "printed.yaml").write_text(out)
    check(c.well("dry run of what it printed", ["run", "printed.yaml", "--dry-run"]).split("\n# would")[0] == out.split("\n# would")[0],
          "the printed job, read again, prints another job")  # fmt: skip


def folders(c):
    run = c.cwd / "stopped"
    run.mkdir()
    (run / "job.yaml").write_text(MARK + GPT.replace("text.txt", str(c.cwd / "text.txt")))
    (run / "lock").touch()
    c.refused("status of an unfinished run", ["status", run], 69, run, "--resume")
    c.refused("folder holds an unfinished run", ["run", "gpt.yaml", "--dir", run], 69, "unfinished", "--resume", "--force")
    c.refused("resume with another job", ["run", "gpt.yaml", "--dir", run, "--resume", "--steps", "9"], 65, run, "--force")
    c.refused("sample without a model", ["sample", run], 66, run)
    c.refused("sample --live of a dead run", ["sample", run, "--live"], 66, run, "not running")

    with open(run / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        c.refused("run in use", ["run", "gpt.yaml", "--dir", run, "--resume"], 69, run, "in use")
        c.refused("status, nobody answers", ["status", run], 69, run, "answer")

    (run / "result.json").write_text('{"state": "STOPPED", "steps_done": 7, "steps_total": 20, "evals": [], "reason": ""}')
    c.well("status of a stopped run", ["status", run], "STOPPED", "7 of 20", "--resume")
    c.refused("folder holds a stopped run", ["run", "gpt.yaml", "--dir", run], 69, "unfinished", "--resume", "--force")
    c.refused("resume, a folder in the job file's place", ["run", "--resume", run, "--steps", "9"], 65, run, "--force", "steps: 20", "steps: 9")
    (run / "result.json").write_text('{"state": "SUCCEEDED", "steps_done": 20, "steps_total": 20, "evals": [{"loss": 2.5}]}')
    c.well("status of a finished run", ["status", run], "SUCCEEDED", "20 of 20", "2.5")
    check(json.loads(c.well("status as JSON", ["status", run, "--json"]))["steps_done"] == 20, "status --json is not the result")
    c.refused("folder holds a finished run", ["run", "gpt.yaml", "--dir", run], 69, "finished")
    (run / "result.json").write_text('{"state": "SUCC')
    c.refused("damaged result.json", ["status", run], 65, "result.json")

    # A log that was cut while being written, and begun again by a resumed run: each event once, the rest is passed over.
    event = '{"id":%d,"unix_ms":1700000000123,"kind":"%s","subject":"worker-0","text":"pid=1"}\n'
    (run / "events.log").write_text(event % (1, "worker-joined") + event % (2, "worker-died") + '{"id":3,"unix\n' + event % (1, "worker-joined") + event % (4, "job-succeeded"))
    lines = c.well("events of a dead run", ["events", run, "--json"]).splitlines()
    check([json.loads(line)["id"] for line in lines] == [1, 2, 4], f"events: {lines}")
    c.well("events --follow of a dead run ends", ["events", run, "--follow"], "worker-died", "worker-0")


def models(c):
    run = c.cwd / "stopped"

    def model(header, data=b""):
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)  # aligned
        (run / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)

    model(b"[]      ")
    c.refused("damaged model", ["sample", run], 65, "model.safetensors")
    model({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    c.refused("model of another job", ["sample", run], 65, "tensor")
    for option, value in (("--bytes", "0"), ("--bytes", "x"), ("--temperature", "-1"), ("--temperature", "nan"), ("--top-k", "-1"), ("--seed", "1e99")):
        c.refused(f"{option} {value}", ["sample", run, option, value], 64, option, value)
    c.refused("export without --out", ["export", run], 64, "--out")

    mlp = c.cwd / "mlp"
    mlp.mkdir()
    (c.cwd / "t.csv").write_text("1,2,0\n3,4,1\n" * 20)
    (mlp / "job.yaml").write_text(MLP.replace("t.csv", str(c.cwd / "t.csv")))
    (mlp / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    c.refused("an mlp cannot write", ["sample", mlp], 65, "gpt", "mlp")


def body(args, scratch):
    c = Cli(args, scratch)
    (scratch / "text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 200)
    (scratch / "gpt.yaml").write_text(GPT)
    for part in (verbs, run_words, folders, models):
        print(part.__name__)
        part(c)
    print(f"{c.n} cases")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    sys.exit(main(lambda scratch: body(arguments, scratch), arguments, "tools-cli"))
