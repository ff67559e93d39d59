"""What the Python tests share: finding the programs, running jobs with `ebb run`, reading what they left.

Standard library only, so that tests/fire runs anywhere. All programs are started by `ebb run`; signals go only to processes that are its children.
"""
import array
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A test found something wrong; the text says what."""


def check(condition, text):
    if not condition:
        raise Failed(text)


def add_arguments(parser):
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("EBB_BUILD", ROOT / "build/release")), help="build folder (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder also when all went well")


def ebb_path(build):
    path = Path(build).resolve() / "tools/ebb"
    if not path.exists():
        sys.exit(f"{path} is missing: build first (cmake --preset release && cmake --build --preset release) or name another folder with --build")
    return path


def main(body, args, name):
    """Runs body(scratch folder); the folder stays if something failed. Returns the exit status."""
    scratch = Path(tempfile.mkdtemp(prefix=f"ebb-{name}-"))
    began = time.monotonic()
    try:
        body(scratch)
    except Failed as why:
        print(f"FAILED: {why}\nleft for inspection: {scratch}", flush=True)
        return 1
    except BaseException:
        print(f"left for inspection: {scratch}", flush=True)
        raise
    if args.keep:
        print(f"kept: {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"ok: {name} in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def kjv(folder):
    """The King James text, one verse per line as tools/quickstart makes it, in folder/kjv.txt."""
    path = Path(folder) / "kjv.txt"
    if not path.exists():
        verses = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, stdout=subprocess.PIPE).stdout.splitlines()
        path.write_bytes(b"".join(line.split(b" ", 1)[1] + b"\n" for line in verses))
    return path


def read_safetensors(path):
    """name -> (shape, array of float32), and the metadata. Reads the published format by hand: u64 header length, JSON header, data."""
    raw = Path(path).read_bytes()
    check(len(raw) >= 8, f"{path}: too short")
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        check(begin == end, f"{path}: a gap before {name}")
        end = stop
        if entry["dtype"] == "F32":
            values = array.array("f")
            values.frombytes(raw[8 + length + begin : 8 + length + stop])
            tensors[name] = (entry["shape"], values)
    check(8 + length + end == len(raw), f"{path}: {len(raw) - 8 - length - end} bytes behind the last tensor")
    return tensors, metadata


def stat_field(pid, index):
    """Field of /proc/PID/stat counted behind the command name (0 = state, 1 = parent), or None."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[index]
    except (OSError, IndexError):
        return None


class Run:
    """One `ebb run` and its folder."""

    def __init__(self, args, folder, job, *options, env=None):
        self.ebb = ebb_path(args.build)
        self.folder = Path(folder)
        self.job = Path(job)
        self.options = [str(option) for option in options]
        self.env = dict(os.environ, **(env or {}))
        self.process = None
        self.output = self.folder.with_name(self.folder.name + ".out")

    def start(self, *more):
        command = [str(self.ebb), "run", str(self.job), "--dir", str(self.folder), *self.options, *more]
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env)
        return self

    def resume(self):
        return self.start("--resume")

    def wait(self, timeout_s):
        """Exit status of `ebb run`; Failed if it takes longer."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.explain()
            self.stop()
            raise Failed(f"`ebb run` was not done after {timeout_s:.0f} s") from None

    def finish(self, timeout_s):
        status = self.wait(timeout_s)
        if status != 0:
            self.explain()
            raise Failed(f"`ebb run` ended with {status}")
        for file in [self.output, *(self.folder / "logs").glob("*.log")]:
            text = file.read_text(errors="replace")
            check("Sanitizer" not in text and "runtime error:" not in text, f"a sanitizer reports in {file}: {text[-3000:]}")

    def children(self):
        """name -> pid of the living programs of this run."""
        found = {}
        for file in (self.folder / "pids").glob("*.pid"):
            try:
                pid = int(file.read_text())
            except (OSError, ValueError):
                continue  # being written, or gone
            if file.stem != "ebb" and stat_field(pid, 1) == str(self.process.pid) and stat_field(pid, 0) not in (None, "Z", "X"):
                found[file.stem] = pid
        return found

    def tool(self, *words, timeout_s=60):
        return subprocess.run([str(self.ebb), *map(str, words)], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)

    def status(self):
        """`ebb status --json`, or None while nobody answers."""
        done = self.tool("status", self.folder, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def events(self):
        done = self.tool("events", self.folder, "--json")
        check(done.returncode == 0, f"ebb events: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def export(self, out):
        done = self.tool("export", self.folder, "--out", out)
        check(done.returncode == 0, f"ebb export ended with {done.returncode}: {done.stderr.strip()}")
        return read_safetensors(out)

    def explain(self):
        """Prints the ends of all logs."""
        for file in [self.output, *sorted((self.folder / "logs").glob("*.log"))]:
            if file.exists():
                print(f"--- {file}", *file.read_text(errors="replace").splitlines()[-12:], sep="\n", flush=True)

    def stop(self):
        """Ends the run if it still goes: Ctrl-C first, then kill -9 (its programs die with it)."""
        if self.process is None or self.process.poll() is not None:
            return
        for pid in self.children().values():
            send(pid, signal.SIGCONT)
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def until(condition, timeout_s, what):
    """Polls until condition() is true and returns its value; Failed after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"waited {timeout_s} s for {what}")
        time.sleep(0.05)
