"""Real servers on this machine for tests: PostgreSQL from its package, S3 from moto. Those that are missing are said so."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _programs() -> Path | None:
    """Where initdb and postgres are: Debian keeps them off the path."""
    for folder in [
        *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True),
        os.path.dirname(shutil.which("initdb") or ""),
    ]:
        if folder and (Path(folder) / "initdb").exists():
            return Path(folder)
    return None


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """An address of an empty database; skips where there is no PostgreSQL, or no driver for it."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = _programs()
    if programs is None or sys.platform == "win32":
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder, port = Path(tempfile.mkdtemp(prefix="kvpacket-pg-")), free_port()
    # A server refuses to run as root: whoever is root lends it to an account without rights.
    other = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if other:
        shutil.chown(folder, "nobody")
    data = folder / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True, capture_output=True, cwd=folder, **other,
    )  # fmt: skip
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **other,
    )  # fmt: skip
    try:
        _wait(port, server)
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(2)
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    for _ in range(200):
        assert server.poll() is None, "the server ended"
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=port, user="tester", dbname="postgres").close()
            return
        time.sleep(0.1)
    raise TimeoutError("PostgreSQL did not answer within 20 s")


@contextlib.contextmanager
def s3() -> Iterator[dict[str, str]]:
    """Environment with which s3:// leads to a server of this machine that has a bucket "packets"."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    try:
        import botocore.session

        client = botocore.session.get_session().create_client(
            "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="a", aws_secret_access_key="b",
        )  # fmt: skip
        client.create_bucket(Bucket="packets")
        client.close()
        yield environment
    finally:
        running.stop()
