"""An API that knows nothing of keys. What it does says the field `x-do` of each request:

    hold          answer when the tenant is released
    status=500    answer with this status
    lines         repeated and unusual header lines
    cookie        set two cookies
    echo          answer with the body of the request
    big=3000000   answer with a body of this length
    hang-up       close the connection without an answer
    cut=60        close it after so many bytes of the answer

It prints its port, and ends when its standard input does. server.js does the same.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

changed = threading.Condition()
runs = []
released = set()


def begun(tenant):
    return [run for run in runs if run["tenant"] == tenant]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *words):
        pass

    def read_body(self):
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def respond(self, status, lines, body):
        head = f"HTTP/1.1 {status} As asked\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines)
        if status not in (204, 304):
            head += f"content-length: {len(body)}\r\n"
        answer = head.encode() + b"\r\n" + (b"" if self.command == "HEAD" else body)
        if self.cut is not None:
            answer = answer[: self.cut]
            self.close_connection = True
        self.wfile.write(answer)
        self.wfile.flush()

    def control(self):
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        tenant = asked["tenant"]
        with changed:
            if url.path == "/control/release":
                released.add(tenant)
                changed.notify_all()
            if url.path == "/control/begun":
                changed.wait_for(lambda: len(begun(tenant)) >= int(asked["times"]))
            body = json.dumps(begun(tenant)).encode()
        self.respond(200, [("content-type", "application/json")], body)

    def serve(self):
        self.cut = None
        body = self.read_body()
        if self.path.startswith("/control/"):
            return self.control()
        words = dict((word + "=").split("=")[:2] for word in self.headers.get("x-do", "").split())
        tenant = self.headers.get("x-tenant", "")
        with changed:
            runs.append({
                "tenant": tenant,
                "path": self.path,
                "key": self.headers.get("idempotency-key", ""),
                "attempt": self.headers.get("idempotency-attempt", ""),
                "body": body.decode("latin-1") if len(body) < 1000 else "",
            })
            number = len(begun(tenant))
            changed.notify_all()
            if "hold" in words:
                changed.wait_for(lambda: tenant in released)
        if "hang-up" in words:
            self.close_connection = True
            return
        if "cut" in words:
            self.cut = int(words["cut"])
        answer = f'{{"id":"pay_{number}"}}'.encode()
        lines = [("location", f"/payments/pay_{number}"), ("content-type", "application/json")]
        if "lines" in words:
            lines += [("link", '</a>; rel="x,y", </b>'), ("x-warning", "second"),
                      ("link", "</c>"), ("x-warning", "first"), ("x-empty", "")]
        if "cookie" in words:
            lines += [("set-cookie", "session=1; HttpOnly"), ("set-cookie", "csrf=2")]
        if "echo" in words:
            answer = body
        if "big" in words:
            answer = b"x" * int(words["big"])
        self.respond(int(words.get("status", 201)), lines, answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = serve


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
os._exit(0)
