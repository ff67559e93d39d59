"""The HTTP side of a coordinator as monitoring and browsers see it: JSON, Prometheus text, refusals, a page that loads nothing from elsewhere."""
import json
import re
import socket
import urllib.error
import urllib.request

from ebbtest import check, until

SAMPLE = re.compile(r'^[a-z_][a-z0-9_]*(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? (NaN|[+-]Inf|[-+0-9.e]+)$')


def get(url, path, method="GET", headers=None):
    """Status, content type, body."""
    request = urllib.request.Request(url.rstrip("/") + path, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def metrics_of(text):
    """name -> {labels: value}; fails where the text is not Prometheus' format, or a name stands apart from its TYPE line."""
    found, described = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            described.add(line.split()[2])
        if line.startswith("#"):
            continue
        check(SAMPLE.match(line), f"not a sample: {line!r}")
        name = line.split("{")[0].split(" ")[0]
        check(name in described, f"{name} has no TYPE line before it")
        found.setdefault(name, {})[line[len(name):].rsplit(" ", 1)[0]] = float(line.rsplit(" ", 1)[1])
    return found


def examine(url, run):
    """All of it, on a running job."""
    until(lambda: get(url, "/api/v1/status")[0] == 200, 10, "a published status")
    code, kind, body = get(url, "/api/v1/status")
    status = json.loads(body)
    check(kind == "application/json" and status["name"] == "tiny" and status["http"] == url, f"/api/v1/status: {body[:200]}")
    until(lambda: json.loads(get(url, "/api/v1/status")[2])["steps_done"] > status["steps_done"], 20, "progress in /api/v1/status")

    code, kind, body = get(url, "/metrics")
    check(code == 200 and kind.startswith("text/plain; version=0.0.4"), f"/metrics: {code} {kind}")
    metrics = metrics_of(body)
    check(metrics["ebbtide_job_state"]['{state="RUNNING"}'] == 1, "the job is not RUNNING in /metrics")
    check(metrics["ebbtide_workers"]['{state="running"}'] >= 1 and len(metrics["ebbtide_shard_version"]) == 2, f"workers or shards: {body}")
    check(metrics["ebbtide_steps_applied"][""] > 0, "no steps in /metrics")
    until(lambda: metrics_of(get(url, "/metrics")[2])["ebbtide_loss"][""] > 0, 20, "a loss in /metrics")  # NaN until the first heartbeat that has one

    events = json.loads(get(url, "/api/v1/events")[2])
    check([e["kind"] for e in events["events"]][0] == "job-created" and events["last"] == events["events"][-1]["id"], f"/api/v1/events: {events}")
    later = json.loads(get(url, f"/api/v1/events?after={events['last']}")[2])
    check(all(e["id"] > events["last"] for e in later["events"]), "after= did not pass over old events")

    code, kind, page = get(url, "/")
    check(code == 200 and kind.startswith("text/html") and "</html>" in page, "no page at /")
    check(not re.search(r'(src|href)="https?:', page) and "http" not in page.replace("http://www.w3.org/2000/svg", ""), "the page refers to other places")
    check(get(url, "/healthz")[:3:2] == (200, "ok\n"), "/healthz")

    check(get(url, "/", "HEAD")[0] == 200, "HEAD")
    for path, method, headers, expected in (("/nothing", "GET", {}, 404), ("/api/v1/events?after=-1", "GET", {}, 400), ("/api/v1/events?after=x", "GET", {}, 400),
                                            ("/api/v1/status", "POST", {"Content-Length": "0"}, 405), ("/", "DELETE", {}, 405), ("/", "GET", {"Host": "evil.example"}, 403)):  # fmt: skip
        code, kind, body = get(url, path, method, headers)
        check(code == expected and kind == "application/json" and json.loads(body)["error"], f"{method} {path}: {code} {body!r}, expected {expected}")

    # Clients that send nonsense, too much, or nothing: the others are still answered.
    host, port = url[len("http://"):].rstrip("/").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    for garbage in (b"\x00\xff\x16\x03\x01" * 50, b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200000 + b"\r\n\r\n", b"GET " + b"/a" * 60000 + b" HTTP/1.1\r\n\r\n",
                    b"POST /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"z" * 100000):  # fmt: skip
        with socket.create_connection((host, int(port))) as s:
            s.settimeout(5)
            try:
                s.sendall(garbage)
                s.recv(4096)
            except OSError:
                pass
        check(get(url, "/healthz")[0] == 200, f"not answered after {garbage[:20]!r}")
    for s in idle:
        s.close()
    check(run.process.poll() is None, "the run has ended")
