"""As much of Stripe's API as a charge needs. It knows nothing of keys: every request is a charge."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

charges = []
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def respond(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with lock:
            self.respond(200, list(charges))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if self.path != "/v1/charges":
            return self.respond(404, {"error": {"type": "invalid_request_error"}})
        with lock:
            charge = {
                "id": f"ch_{len(charges) + 1}",
                "object": "charge",
                "amount": int(asked["amount"]),
                "currency": asked["currency"],
                "paid": True,
            }
            charges.append(charge)
        self.respond(200, charge)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
os._exit(0)
