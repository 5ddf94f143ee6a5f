"""Removes an endpoint's secrets (keys, header values, credentials in addresses) from error text.

Which values count as secrets:

- A value of at least 8 characters is removed wherever it occurs: as it stands, URL-encoded, JSON- or HTML-escaped, and
  in base64, alone or inside a longer text. So are its pieces (``Bearer X``, ``session=X; theme=dark``) and the password
  of a ``Basic`` value.
- A value of 4 to 7 characters is removed where it is a whole word.
- A shorter value, and a value that cannot be a secret (``true``, ``application/json``, ``2023-06-01``, a number of up
  to 5 digits), stays: the text would be unreadable without it.
- A beginning of a secret is removed where the text was cut (at its end, or before ``…`` or ``...``), and anywhere if it
  is at least 8 characters and half of the secret.
- Any text in the form of a well-known vendor's key is removed, too.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from ..errors import PerdureError

E = TypeVar("E", bound=PerdureError)

REDACTION_MARK = "[redacted]"
MAX_TEXT_CHARS = 16 * 1024
"""Characters of a text that are processed; the rest is cut off. The adapters show much less."""
MIN_SUBSTRING_CHARS = 8
"""Shortest value that is removed wherever it occurs."""
MIN_WORD_CHARS = 4
"""Shortest value that is removed as a whole word."""
MAX_ESCAPED_CHARS = 64
"""Characters of a value that encoders change, up to which it is found in every encoding; a value with more of them is
found as it stands, and as the whole of it is encoded in one of the usual ways. A pattern's size grows with them."""
MAX_OPTION_SECRETS = 16
"""Values of a request's options that are removed from an error: whoever calls chooses them, and each costs time."""
MAX_OPTION_SECRET_CHARS = 2048
"""Characters of such a value; of a longer one its beginning is removed. An error quotes far less."""

_TRIVIAL_VALUE = re.compile(
    r"true|false|none|null|yes|no|on|off|auto|default|enabled|disabled|utf-?8|gzip|identity|close|keep-alive|no-cache"
    r"|no-store|\d{1,5}|\d{4}-\d\d-\d\d(-beta|-preview)?|(application|audio|image|message|multipart|text|video)/[\w.+*-]+"
    r"(;\s*charset=utf-?8)?",
    re.IGNORECASE,
)
_VENDOR_KEY = re.compile(
    r"\b(sk|rk|pk|gsk|xai)-[\w*.-]{6,}|\bAIza[\w*-]{6,}|(?<=Bearer )[^\s'\"\[]+|(?<=[?&]key=)[^\s&'\"\[]+",
    re.IGNORECASE,
)
_CREDENTIAL_NAME = re.compile(
    r"auth|bearer|cookie|credential|header|key|passw|pwd|secret|session|signature|token", re.IGNORECASE
)
"""Names under which options, program arguments and variables hold a credential."""
_NAME_VALUE_PAIR = re.compile(r"(?P<name>[\w.-]+)\s*[=:]\s*(?!//)(?P<value>.+)", re.DOTALL)
_ESCAPE_LETTERS = {"\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f"}
"""Characters that JSON and Python escape with a letter."""
_CUT_END = re.compile(r"\s*['\")\]]{0,4}(…|\.\.\.|\Z)")
_USERINFO = re.compile(r"(?<=[a-z0-9+.-])://([^/?#\s]*)@", re.IGNORECASE)
_QUERY = re.compile(r"(?<=[a-z0-9+.-])://[^?#\s]*+(?:\?([^#\s]*+))?", re.IGNORECASE)
"""Begin at the end of the scheme, and match where there is no query: each character is looked at once."""


class Redaction:
    """``Redaction(secrets).redact_text(text)``. Trivial and empty secrets are left out."""

    def __init__(self, secrets: Iterable[str | bytes]) -> None:
        values = {piece for secret in secrets for piece in _split_secret(secret)}
        self._compiled = _compile_secrets(tuple(sorted(values, key=lambda value: (-len(value), value))))

    def redact_text(self, text: str) -> str:
        """Return ``text`` without the secrets, at most ``MAX_TEXT_CHARS`` characters of it."""
        if len(text) > MAX_TEXT_CHARS:
            text = text[:MAX_TEXT_CHARS] + "…"
        pattern, forms = self._compiled
        if pattern is not None:
            text = pattern.sub(REDACTION_MARK, text)
        for form in forms:
            text = _redact_prefixes(text, form)
        return _VENDOR_KEY.sub(REDACTION_MARK, text)

    def redact_error(self, error: E) -> E:
        """Remove the secrets from message and hint of ``error``, and return it."""
        error.message = self.redact_text(error.message)
        error.hint = self.redact_text(error.hint) if error.hint else error.hint
        error.args = (error.message,)
        return error


