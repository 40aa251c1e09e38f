"""A small OpenID Connect issuer on this machine: discovery, keys, authorization that asks nobody, tokens, user info."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID, CLIENT_SECRET = "tokenfactory", "issuer-secret"


class Issuer(http.server.ThreadingHTTPServer):
    """`person` is who is signed in there; `nonces` and codes are kept between the steps."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.person: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def authorize(self, address: str) -> str:
        """What the issuer's page answers with once the person agrees: the address to go back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def claims(self, code: str) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 60, **self.person}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        url = self.server.url
        if self.path == "/.well-known/openid-configuration":
            self._answer(
                {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/authorize",
                    "token_endpoint": f"{url}/token",
                    "userinfo_endpoint": f"{url}/userinfo",
                    "jwks_uri": f"{url}/jwks",
                    "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                }
            )
        elif self.path == "/jwks":
            key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.server.key.public_key()))
            self._answer({"keys": [{**key, "kid": "1", "use": "sig", "alg": "RS256"}]})
        else:
            self._answer(self.server.person)

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        claims = self.server.claims(sent["code"][0])
        token = jwt.encode(claims, self.server.key, "RS256", headers={"kid": "1"})
        self._answer({"access_token": "access", "token_type": "Bearer", "expires_in": 60, "id_token": token})

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
