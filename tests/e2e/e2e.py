#!/usr/bin/python3
"""Whole runs as a user makes them: `ebb run` and what stands in the folder afterwards. One case per ctest (e2e.<case>)."""
import argparse
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import http_side  # noqa: E402
from ebbtest import ROOT, Failed, Run, add_arguments, check, ebb_path, kjv, main, read_safetensors, send, until  # noqa: E402

GPT = """\
name: tiny
seed: 11
model: {{family: gpt, layers: 1, width: 32, heads: 2, context: 16, vocab: 256}}
data: {{path: {data}, format: bytes, val_fraction: 0.05}}
optimizer:
  name: adamw
  lr: 3.0e-3
  weight_decay: 0.1
  clip_norm: 1.0
  schedule: {{kind: cosine, warmup_steps: 20, min_lr_ratio: 0.1}}
shards: 2
workers: {{min: 2, max: 2, threads: 1}}
batch: 8
steps: {steps}
unit_steps: 8
eval: {{every: {every}, samples_max: 256}}
lease: 2s
"""


def gpt_job(scratch, steps, every=0, name="tiny.yaml"):
    job = scratch / name
    job.write_text(GPT.format(data=kjv(scratch), steps=steps, every=every))
    return job


def case_gpt(args, scratch):
    """A small GPT from job file to sampled text: 2 shards, 2 workers."""
    run = Run(args, scratch / "run", gpt_job(scratch, 600, every=200)).start()
    try:
        run.finish(180)
    finally:
        run.stop()
    tensors, _ = read_safetensors(run.folder / "model.safetensors")
    check(len(tensors) == 16 and all(all(abs(v) < 100 for v in values) for _, values in tensors.values()), "model.safetensors does not hold the 16 tensors of the model")
    again, _ = run.export(scratch / "again.safetensors")
    check(again == tensors, "`ebb export` and the model.safetensors of the run differ")
    status = run.status()
    check(status and status["state"] == "SUCCEEDED", f"ebb status says {status and status['state']}")
    evals = status["evals"]
    print("held-out losses:", [round(point["loss"], 3) for point in evals])
    check(len(evals) >= 3 and evals[-1]["loss"] < 3.0 and evals[-1]["loss"] < evals[0]["loss"], "the held-out loss did not fall below 3.0")
    check(status["steps_retired"] == 600 and status["final_eval_done"], "the run ended before all steps were retired and evaluated")
    (scratch / "kjv.txt").rename(scratch / "elsewhere.txt")  # sampling needs the model only
    sampled = run.tool("sample", run.folder, "--prompt", "And the", "--bytes", "80", "--seed", "5")
    check(sampled.returncode == 0 and len(sampled.stdout) >= 80, f"ebb sample: {sampled.stderr.strip()}")
    check(run.tool("sample", run.folder, "--prompt", "And the", "--bytes", "80", "--seed", "5").stdout == sampled.stdout, "the same seed sampled another text")
    print(f"sample: {sampled.stdout!r}")
    check(not run.children() and not list(run.folder.glob("sock/*")), "programs or sockets are left behind")
    check(not list(run.folder.glob("pids/*")), "pid files are left behind")


def case_kill(args, scratch):
    """A worker, then a shard, then the coordinator are killed in mid-run: the supervisor replaces them, the run ends well, `ebb events` tells the story."""
    run = Run(args, scratch / "run", gpt_job(scratch, 3000)).start()
    try:
        for prefix in ("worker", "shard", "coordinator"):
            before = until(lambda: (lambda s: s and s["steps_done"] > 50 and s)(run.status()), 60, "the first 50 steps")["steps_done"]
            victim, pid = next((name, pid) for name, pid in sorted(run.children().items()) if name.startswith(prefix))
            check(send(pid, signal.SIGKILL), f"{victim} was gone already")
            until(lambda: run.children().get(victim, pid) != pid, 20, f"a replacement of {victim}")
            until(lambda: (lambda s: s and s["steps_done"] > before + 50)(run.status()), 60, f"progress after {victim} was killed")
        run.finish(240)
        events = run.events()
    finally:
        run.stop()
    for event in events:
        print(f"  {event['kind']:<20} {event['subject']:<14} {event['text']}")
    told = {(event["kind"], event["subject"]) for event in events}
    for expected in (("worker-died", "worker-0"), ("shard-restarted", "shard-0"), ("job-resumed", "tiny"), ("job-succeeded", "tiny")):
        check(expected in told, f"ebb events does not tell of {expected}")
    values = read_safetensors(run.folder / "model.safetensors")[0]
    check(len(values) == 16, "model.safetensors is not there")


