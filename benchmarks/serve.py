"""Requests per second of `widemargin serve` on loopback against the bare model, by turns in one run.

The bare model embeds the decoded image in this process. A request also travels over HTTP, is checked, decoded, searched
in the gallery and answered as JSON; a server process of its own shares the machine with the client. To tell what of it
takes the time, its parts are also timed alone: decoding, embedding and searching in this process, and a request for a
small file of the page, which is HTTP and nothing else.
"""

from __future__ import annotations

import argparse
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image

from widemargin.data.images.decode import read_image_bytes
from widemargin.data.images.sets import load_images
from widemargin.recognition.gallery import Gallery
from widemargin.training.run import Run
from widemargin.training.train import train

_START_SECONDS = 120


def make_gallery(folder: Path, identities: int) -> tuple[Run, list[bytes]]:
    """A run on generated images, a gallery of some of them, and the PNG files of others as requests."""
    name = f"generated(classes={identities}, per_class=2, test={identities}, size=64)"
    config = {
        "data": name,
        "model": "fast(widths=(32,64,64))",
        "loss": "arcface(s=16, m=0.2)",
        "epochs": 1,
        "batch_size": 64,
    }
    run = train(config, out=folder / "run", quiet=True)
    images = load_images(name)
    gallery = Gallery.create(folder / "gallery", run)
    pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in images.train.x[:identities]]
    gallery.add({f"p{k}": [picture] for k, picture in enumerate(pictures)})
    bodies = []
    for x in images.test.x[:100]:
        buffer = io.BytesIO()
        Image.fromarray(x.permute(1, 2, 0).numpy()).save(buffer, "PNG")
        bodies.append(buffer.getvalue())
    return run, bodies


def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """`widemargin serve` in a process of its own, and its port, when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "widemargin", "serve", str(folder), "--port", str(port), "--read-only"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return server, port
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise TimeoutError("the server does not answer")


def send_requests(port: int, bodies: list[bytes]) -> None:
    """Identify images one after the other over one connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for body in bodies:
        connection.request("POST", "/api/identify?top=3", body, {"X-Widemargin": "1"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {content!r}")
    connection.close()


def time_parts(run: Run, folder: Path, port: int, bodies: list[bytes]) -> dict[str, float]:
    """Milliseconds of each part of a request alone."""
    gallery = Gallery(folder, run)
    images = [read_image_bytes(body) for body in bodies]
    vectors = [run.embed([image]) for image in images]

    def get_files() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in bodies:
            connection.request("GET", "/app.css")
            connection.getresponse().read()
        connection.close()

    calls: dict[str, Callable[[], object]] = {
        "HTTP": get_files,
        "decode": lambda: [read_image_bytes(body) for body in bodies],
        "embed": lambda: [run.embed([image]) for image in images],
        "search": lambda: [gallery.search(x, 3) for x in vectors],
    }
    found = {}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        found[name] = round(1000 * (time.perf_counter() - begin) / len(bodies), 3)
    return found


def measure(identities: int, requests: int, clients: int, rounds: int) -> dict[str, Any]:
    """Requests per second of the server with one and with several clients, and images per second of the bare model."""
    rates: dict[str, list[float]] = {"bare model": [], "one client": [], f"{clients} clients": []}
    with tempfile.TemporaryDirectory() as folder:
        run, bodies = make_gallery(Path(folder), identities)
        bodies = (bodies * (requests // len(bodies) + 1))[:requests]
        images = [Image.open(io.BytesIO(body)).convert("RGB") for body in bodies]
        server, port = start_server(Path(folder) / "gallery")
        try:
            send_requests(port, bodies[:10])
            run.embed(images[:1])
            for _ in range(rounds):
                begin = time.perf_counter()
                for image in images:
                    run.embed([image])
                rates["bare model"].append(requests / (time.perf_counter() - begin))
                begin = time.perf_counter()
                send_requests(port, bodies)
                rates["one client"].append(requests / (time.perf_counter() - begin))
                begin = time.perf_counter()
                with ThreadPoolExecutor(clients) as pool:
                    list(pool.map(lambda part: send_requests(port, part), [bodies[k::clients] for k in range(clients)]))
                rates[f"{clients} clients"].append(requests / (time.perf_counter() - begin))
            parts = [time_parts(run, Path(folder) / "gallery", port, bodies) for _ in range(rounds)]
        finally:
            server.terminate()
            server.wait()
    return {
        "identities": identities,
        "requests": requests,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "per_second": rates,
        "milliseconds": {name: median(part[name] for part in parts) for name in parts[0]},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    for name, usual, meaning in (
        ("identities", 1000, "enrolled identities"),
        ("requests", 300, "requests of each round"),
        ("clients", 4, "clients at a time"),
        ("rounds", 5, "rounds of each"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=f"{meaning} (default {usual:,})")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    found = measure(options.identities, options.requests, options.clients, options.rounds)
    rates = found["per_second"]
    bare = rates["bare model"]
    for name, values in rates.items():
        ratios = sorted(value / other for value, other in zip(values, bare, strict=True))
        ratio, low, high = median(ratios), ratios[0], ratios[-1]
        print(f"{name}: {median(values):,.0f} a second, {ratio:.2f} ({low:.2f} – {high:.2f}) of the bare model")
    parts = ", ".join(f"{name} {value:.2f}" for name, value in found["milliseconds"].items())
    print(f"milliseconds of each part alone: {parts}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
