#!/usr/bin/env bash
# Guess: obstore's `put(..., mode="create")` raises AlreadyExistsError only if another writer has the object.
# Happens: it repeats a request that failed on the server's side, and says so of the object that its own first request
#   wrote. Who loses so must compare what is there.
# Version: obstore 0.12.1
# Copes: spark_channel/connectors/files/conditional_put.py
. "$(dirname "$0")/common.bash"
pip_install obstore==0.12.1
observe python3 - <<'EOF'
import http.server
import threading

import obstore
from obstore.store import S3Store

class Store(http.server.BaseHTTPRequestHandler):
    """Stores the object, and answers with an error; then it refuses a second one of that name."""

    objects = {}

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        there = self.path in Store.objects
        Store.objects.setdefault(self.path, body)
        print("PUT If-None-Match:", self.headers["If-None-Match"])
        self.send_response(412 if there else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
options = {"region": "us-east-1", "skip_signature": True, "client_options": {"allow_http": True}}
store = S3Store("bucket", endpoint=f"http://127.0.0.1:{server.server_port}", **options)
try:
    obstore.put(store, "claim", b"mine", mode="create")
except Exception as error:
    print(type(error).__name__, Store.objects)
EOF
expect <<'EOF'
PUT If-None-Match: *
PUT If-None-Match: *
AlreadyExistsError {'/bucket/claim': b'mine'}
EOF