def case_resume(args, scratch):
    """Ctrl-C drains within seconds and says how to go on; --resume goes on from there and ends well."""
    run = Run(args, scratch / "run", gpt_job(scratch, 2500)).start()
    try:
        until(lambda: (lambda s: s and s["steps_done"] > 100)(run.status()), 60, "the first 100 steps")
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        code = run.wait(30)
        took = time.monotonic() - began
        print(f"Ctrl-C: ended with {code} after {took:.1f} s")
        check(code == 130 and took < 15, f"Ctrl-C ended with {code} after {took:.1f} s")
        check("--resume" in run.output.read_text(errors="replace"), "the output does not say how to resume")
        check(not run.children(), "programs are left behind")
        check(run.tool("run", run.job, "--dir", run.folder).returncode not in (0, 70), "a run folder in use was silently used for a new run")
        run.start("--resume", "--workers", "3", "--json")
        first = until(run.status, 30, "an answer after --resume")["steps_done"]
        print(f"resumed at step {first} with 3 workers")
        check(first >= 100, f"after --resume the job stands at step {first}")
        until(lambda: len([name for name in run.children() if name.startswith("worker")]) == 3, 20, "three workers")
        until(lambda: (lambda s: s and s["steps_done"] > first)(run.status()), 60, "a step after --resume")
        run.process.send_signal(signal.SIGTERM)
        code = run.wait(30)
        check(code == 128 + signal.SIGTERM, f"SIGTERM ended with {code}")
        lines = [json.loads(line) for line in run.output.read_text().splitlines() if line.startswith("{")]
        check(lines[-1]["kind"] == "result" and lines[-1]["state"] != "SUCCEEDED" and "model" not in lines[-1], f"the last line of --json: {lines[-1]}")
        check(any(line["kind"] == "event" and line["event"] == "job-resumed" for line in lines), "no event among the lines of --json")
        run.resume()
        run.finish(240)
    finally:
        run.stop()
    check(run.status()["steps_retired"] == 2500, "not all steps were retired")


def case_lost_folder(args, scratch):
    """A shard whose folder was lost, or replaced by an older copy, must not be trained on: the run fails and says so, and goes on once the folder is back."""
    run = Run(args, scratch / "run", ROOT / "examples/counter.yaml", "--steps", 2000).start()
    try:
        until(lambda: (run.status() or {}).get("steps_retired", 0) > 200, 60, "200 retired steps")
        run.process.send_signal(signal.SIGINT)
        check(run.wait(30) == 130, "Ctrl-C did not drain")
        kept = scratch / "kept"
        for lost in ("empty", "older"):
            shutil.move(run.folder / "shard-1", kept)
            if lost == "older":
                shutil.copytree(scratch / "older", run.folder / "shard-1")
            run.resume()
            code = run.wait(60)
            text = run.output.read_text(errors="replace")
            print(f"{lost}: {code} {text.strip().splitlines()[-1]}")
            check(code == 65 and "shard 1" in text and "folder was lost or replaced" in text, f"a run with an {lost} folder of shard 1 ended with {code}")
            shutil.rmtree(run.folder / "shard-1")
            shutil.move(kept, run.folder / "shard-1")
            if lost == "empty":
                shutil.copytree(run.folder / "shard-1", scratch / "older")
                run.resume()
                before = until(run.status, 30, "an answer")["steps_retired"]
                until(lambda: (run.status() or {}).get("steps_retired", 0) > before + 200, 60, "200 more retired steps")
                run.process.send_signal(signal.SIGINT)
                check(run.wait(30) == 130, "Ctrl-C did not drain")
        run.resume()
        run.finish(120)
        tensors, _ = run.export(scratch / "count.safetensors")
    finally:
        run.stop()
    check({v for _, values in tensors.values() for v in values} == {2000.0}, "a parameter does not count 2000 steps")


