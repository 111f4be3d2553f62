#!/usr/bin/env python3
"""Seconds from the start of `salvo serve` to its first answer, by stage: listening, weights loaded, ready, first token.

    tools/bench/start_serve.py LABEL SALVO MODEL_DIR [OPTION...]

Prints a line with the seconds, and the program's own account of its start. The server is ended. bench/start_time.sh
measures `salvo run`, and ranks as processes."""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

label, salvo, model, *options = sys.argv[1:]
path = os.path.join(tempfile.mkdtemp(), "s")
log = open(path + ".log", "w+")
begin = time.monotonic()
server = subprocess.Popen([salvo, "serve", "-m", model, "--port", "8123", *options], stderr=log, stdout=log)
at = {}


def mark(name):
    at.setdefault(name, time.monotonic() - begin)


def request(method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", 8123, timeout=60)
    c.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    return c.getresponse()


while "ready" not in at and server.poll() is None and time.monotonic() - begin < 60:
    try:
        r = request("GET", "/health")
        body = r.read()
    except OSError:
        time.sleep(0.005)
        continue
    mark("listening")
    stage = "ready" if r.status == 200 else json.loads(body).get("stage", "")
    if stage in ("graphs", "costs", "ready"):
        mark("weights")
    if stage == "ready":
        mark("ready")
    time.sleep(0.005)
text = b""
if "ready" in at:
    name = json.load(request("GET", "/v1/models"))["data"][0]["id"]
    asked = {"model": name, "prompt": "Hello there", "max_tokens": 4, "stream": True, "ignore_eos": True}
    r = request("POST", "/v1/completions", json.dumps(asked))
    text = r.readline()
    mark("first token")
    text += r.read()
server.send_signal(signal.SIGTERM)
server.wait(60)
mark("ended")
stages = ("listening", "weights", "ready", "first token", "ended")
print(label, *(f"{k}={at.get(k, -1):.2f}" for k in stages), flush=True)
log.seek(0)
lines = log.read().splitlines()
for line in [x for x in lines if "start:" in x or "rror" in x] or lines[-3:]:
    print("   ", line[:300])
if b"data:" not in text:
    print("    no answer:", text[:200])