def find_address_secrets(address: str) -> Iterator[str]:
    """Find user, password and query values of the URLs in ``address``."""
    for match in _USERINFO.finditer(address):
        yield match[1]
        yield from (part for raw in match[1].split(":", 1) for part in (raw, unquote(raw)))
    for match in _QUERY.finditer(address):
        yield from (value for _, value in parse_qsl(match[1] or ""))


def find_option_secrets(options: object) -> Iterator[str]:
    """Find the texts in ``options`` (plain data, nested) whose name is that of a credential, including headers: the
    first ``MAX_OPTION_SECRETS``, each up to ``MAX_OPTION_SECRET_CHARS``."""
    texts = (text[:MAX_OPTION_SECRET_CHARS] for text in _find_credential_texts(options))
    yield from islice(dict.fromkeys(islice(texts, 8 * MAX_OPTION_SECRETS)), MAX_OPTION_SECRETS)


def _find_credential_texts(options: object) -> Iterator[str]:
    if isinstance(options, str):
        yield from find_address_secrets(options)
    elif isinstance(options, Mapping):
        for name, value in options.items():
            if _CREDENTIAL_NAME.search(str(name)):
                values = value.values() if isinstance(value, Mapping) else (value,)
                yield from (text for text in values if isinstance(text, str))
            yield from _find_credential_texts(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _find_credential_texts(value)


def find_argument_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """Find the credentials in a program's ``arguments``: ``--token X``, ``-e API_KEY=X``, ``X-Key: X``, URLs."""
    previous = ""
    for argument in arguments:
        yield from find_address_secrets(argument)
        if (pair := _NAME_VALUE_PAIR.fullmatch(argument)) is not None and _CREDENTIAL_NAME.search(pair["name"]):
            yield pair["value"]
        elif previous.startswith("-") and "=" not in previous and _CREDENTIAL_NAME.search(previous):
            yield argument
        previous = argument


def find_variable_secrets(variables: Mapping[str, str]) -> Iterator[str]:
    """Find the values of environment ``variables``, except paths, which occur in many error texts."""
    for name, value in variables.items():
        if _CREDENTIAL_NAME.search(name) or not value.startswith(("/", "~", ".")):
            yield value
            yield from find_address_secrets(value)


def find_credentials(variables: Mapping[str, str]) -> list[str]:
    """Find the values of the environment ``variables`` whose names say that they hold a credential, the longest
    first."""
    values = {value.strip() for name, value in variables.items() if _CREDENTIAL_NAME.search(name)}
    return sorted(
        (value for value in values if len(value) >= MIN_SUBSTRING_CHARS), key=lambda value: (-len(value), value)
    )


def redact_credentials(text: str, credentials: Iterable[str]) -> str:
    """Return the whole of ``text`` without these values and the keys of known vendors: for texts that authors have
    written, and that are kept."""
    for value in credentials:
        text = text.replace(value, REDACTION_MARK)
    return _VENDOR_KEY.sub(REDACTION_MARK, text)


def _split_secret(secret: Any) -> Iterator[str]:
    """Iterate over ``secret`` and its parts that are secrets by themselves."""
    if isinstance(secret, bytes):  # the value of a header
        try:
            secret = secret.decode()
        except UnicodeDecodeError:
            secret = secret.decode("latin-1")
    secret = str(secret).strip()
    if len(secret) < MIN_WORD_CHARS or _TRIVIAL_VALUE.fullmatch(secret):
        return
    yield secret
    scheme, _, rest = secret.partition(" ")
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(rest.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            decoded = ""
        yield from (part for part in (decoded, decoded.partition(":")[2]) if len(part) >= MIN_WORD_CHARS)
    elif scheme.isalpha() and len(rest.strip()) >= MIN_WORD_CHARS and not _TRIVIAL_VALUE.fullmatch(rest.strip()):
        yield rest.strip()
    for piece in re.split(r"[\s;,=&]+", secret):
        if len(piece) >= MIN_SUBSTRING_CHARS and not piece.endswith(":") and not _TRIVIAL_VALUE.fullmatch(piece):
            yield piece


@lru_cache(maxsize=64)
def _compile_secrets(values: tuple[str, ...]) -> tuple[re.Pattern[str] | None, tuple[str, ...]]:
    """Build a pattern of all forms of ``values``, and list the forms of which a beginning may remain after a cut."""
    substrings = [value for value in values if len(value) >= MIN_SUBSTRING_CHARS]
    patterns = [pattern for value in substrings for pattern in _list_substring_patterns(value)]
    cores = [core for value in substrings for core in _list_base64_cores(value)]
    patterns += [f"{pattern}(?:=|%3D){{0,2}}" for core in cores for pattern in _list_substring_patterns(core)]
    patterns += [
        rf"(?<!\w){_build_secret_pattern(value)}(?!\w)" for value in values if len(value) < MIN_SUBSTRING_CHARS
    ]
    forms = dict.fromkeys(form for value in values for form in _list_whole_encodings(value)) | dict.fromkeys(cores)
    return re.compile("|".join(patterns)) if patterns else None, tuple(forms)


def _list_substring_patterns(value: str) -> Iterator[str]:
    """List the regular expressions that find ``value`` in any encoding, or only in the usual ones."""
    if sum(not (char.isascii() and char.isalnum()) for char in value) <= MAX_ESCAPED_CHARS:
        yield _build_secret_pattern(value)
    else:
        yield from (re.escape(form) for form in dict.fromkeys(_list_whole_encodings(value)))


def _list_whole_encodings(value: str) -> tuple[str, ...]:
    return value, json.dumps(value)[1:-1], quote(value, safe="", errors="replace"), escape(value)


def _build_secret_pattern(value: str) -> str:
    """Build a regular expression of ``value`` with any of its characters URL-encoded or escaped.

    ASCII letters and digits match only themselves: no encoder changes them. A run of backslashes matches as a whole,
    possessively, since otherwise every way to divide it among its characters would be tried; so the escape of the
    character after the run may be missing.
    """
    pattern, after_run = "", False
    for part in re.findall(r"\\+|[^\\]", value):
        if part[0] == "\\":
            count, encodings = len(part), _join_alternatives(_list_encodings(part[0]))
            pattern += rf"(?:\\{{{count},{5 * count}}}+|{encodings}{{{count}}})"
        elif part.isascii() and part.isalnum():
            pattern += part
        else:
            encodings_of_part = _list_encodings(part, least=0 if after_run else 1)
            pattern += _join_alternatives([rf"\\{{0,4}}{re.escape(part)}", *encodings_of_part])
        after_run = part[0] == "\\"
    return pattern


def _join_alternatives(forms: Iterable[str]) -> str:
    return f"(?:{'|'.join(forms)})"


def _list_encodings(char: str, least: int = 1) -> Iterator[str]:
    """List the encoded forms of ``char``; ``least``: the fewest backslashes of an escaped form."""
    code, body = ord(char), char.encode(errors="surrogatepass")
    units = char.encode("utf-16-be", errors="surrogatepass").hex()
    first = rf"\\{{{least},4}}"
    yield "(?i:" + "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in body) + ")"
    yield f"(?i:{first}" + r"\\{1,4}".join(f"x{byte:02x}" for byte in body) + ")"
    yield f"(?i:{first}" + r"\\{1,4}".join(f"u{units[at : at + 4]}" for at in range(0, len(units), 4)) + ")"
    yield f"(?i:&#(?:0{{0,4}}{code}|x0{{0,4}}{code:x});)"
    # One way to match each text: with two of them, a run of such characters would be tried in every combination.
    yield rf"(?i:{first}U{code:08x})" if code < 0x80 else rf"(?i:{first}(?:U{code:08x}|x{code:02x}))"
    if (named := escape(char)) != char:
        yield named
    if char in _ESCAPE_LETTERS:
        yield f"{first}{_ESCAPE_LETTERS[char]}"
    if quote_plus(char) == "+":
        yield r"\+"


def _list_base64_cores(value: str) -> Iterator[str]:
    """List what base64 of any text with ``value`` contains: one string for each position in a group of three bytes."""
    body = value.encode(errors="surrogatepass")
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + body).decode()
        core = encoded[(shift * 8 + 5) // 6 : (shift + len(body)) * 8 // 6]
        yield from dict.fromkeys((core, core.replace("+", "-").replace("/", "_")))


def _redact_prefixes(text: str, form: str) -> str:
    """Remove beginnings of ``form`` from ``text``: see the module."""
    start = 0
    while (start := text.find(form[:MIN_WORD_CHARS], start)) >= 0:
        length = _measure_common_prefix(text, start, form)
        is_half = len(form) >= 2 * MIN_SUBSTRING_CHARS and length >= max(MIN_SUBSTRING_CHARS, len(form) // 2)
        if is_half or (length < len(form) and _CUT_END.match(text, start + length)):
            text = f"{text[:start]}{REDACTION_MARK}{text[start + length :]}"
            start += len(REDACTION_MARK)
        else:
            start += 1
    return text


def _measure_common_prefix(text: str, start: int, form: str) -> int:
    """Return how many characters of ``form`` stand in ``text`` at ``start``, by halving: each comparison is one of
    memory, also of a long text that nearly matches everywhere."""
    least, most = 0, min(len(form), len(text) - start)
    while least < most:
        middle = (least + most + 1) // 2
        if text.startswith(form[:middle], start):
            least = middle
        else:
            most = middle - 1
    return least