def case_scale(args, scratch):
    """A job with workers {min: 1, max: 3} whose one worker computes all the time gets more; `ebb explain` says why; a coordinator that dies keeps the number."""
    job = gpt_job(scratch, 50000)
    text = job.read_text()
    check("workers: {min: 2, max: 2, threads: 1}" in text, "the job of this test has other workers")
    job.write_text(text.replace("workers: {min: 2, max: 2, threads: 1}", "workers: {min: 1, max: 3}\nautoscale: {up_at: 0.02, down_at: 0.01, up_step: 2}"))
    run = Run(args, scratch / "run", job).start()

    def workers():
        return [name for name in run.children() if name.startswith("worker")]

    try:
        until(run.status, 30, "an answer")
        check(len(workers()) == 1, f"{workers()} at the beginning, expected one")
        until(lambda: len(workers()) == 3, 60, "three workers")
        until(lambda: (run.status() or {}).get("scale", {}).get("live") == 3, 30, "three live workers in ebb status")
        told = run.tool("explain", run.folder)
        print(told.stdout)
        check(told.returncode == 0 and "3 workers wanted, 3 live (from 1 to 3)" in told.stdout and "1 to 3 workers: utilization above the upper threshold" in told.stdout,
              f"ebb explain: {told.stdout}{told.stderr}")  # fmt: skip
        send(run.children()["coordinator"], signal.SIGKILL)
        until(lambda: (run.status() or {}).get("scale", {}).get("live") == 3, 30, "three live workers after the coordinator was killed")
        run.process.send_signal(signal.SIGINT)
        check(run.wait(30) == 130, "Ctrl-C did not drain")
    finally:
        run.stop()
    check(len([event for event in run.events() if event["kind"] == "scaled-up"]) == 2, "not two decisions: the minimum, and the growth")


def case_digits(args, scratch):
    """examples/digits-mlp.yaml reaches more than 96 % on held-out rows."""
    run = Run(args, scratch / "run", ROOT / "examples/digits-mlp.yaml").start()
    try:
        run.finish(180)
        last = run.status()["evals"][-1]
    finally:
        run.stop()
    print(f"held-out accuracy {100 * last['accuracy']:.1f} %, loss {last['loss']:.3f}")
    check(last["accuracy"] > 0.96, f"accuracy is {last['accuracy']:.4f}")


def case_http(args, scratch):
    """`ebb run --http`: the dashboard's address is told, and what is served there is what a browser and Prometheus expect; not off loopback."""
    run = Run(args, scratch / "run", gpt_job(scratch, 100000), "--http", 0).start()
    try:
        url = until(lambda: (run.status() or {}).get("http"), 30, "the dashboard's address")
        until(lambda: (run.status() or {}).get("steps_done", 0) > 200, 60, "200 steps")
        http_side.examine(url, run)
        check(f"dashboard: {url}" in run.output.read_text(), "ebb run does not say where the dashboard is")
        send(run.children()["coordinator"], signal.SIGKILL)
        url = until(lambda: (lambda s: s and s["http"] != url and s["http"])(run.status()), 30, "the dashboard of the next coordinator")
        until(lambda: http_side.get(url, "/healthz")[0] == 200, 10, "the next coordinator's /healthz")
        coordinator = ebb_path(args.build).parent.parent / "coordinator/ebb-coordinator"
        for address, word in (("0.0.0.0:0", "loopback"), ("127.0.0.1", "HOST:PORT"), ("here:80", "here"), (url[len("http://") :].rstrip("/"), "cannot serve")):
            words = [coordinator, "--bind", f"ipc://{scratch}/c.sock", "--dir", scratch / "other", "--job", run.job, "--http", address]
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30)
            last = done.stderr.strip().splitlines()[-1]
            print(f"  {done.returncode}  {last}")
            check(done.returncode not in (0, 70) and word in done.stderr, f"--http {address}: {done.returncode} {done.stderr}")
        run.process.send_signal(signal.SIGINT)
        check(run.wait(30) == 130, "Ctrl-C did not drain")
    finally:
        run.stop()


