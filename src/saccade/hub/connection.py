"""Requests to a hub: the token goes to the hub alone, redirects are few, and every answer ends."""

import base64
import math
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import saccade
from saccade.errors import UsageError
from saccade.hub.library import client_factory
from saccade.wording import one_line

if TYPE_CHECKING:
    import httpx2

REDIRECTS = 5
SPELL = 30.0
"""Seconds in which the headers, or LEAST bytes of a body, must arrive."""
LEAST = 30_000
HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+", re.ASCII | re.IGNORECASE)
MOVED = (301, 302, 303, 307, 308)


class StatusError(Exception):
    """A status other than success, and the reason that the hub gives."""

    def __init__(self, status: int, word: str) -> None:
        super().__init__(f"answer {status}")
        self.status, self.word = status, word


class AnswerError(Exception):
    """An answer that no hub gives."""


class Body(NamedTuple):
    start: int
    """Where in the file the body starts."""
    pieces: Iterator[bytes]


class _Watch:
    """Hang up on a server that sends too little; the client only limits the time of a single read."""

    def __init__(self, sockets: list[socket.socket], seconds: float) -> None:
        self.count = 0
        self.reason = ""
        self._end = monotonic() + seconds
        self._limit = f"took longer than {seconds:g} seconds"
        self._sockets = sockets
        self._stopped, self._lock = Event(), Lock()
        Thread(target=self._run, daemon=True).start()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Record each new connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.append(info["return_value"].get_extra_info("socket"))

    def stop(self) -> None:
        """Stop watching the connections: the next request may use them."""
        with self._lock:
            self._stopped.set()

    def _run(self) -> None:
        before = 0
        while not self._stopped.wait(0.1 if self.reason else max(0.0, min(SPELL, self._end - monotonic()))):
            if monotonic() >= self._end:
                self.reason = f"timed out: it {self._limit}"
            elif not self.reason and self.count - before < LEAST:
                self.reason = f"timed out: fewer than {LEAST:,} bytes arrived in {SPELL:g} seconds"
            before = self.count
            if self.reason:
                self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            for one in [] if self._stopped.is_set() else self._sockets:
                with suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)  # SSLSocket.shutdown is not thread-safe


def _authorization(endpoint: "httpx2.URL") -> str:
    """Return the header with the address's own name and password, the user's token, or ""."""
    from huggingface_hub import constants, errors, get_token

    if endpoint.userinfo:
        pair = f"{endpoint.username}:{endpoint.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return ""
    try:
        token = get_token() or ""
    except errors.OIDCError as error:
        raise UsageError(
            f"HF_OIDC_RESOURCE is set but gave no token ({one_line(error)}); unset it"
        ) from error
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            "the token for the hub contains a character that no token has; expected hf_ and letters; "
            "set HF_TOKEN to the token that the hub shows"
        )
    return f"Bearer {token}" if token else ""


class Connection:
    """A client for one hub and the storage it redirects to."""

    def __init__(self, endpoint: str) -> None:
        import httpx2

        address = httpx2.URL(endpoint)
        self._authorization = _authorization(address)
        self._endpoint = address.copy_with(userinfo=b"")
        self._client = client_factory()()
        self._cookies = list(self._client.cookies.jar)
        self._sockets: list[socket.socket] = []  # of all requests: the client keeps connections open

    def close(self) -> None:
        self._client.close()

    def _is_hub(self, url: "httpx2.URL") -> bool:
        """Return whether the token may go there: to the hub itself, or to the same host over TLS."""
        hub = self._endpoint
        same = (url.scheme, url.port) == (hub.scheme, hub.port)
        return url.host == hub.host and (same or (url.scheme, url.port, hub.port) == ("https", None, None))

    def _headers(self, url: "httpx2.URL", start: int) -> dict[str, str]:
        headers = {"User-Agent": f"saccade/{saccade.__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        if self._authorization and self._is_hub(url):
            headers["Authorization"] = self._authorization
        return headers

    def _forget_cookies(self) -> None:
        """Drop the cookies that servers set; keep those of a client that the user made."""
        jar = self._client.cookies.jar
        jar.clear()
        for cookie in self._cookies:
            jar.set_cookie(cookie)

    @contextmanager
    def get(
        self, path: str, *, wait: int | float, seconds: float = math.inf, start: int = 0
    ) -> Iterator[Body]:
        """Request a path of the hub, from a given byte on, and yield its body in pieces as it arrives.

        Args:
            wait: Seconds for a single read.
            seconds: For the whole answer.
        """
        import httpx2

        watch = _Watch(self._sockets, seconds)
        url = httpx2.URL(f"{self._endpoint}".rstrip("/") + path)
        try:
            with ExitStack() as stack:
                for _ in range(REDIRECTS + 1):
                    request = self._client.build_request(
                        "GET",
                        url,
                        headers=self._headers(url, start),
                        timeout=wait,
                        extensions={"trace": watch.trace},
                    )
                    response = self._client.send(request, stream=True, follow_redirects=False)
                    stack.callback(response.close)
                    self._forget_cookies()
                    watch.count += LEAST
                    if response.status_code not in MOVED:
                        break
                    url = _next(response)
                    response.close()
                else:
                    raise AnswerError(f"it redirected more than {REDIRECTS} times")
                yield Body(_start(response, start), _pieces(response, watch))
        except httpx2.TransportError as error:
            if watch.reason:
                raise httpx2.ReadTimeout(watch.reason) from error
            raise
        finally:
            watch.stop()

    def read(self, path: str, *, limit: int, wait: int | float, seconds: float) -> bytes:
        """Return a whole answer of at most `limit` bytes."""
        body = bytearray()
        with self.get(path, wait=wait, seconds=seconds) as answer:
            for piece in answer.pieces:
                body += piece
                if len(body) > limit:
                    raise AnswerError(f"its answer is longer than {limit:,} bytes")
        return bytes(body)


def _next(response: "httpx2.Response") -> "httpx2.URL":
    """Return the target of a redirect; refuse one that may not be followed."""
    import httpx2

    try:
        url = response.url.join(response.headers.get("location", ""))
    except (httpx2.InvalidURL, ValueError) as error:
        raise AnswerError(f"it redirected to an unreadable address ({one_line(error, 80)})") from error
    host = url.raw_host.decode("ascii", "replace")
    usable = HOST.fullmatch(host) and 0 < (80 if url.port is None else url.port) < 65536
    if url.scheme not in ("http", "https") or not usable:
        raise AnswerError(f"it redirected to {one_line(url, 80)}, which is neither http nor https")
    if (response.url.scheme, url.scheme) == ("https", "http"):
        raise AnswerError(f"it redirected from https to http, to {one_line(url.host, 80)}")
    return url.copy_with(userinfo=b"", fragment=None)


def _start(response: "httpx2.Response", wanted: int) -> int:
    """Return the position of a body's first byte; refuse a body other than the one requested."""
    status, headers = response.status_code, response.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise AnswerError("it compressed a file although it was asked not to")
    if status == 200:
        return 0
    if status == 206 and wanted:
        if not re.match(rf"bytes {wanted}-", headers.get("content-range", "")):
            raise AnswerError("it sent a different part of the file than requested")
        return wanted
    raise StatusError(status, headers.get("x-error-code", ""))


def _pieces(response: "httpx2.Response", watch: _Watch) -> Iterator[bytes]:
    import httpx2

    for piece in response.iter_raw():
        watch.count += len(piece)
        yield piece
    if watch.reason:  # a body without a length seems to end when we hang up
        raise httpx2.ReadTimeout(watch.reason)
