"""Downloads: https only, also after a redirect; known hashes; bounded; and none when the package is only imported."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ..check import Outcome, Size
from ..siege import Siege

TITLE = "downloads from hostile servers, and sockets opened by an import or --help"
KIND = "attack"
LONG = False

_ELSEWHERE = "http://192.0.2.1/file"  # an address that documentation keeps for itself: nobody has it
_HASH = "0" * 64


def run(size: Size) -> Outcome:
    """Addresses, redirects, hashes and sizes against real servers on this machine."""
    siege = Siege(size, {"no_proxy": "*"})
    _silent(siege)
    path = size.folder / "got"
    for address in (
        _ELSEWHERE,
        "http://127.0.0.1.example.org/x",
        "http://localhost.example.org/x",
        "file:///etc/passwd",
    ):
        siege.refused(f"an address like {address}", fetched, address, str(path), "", "")
    for address in ("ftp://127.0.0.1/x", "data:,x", "HTTP://example.org/x", "http://[::1]x/", "//host/x", "gopher://x"):
        siege.refused(f"an address like {address}", fetched, address, str(path), "", "")
    siege.refused("a mirror over http elsewhere", fetched, "https://host/file", str(path), "", "http://192.0.2.1")
    with _server(size.folder / "plain", None) as here:
        _answers(siege, here, path, "")
    certificate = _certificate(size.folder)
    note = ""
    if certificate is None:
        note = "https servers not tried: there is no openssl to make a certificate with"
    else:
        with _server(size.folder / "safe", certificate) as here:
            siege.refused("a certificate that nobody vouches for", fetched, f"{here}/good", str(path), "", "")
            _answers(siege, here, path, str(certificate))
    siege.held("nothing is kept of what was refused", "a file is there" if list(size.folder.glob("*got*")) else "")
    return siege.outcome(note)


def fetched(address: str, path: str, trusted: str, mirror: str) -> None:
    """A download, as an attempt; `trusted` is a certificate to believe."""
    import os

    from ...data import fetch

    fetch.PAUSE = 0.0
    os.environ.pop("WIDEMARGIN_MIRROR", None)
    if trusted:
        os.environ["SSL_CERT_FILE"] = trusted
    if mirror:
        os.environ["WIDEMARGIN_MIRROR"] = mirror
    fetch.fetch(address, Path(path), sha256=_HASH, limit=1 << 20)


def _answers(siege: Siege, here: str, path: Path, trusted: str) -> None:
    kind = here.partition(":")[0]
    for what, page in (
        ("another hash than the known one", "good"),
        ("a redirect to http", "to-http"),
        ("a redirect to http on this machine", "to-here"),
        ("a redirect to a file", "to-file"),
        ("a redirect without end", "to-itself"),
        ("a file larger than expected, as it says", "large"),
        ("a file without end", "endless"),
        ("a file that ends too early", "short"),
    ):
        if kind == "http" and page == "to-here":
            continue  # it is there already
        said = siege.refused(f"{kind}: {what}", fetched, f"{here}/{page}", str(path), trusted, "")
        if page == "good":
            siege.held(f"{kind}: {what}: it is said", "" if _HASH in said and "deleted" in said else said)
        if page.startswith("to-h"):
            siege.held(f"{kind}: {what}: it is said", "" if "https" in said else said)


@contextmanager
def _server(folder: Path, certificate: Path | None) -> Iterator[str]:
    """A server on this machine that answers as badly as it can; its address."""
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.path.lstrip("/")
            places = {"to-http": _ELSEWHERE, "to-file": "file:///etc/passwd", "to-itself": self.path}
            places["to-here"] = "http://127.0.0.1:9/file"
            if page in places:
                self.send_response(302)
                self.send_header("Location", places[page])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            sizes = {"good": 4, "large": 1 << 40, "short": 4096}
            if page in sizes:
                self.send_header("Content-Length", str(sizes[page]))
            self.end_headers()
            try:
                self.wfile.write(b"good")
                while page == "endless":
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                pass  # the other side has had enough

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _certificate(folder: Path) -> Path | None:
    """A certificate for this machine, and its key beside it."""
    program = shutil.which("openssl")
    if program is None:
        return None
    path = folder / "here.pem"
    words = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    done = subprocess.run(words, capture_output=True, check=False)
    return path if done.returncode == 0 else None


_LISTENING = """
import sys
def heard(event, _):
    if event.startswith("socket.") and event != "socket.gethostname":
        print("HEARD", event, file=sys.stderr)
sys.addaudithook(heard)
"""


def _silent(siege: Siege) -> None:
    """Importing everything that the package offers, and asking for help, opens no socket."""
    for what, code in (
        ("import widemargin", "import widemargin; [getattr(widemargin, name) for name in widemargin.__all__]"),
        ("--help", "from widemargin.cli import main; main(['--help'])"),
        ("losses", "from widemargin.cli import main; main(['losses'])"),
        ("train --help", "from widemargin.cli import main; main(['train', '--help'])"),
    ):
        words = [sys.executable, "-c", _LISTENING + "\n" + code]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        heard = [line for line in done.stderr.splitlines() if line.startswith("HEARD")]
        siege.held(f"{what} opens no socket", heard[0] if heard else done.stderr[-200:] if done.returncode else "")
