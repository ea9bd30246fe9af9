"""A server on loopback that gives files from memory, to download from in tests."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class FileServer:
    """`files` by path; `answers` are status codes to give first, `asked` is what was asked for."""

    def __init__(self, files):
        self.files, self.asked, self.answers = dict(files), [], []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = unquote(self.path)
                server.asked.append(path)
                status = server.answers.pop(0) if server.answers else 200 if path in server.files else 404
                content = server.files.get(path, b"") if status == 200 else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.http.server_port}"

    def stop(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
