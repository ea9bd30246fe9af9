"""A server on loopback that gives files from memory, to download from in tests."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class FileServer:
    """`files` by path; `answers` are status codes to give first, `cut` bytes to leave out once, `asked` the paths."""

    def __init__(self, files):
        self.files, self.asked, self.answers, self.cut = dict(files), [], [], 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = unquote(self.path)
                server.asked.append(path)
                status = server.answers.pop(0) if server.answers else 200
                content = server.files.get(path, b"")
                if status == 302:
                    self.send_response(302)
                    self.send_header("Location", "ftp://127.0.0.1/file")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(status if path in server.files else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if status == 200:
                    self.wfile.write(content[: len(content) - server.cut])
                    server.cut = 0

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
