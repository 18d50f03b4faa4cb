"""A SuperLink: where it is, how to reach it, how long to wait for it, and what its refusals mean."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClient, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.retry.retry_invoker import RetryState
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from sketchfed.errors import InputError, LinkLostError

log = logging.getLogger("sketchfed")

SUBMIT = '`flwr run "$(sketchfed flower app)"`'
LONGEST_PAUSE = 2

Client = TypeVar("Client", bound=ProtobufClient)


class UnknownSeriesError(InputError):
    """A SuperLink that does not know an earlier run."""


@dataclass(frozen=True, kw_only=True)
class SuperLink:
    """Where a SuperLink is, and how to reach it."""

    address: str
    """host:port"""

    root_certificates: Path | None = None
    """The PEM file of the authority that signed its certificate. None stands for the authorities that the system trusts."""

    insecure: bool = False
    """Whether to connect without TLS."""

    secret: Path | None = None
    """The file that the SuperLink got as `--superexec-auth-secret-file`, if any."""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise InputError(f"'{self.address}' is no address of a SuperLink. Give host:port, as in 127.0.0.1:8000.")
        if self.insecure and self.root_certificates:
            raise InputError("a SuperLink without TLS shows no certificate. Give root_certificates, or set insecure, not both.")

    def client(
        self,
        kind: type[Client],
        *interceptors: ProtobufClientInterceptor,
        timeout: float = 30.0,
        retries: RetryInvoker | None = None,
    ) -> Client:
        return kind(
            f"{'http' if self.insecure else 'https'}://{self.address}",
            interceptors=[_Version(), *interceptors],
            verify=False if self.insecure else self._trusted(),
            timeout=timeout,
            retry_invoker=retries,
        )

    def signatures(self) -> list[ProtobufClientInterceptor]:
        """The proof that we may take the SuperLink's tasks."""
        if self.secret is None:
            return []
        secret = _read(self.secret, "secret")
        return [SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"])]

    def _trusted(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.root_certificates is None:
            context.load_default_certs()
            return context
        try:
            context.load_verify_locations(cadata=_read(self.root_certificates, "root_certificates").decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise InputError(
                f"root_certificates {self.root_certificates} holds no certificates in PEM format: {error}."
            ) from error
        return context


def _read(path: Path, name: str) -> bytes:
    try:
        if content := path.expanduser().read_bytes():
            return content
    except OSError as error:
        raise InputError(f"{name} {path} cannot be read: {error.strerror}. Give the path of a file on this machine.") from error
    raise InputError(f"{name} {path} is empty. Give the file that the SuperLink was started with.")


class _Version:
    """Tells the SuperLink which version of Flower this is. Flower's own class ends the process if the versions differ."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(dict(RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata()))
        return call_next(context)


def patience(link: SuperLink, seconds: float) -> RetryInvoker:
    """Repeat calls while the SuperLink is away, with short pauses. After some time, raise `LinkLostError`."""
    where = f"the SuperLink at {link.address}"

    def hopeless(error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code not in _AWAY
        return _is_about_tls(error)

    def waiting(state: RetryState) -> None:
        if state.tries == 1:
            log.warning("%s does not answer; trying again for %.0f s", where, seconds)

    def back(state: RetryState) -> None:
        if state.tries > 1:
            log.warning("%s is back after %.0f s", where, state.elapsed_time)

    def lost(state: RetryState) -> None:
        error = state.exception
        if isinstance(error, httpx.HTTPStatusError):
            status = error.response.status_code
            if status == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                return  # the grid itself knows what to do
            if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise LinkLostError(
                    f"{where} has ended the run: somebody stopped it, the two were out of touch for a minute, or the SuperLink "
                    "was restarted without its `--database`. Resume the run."
                ) from error
            raise LinkLostError(f"{where} fails: {_said(error)}. See its log, then resume the run.") from error
        raise LinkLostError(
            f"{where} did not answer for {state.elapsed_time:.0f} s ({error}). Start it again, then resume the run."
        ) from error

    return RetryInvoker(
        lambda: exponential(base_delay=0.1, max_delay=LONGEST_PAUSE),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=seconds,
        on_backoff=waiting,
        on_success=back,
        on_giveup=lost,
        should_giveup=hopeless,
        jitter=None,
    )


_AWAY = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)


def refusal(link: SuperLink, error: Exception, *, series: int | None = None) -> InputError:
    """Why a SuperLink cannot be joined, judged by its first answers."""
    where = f"the SuperLink at {link.address}"
    if isinstance(error, httpx.HTTPStatusError):
        said = FlowerError.from_json(error.response.text)
        if said is None and error.response.status_code != httpx.codes.UNAUTHORIZED:
            return InputError(f"what answers at {link.address} is no SuperLink ({_said(error)}). Check the address.")
        if said and said.code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
            return InputError(f"{where} is of another version of Flower: {_said(error)}. Install the same on both sides.")
        if said and said.code == ApiErrorCode.FAILED_TO_CREATE_RUN and series is not None:
            return UnknownSeriesError(
                f"{where} knows no series {series}: it is another SuperLink, or was restarted without its `--database`. Start "
                "without a series; clients then begin without what they kept."
            )
        if error.response.headers.get("WWW-Authenticate"):
            return InputError(f"{where} asks for a login, which works for `flwr run` alone. Use `flwr login`, then {SUBMIT}.")
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            given = f"{link.secret} is not it" if link.secret else "none was given"
            return InputError(
                f"{where} gives tasks only to those who know its secret, and {given}. Give its `--superexec-auth-secret-file`."
            )
        return InputError(f"{where} refuses the run: {_said(error)}. See its log for the reason.")
    if isinstance(error, ValueError):
        return InputError(f"what answers at {link.address} is no SuperLink ({error}). Check the address.")
    if _is_about_tls(error):
        return InputError(
            f"{where} cannot be trusted: {error}. Give the file of the authority that signed its certificate as "
            "root_certificates, or set insecure if it was started with --insecure."
        )
    tls = "; if it uses TLS, do not set insecure" if link.insecure else ""
    return InputError(f"no answer from {where} ({error}). Check that it runs, the address, and firewalls in between{tls}.")


def _is_about_tls(error: Exception) -> bool:
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


def _said(error: httpx.HTTPStatusError) -> str:
    said = FlowerError.from_json(error.response.text)
    if said is None:
        return f"HTTP status {error.response.status_code}"
    return " ".join(part.rstrip(".") for part in (said.message, said.public_details) if part)
