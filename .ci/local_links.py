"""A page of links, with hashes, to the files that a lock file allows in the folders that pip is configured to look in.

python .ci/local_links.py LOCK > PAGE
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ALLOWED = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", Path(sys.argv[1]).read_text()))
CONFIG = subprocess.run(
    [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
).stdout

for line in CONFIG.splitlines():
    name, _, value = line.partition("=")
    if not name.endswith("find-links"):
        continue
    for folder in value.strip("'\"").replace("\\n", " ").split():
        for file in sorted(Path(folder.removeprefix("file://")).glob("*")):
            if file.name.endswith((".whl", ".tar.gz", ".zip")):
                with file.open("rb") as data:
                    digest = hashlib.file_digest(data, "sha256").hexdigest()
                if digest in ALLOWED:
                    uri = f"{file.resolve().as_uri()}#sha256={digest}"
                    sys.stdout.write(f'<a href="{uri}">{file.name}</a>\n')
