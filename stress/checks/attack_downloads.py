"""Downloads: https only, also after a redirect; known checksums; bounded; and none on import."""

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

from ..check import CheckContext, Outcome
from ..sandbox import Sandbox

TITLE = "downloads from hostile servers, and sockets opened by an import or --help"
KIND = "attack"
LONG = False

_REMOTE_HTTP_URL = "http://192.0.2.1/file"  # a documentation address, which no host has
_EXPECTED_SHA256 = "0" * 64


def run(context: CheckContext) -> Outcome:
    """Test addresses, redirects, checksums and sizes against real servers on this machine."""
    sandbox = Sandbox(context, {"no_proxy": "*"})
    _verify_no_sockets_opened(sandbox)
    path = context.folder / "got"
    for address in (
        _REMOTE_HTTP_URL,
        "http://127.0.0.1.example.org/x",
        "http://localhost.example.org/x",
        "file:///etc/passwd",
    ):
        sandbox.expect_refusal(f"an address like {address}", download, address, str(path), "", "")
    for address in ("ftp://127.0.0.1/x", "data:,x", "HTTP://example.org/x", "http://[::1]x/", "//host/x", "gopher://x"):
        sandbox.expect_refusal(f"an address like {address}", download, address, str(path), "", "")
    sandbox.expect_refusal(
        "a mirror over http elsewhere", download, "https://host/file", str(path), "", "http://192.0.2.1"
    )
    with _server(context.folder / "plain", None) as here:
        _try_server_responses(sandbox, here, path, "")
    certificate = _certificate(context.folder)
    note = ""
    if certificate is None:
        note = "https servers not tried: there is no openssl to make a certificate with"
    else:
        with _server(context.folder / "safe", certificate) as here:
            sandbox.expect_refusal("a certificate that nobody vouches for", download, f"{here}/good", str(path), "", "")
            _try_server_responses(sandbox, here, path, str(certificate))
    sandbox.add_result(
        "nothing is kept of what was refused", "a file is there" if list(context.folder.glob("*got*")) else ""
    )
    return sandbox.outcome(note)


def download(url: str, path: str, ca_file: str, mirror: str) -> None:
    """A download, as an attempt; `ca_file` is a certificate to trust, `mirror` a value of WIDEMARGIN_MIRROR."""
    import os

    from widemargin.data import download as download_module

    download_module.RETRY_DELAY_SECONDS = 0.0
    os.environ.pop("WIDEMARGIN_MIRROR", None)
    if ca_file:
        os.environ["SSL_CERT_FILE"] = ca_file
    if mirror:
        os.environ["WIDEMARGIN_MIRROR"] = mirror
    download_module.fetch(url, Path(path), sha256=_EXPECTED_SHA256, max_bytes=1 << 20)


def _try_server_responses(sandbox: Sandbox, base_url: str, path: Path, ca_file: str) -> None:
    kind = base_url.partition(":")[0]
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
        message = sandbox.expect_refusal(f"{kind}: {what}", download, f"{base_url}/{page}", str(path), ca_file, "")
        if page == "good":
            sandbox.add_result(
                f"{kind}: {what}: it is said", "" if _EXPECTED_SHA256 in message and "deleted" in message else message
            )
        if page.startswith("to-h"):
            sandbox.add_result(f"{kind}: {what}: it is said", "" if "https" in message else message)


@contextmanager
def _server(folder: Path, certificate: Path | None) -> Iterator[str]:
    """Start a server on this machine with hostile responses; yield its address."""
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.path.lstrip("/")
            places = {"to-http": _REMOTE_HTTP_URL, "to-file": "file:///etc/passwd", "to-itself": self.path}
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
                pass  # the client closed the connection

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
    """Create a certificate for this machine and its key."""
    program = shutil.which("openssl")
    if program is None:
        return None
    path = folder / "here.pem"
    words = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    process = subprocess.run(words, capture_output=True, check=False)
    return path if process.returncode == 0 else None


_SOCKET_AUDIT_SOURCE = """
import sys
def report_socket(event, _):
    if event.startswith("socket.") and event != "socket.gethostname":
        print("HEARD", event, file=sys.stderr)
sys.addaudithook(report_socket)
"""


def _verify_no_sockets_opened(sandbox: Sandbox) -> None:
    """Importing all public names and printing help must open no socket."""
    for what, code in (
        ("import widemargin", "import widemargin; [getattr(widemargin, name) for name in widemargin.__all__]"),
        ("--help", "from widemargin.cli.main import main; main(['--help'])"),
        ("losses", "from widemargin.cli.main import main; main(['losses'])"),
        ("train --help", "from widemargin.cli.main import main; main(['train', '--help'])"),
    ):
        words = [sys.executable, "-c", _SOCKET_AUDIT_SOURCE + "\n" + code]
        process = subprocess.run(words, capture_output=True, text=True, check=False)
        heard = [line for line in process.stderr.splitlines() if line.startswith("HEARD")]
        sandbox.add_result(
            f"{what} opens no socket", heard[0] if heard else process.stderr[-200:] if process.returncode else ""
        )