def case_install(args, scratch):
    """What `cmake --install` puts somewhere runs from there, with the build folder's programs out of sight."""
    prefix = scratch / "prefix"
    done = subprocess.run(["cmake", "--install", str(args.build), "--prefix", str(prefix)], capture_output=True, text=True)
    check(done.returncode == 0, f"cmake --install: {done.stderr}")
    done = subprocess.run([str(prefix / "bin/ebb"), "run", str(ROOT / "examples/counter.yaml"), "--steps", "50", "--dir", str(scratch / "run")],
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)  # fmt: skip
    check(done.returncode == 0, f"the installed ebb: {done.stdout}{done.stderr}")


def case_counter(args, scratch):
    """examples/counter.yaml, a quick look without any kill."""
    run = Run(args, scratch / "run", ROOT / "examples/counter.yaml", "--steps", 300).start()
    try:
        run.finish(120)
        tensors, _ = run.export(scratch / "count.safetensors")
    finally:
        run.stop()
    check({v for _, values in tensors.values() for v in values} == {300.0}, "a parameter does not count 300 steps")


def case_bad_input(args, scratch):
    """Each kind of bad input ends in one clear line on stderr and an exit status that is not 0; nothing is damaged."""
    good = gpt_job(scratch, 20).read_text()
    text = kjv(scratch)
    (scratch / "empty").write_bytes(b"")
    (scratch / "short").write_bytes(b"0123456789")
    (scratch / "bad.csv").write_text("1,2,3\n4,five,6\n")

    def refused(what, words, contains, status=None, job_text=None):
        job = scratch / "case.yaml"
        job.write_text(good if job_text is None else job_text)
        done = subprocess.run([ebb_path(args.build), "run", *(str(w) if w != "JOB" else str(job) for w in words)], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)  # fmt: skip
        lines = done.stderr.strip().splitlines()
        print(f"  {done.returncode:>3}  {what}: {lines[-1] if lines else '(nothing)'}")
        check(done.returncode != 0 and (status is None or done.returncode == status), f"{what}: exit status {done.returncode}, expected {status or 'not 0'}")
        check(len(lines) == 1, f"{what}: {len(lines)} lines on stderr instead of one: {done.stderr}")
        for word in contains:
            check(word in lines[0], f"{what}: the line does not say {word!r}: {lines[0]}")

    fresh = ("--dir", scratch / "fresh")
    refused("missing job file", [scratch / "nothing.yaml", *fresh], ["nothing.yaml"], 66)
    refused("missing data file", ["JOB", *fresh], ["nothing.txt"], 66, good.replace(str(text), str(scratch / "nothing.txt")))
    refused("empty data file", ["JOB", *fresh], ["empty"], 65, good.replace(str(text), str(scratch / "empty")))
    refused("file smaller than one context", ["JOB", *fresh], ["short", "context"], 65, good.replace(str(text), str(scratch / "short")))
    refused("data is a folder", ["JOB", *fresh], [str(scratch)], None, good.replace(str(text), str(scratch)))
    refused("a word in a csv", ["JOB", *fresh], ["bad.csv:2"], 65,
            "name: x\nmodel: {family: mlp, sizes: [2, 4, 2]}\ndata: {path: bad.csv, format: csv}\noptimizer: {name: sgd, lr: 0.1}\nsteps: 5\n")  # fmt: skip
    refused("unknown key", ["JOB", *fresh], ["case.yaml:14", "step", "steps"], 65, good.replace("\nsteps: 20", "\nstepps: 20"))
    refused("wrong type", ["JOB", *fresh], ["case.yaml", "batch"], 65, good.replace("batch: 8", "batch: eight"))
    refused("out of range", ["JOB", *fresh], ["case.yaml", "shards"], 65, good.replace("shards: 2", "shards: 0"))
    refused("not YAML", ["JOB", *fresh], ["case.yaml"], 65, "name: [unclosed\n")
    refused("empty job file", ["JOB", *fresh], ["case.yaml"], 65, "")
    refused("width not a multiple of heads", ["JOB", *fresh], ["heads"], 65, good.replace("heads: 2", "heads: 3"))
    check(not (scratch / "fresh").exists() or not list((scratch / "fresh").rglob("CURRENT")), "a refused job left a half-made run folder")

    if os.geteuid() != 0:
        locked = scratch / "locked"
        locked.mkdir()
        locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
        refused("unwritable folder", ["JOB", "--dir", locked / "run"], [str(locked)])
    refused("folder cannot be made", ["JOB", "--dir", "/proc/ebbtide"], ["/proc/ebbtide"])
    refused("run folder is a file", ["JOB", "--dir", text], [str(text)])

    # One finished run, to be abused.
    run = Run(args, scratch / "run", gpt_job(scratch, 20, name="run.yaml")).start()
    run.finish(60)
    before = sorted((p, p.stat().st_size) for p in run.folder.rglob("model.*"))
    refused("folder of another job", ["JOB", "--dir", run.folder, "--resume"], [], None, good.replace("width: 32", "width: 64"))
    refused("folder holds a run already", ["JOB", "--dir", run.folder], ["--resume"])
    refused("nothing to resume", ["JOB", "--dir", scratch / "none", "--resume"], [str(scratch / "none")])
    check(sorted((p, p.stat().st_size) for p in run.folder.rglob("model.*")) == before, "a refused run changed the folder")

    daemons(args, scratch, run)


