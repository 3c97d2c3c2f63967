"""The network, with an answer within seconds whether it is there."""

import http.client
import threading
import urllib.error
import urllib.parse
import urllib.request

from disarm_jax.data.types import DataError, NotFoundError, Progress

_PROBE_SECONDS = 8.0
_IDLE_SECONDS = 15.0
_CHUNK = 1 << 18


def check_reachable(url: str, seconds: float | None = None) -> None:
    """Asks for the head of a page, so that nothing that retries for minutes is begun in vain.

    It goes through the proxy of the environment, if there is one, as the download itself will. A name server that does
    not answer blocks beyond any time limit of a socket, so the question is put in a thread that may be left behind.

    Args:
      url: what would be downloaded.
      seconds: how long to wait for an answer.

    Raises:
      NotFoundError: saying why, if there is no answer.
    """
    seconds = _PROBE_SECONDS if seconds is None else seconds
    answer = [f"no answer in {seconds:g} seconds"]

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=seconds):
                answer[0] = ""
        except (OSError, http.client.HTTPException) as error:
            answer[0] = str(getattr(error, "reason", "") or error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if answer[0]:
        raise NotFoundError(f"{urllib.parse.urlsplit(url).netloc} cannot be reached ({answer[0]})")


def fetch(url: str, limit: int, progress: Progress) -> bytes:
    """The bytes at an address, kept in memory.

    Args:
      url: the address.
      limit: no more bytes than this are read.
      progress: told of the bytes read.

    Raises:
      NotFoundError: if the network does not answer.
      DataError: if the transfer breaks off or is longer than the limit.
    """
    check_reachable(url)
    parts, done, total = [], 0, 0
    try:
        with urllib.request.urlopen(url, timeout=_IDLE_SECONDS) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while part := response.read(_CHUNK):
                parts.append(part)
                done += len(part)
                progress(f"downloading {url.rsplit('/', 1)[-1]}", done, max(done, total))
                if done > limit:
                    raise DataError(f"{url} is longer than {limit:,} bytes")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"the download of {url} broke off after {done:,} bytes: {error}") from error
    if done < total:
        raise DataError(f"the download of {url} broke off after {done:,} of {total:,} bytes")
    return b"".join(parts)
