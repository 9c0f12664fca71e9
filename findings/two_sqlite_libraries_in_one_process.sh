#!/usr/bin/env bash
# Two copies of SQLite in one process: reading a WAL database with Python's sqlite3 disturbs a connection of apsw.
#
# Versions: apsw 3.54.1.0 (SQLite 3.54.1 of its own) beside the sqlite3 of Python 3.11 (SQLite 3.40.1), on Linux.
#
# Expected: `PRAGMA data_version` of a connection changes only when another connection has committed. Readers, in this
# process or in another one, change nothing.
# Seen: a reader in another process leaves the number as it is. A read-only connection of sqlite3 in the same process
# changes it, although nobody has written: the locks of POSIX belong to the process, so that sqlite3 takes itself for the
# first user of the database, and builds the index of the log anew.
# So a program that watches data_version to notice foreign commits must not read the same file with both libraries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check apsw==3.54.1.0
cat > "$folder/watch.py" <<'PYTHON'
import sqlite3
import subprocess
import sys

import apsw

path = sys.argv[1]
READ = "import apsw, sys; list(apsw.Connection(sys.argv[1], apsw.SQLITE_OPEN_READONLY).execute('SELECT * FROM t'))"
owner = apsw.Connection(path)
owner.pragma("journal_mode", "wal")
owner.execute("CREATE TABLE t (x)")
seen = [owner.pragma("data_version")]
subprocess.run([sys.executable, "-c", READ, path], check=True)
seen.append(owner.pragma("data_version"))
reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
reader.execute("SELECT * FROM t").fetchall()
reader.close()
seen.append(owner.pragma("data_version"))
print("apsw", apsw.sqlite_lib_version(), "sqlite3", sqlite3.sqlite_version)
print("data_version: at first", seen[0], "after a reader in another process", seen[1], "after sqlite3 here", seen[2])
sys.exit(0 if seen[0] == seen[1] != seen[2] else 1)
PYTHON
"$folder/venv/bin/python" "$folder/watch.py" "$folder/watched.db"
