#!/usr/bin/env bash
# Guess: redis-py raises ConnectionError when the answer to a command is lost: whether to send it again is up to the caller.
# Happens: it sends the command again by itself, also one that must not be carried out twice: one `incr` counts two.
# Version: redis 8.1.0 (redis-py)
# Copes: spark_channel/connectors/redis/client.py
. "$(dirname "$0")/common.bash"
pip_install redis==8.1.0
observe python3 - <<'EOF'
import socketserver
import threading

import redis

class Server(socketserver.StreamRequestHandler):
    """Enough of Redis: it carries out the first INCRBY, and ends the connection in place of the answer."""

    count = 0

    def handle(self):
        while line := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
            if words[0] == b"INCRBY":
                Server.count += 1
                if Server.count == 1:
                    return
                self.wfile.write(b":%d\r\n" % Server.count)
            else:
                self.wfile.write(b"%1\r\n+proto\r\n:3\r\n" if words[0] == b"HELLO" else b"+OK\r\n")

with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("one incr():", redis.Redis(port=server.server_address[1]).incr("orders"))
    server.shutdown()
EOF
expect <<'EOF'
one incr(): 2
EOF