def daemons(args, scratch, run):
    """The programs by themselves: an address in use, a shard folder of another shard."""
    build = Path(args.build).resolve()

    def refused(what, words, contains):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        lines = done.stderr.strip().splitlines()
        print(f"  {done.returncode:>3}  {what}: {lines[-1] if lines else '(nothing)'}")
        check(done.returncode not in (0, 75), f"{what}: exit status {done.returncode}")
        for word in contains:
            check(any(word in line for line in lines), f"{what}: nothing says {word!r}: {done.stderr}")

    coordinator, shard = build / "coordinator/ebb-coordinator", build / "ps/ebb-shard"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        job = scratch / "tiny.yaml"
        refused("port in use (coordinator)", [coordinator, "--bind", endpoint, "--dir", scratch / "c", "--job", job], [endpoint])
        refused("port in use (shard)", [shard, "--coordinator", "tcp://127.0.0.1:9", "--bind", endpoint, "--dir", scratch / "s", "--shard", 0], [endpoint])
    copy = scratch / "shard-copy"
    shutil.copytree(run.folder / "shard-0", copy)
    refused("folder of another shard", [shard, "--coordinator", "tcp://127.0.0.1:9", "--bind", f"ipc://{scratch}/x", "--dir", copy, "--shard", 1], [str(copy)])
    mark = copy / "SHARD"
    mark.write_text(mark.read_text().replace("format 1 ", "format 99 "))
    refused("folder of a newer format", [shard, "--coordinator", "tcp://127.0.0.1:9", "--bind", f"ipc://{scratch}/x", "--dir", copy, "--shard", 0], ["newer", "99"])
    check("format 99" in mark.read_text(), "the refused folder was changed")



CASES = {name[5:]: function for name, function in globals().items() if name.startswith("case_")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("case", choices=sorted(CASES))
    arguments = parser.parse_args()
    sys.exit(main(lambda scratch: CASES[arguments.case](arguments, scratch), arguments, f"e2e-{arguments.case}"))
