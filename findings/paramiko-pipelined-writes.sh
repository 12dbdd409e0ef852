#!/usr/bin/env bash
# Guess: closing a file of paramiko's SFTP client raises an error if the server has not stored what was written.
# Happens: with `set_pipelined(True)`, which fast copies need, neither `write` nor `close` does: the refusals are not read.
# Version: paramiko 5.1.0
# Copes: spark_channel/connectors/remote/sftp.py
. "$(dirname "$0")/common.bash"
pip_install paramiko==5.1.0
observe python3 - <<'EOF'
import socket
import threading

import paramiko

class Login(paramiko.ServerInterface):
    check_auth_none = lambda self, user: paramiko.AUTH_SUCCESSFUL
    get_allowed_auths = lambda self, user: "none"
    check_channel_request = lambda self, kind, number: paramiko.OPEN_SUCCEEDED

class FullDisk(paramiko.SFTPServerInterface):
    def open(self, path, flags, attributes):
        handle = paramiko.SFTPHandle(flags)
        handle.write = lambda offset, data: paramiko.SFTP_FAILURE
        return handle

near, far = socket.socketpair()
server = paramiko.Transport(far)
server.add_server_key(paramiko.RSAKey.generate(2048))
server.set_subsystem_handler("sftp", paramiko.SFTPServer, FullDisk)
server.start_server(event=threading.Event(), server=Login())
client = paramiko.Transport(near)
client.start_client()
client.auth_none("user")
sftp = paramiko.SFTPClient.from_transport(client)
for pipelined in (False, True):
    try:
        with sftp.open("file", "wb") as file:
            file.set_pipelined(pipelined)
            file.write(b"x" * 100_000)
        print(pipelined, "no error")
    except OSError as error:
        print(pipelined, error)
client.close()
server.close()
EOF
expect <<'EOF'
False Failure
True no error
EOF
