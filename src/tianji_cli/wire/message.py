"""What processes send to each other as JSON, and what is read again from it: checked on arrival."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

MOST_SHOWN: Final = 100
"""Characters of a key that came from elsewhere."""


class Message(BaseModel):
    """Plain data: frozen, and no key that is not known. Bytes are base64 in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


def first_mistake(found: ValidationError) -> str:
    """Describe the first mistake without the input, which may be a stranger's and is shown on a terminal."""
    first = found.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))[:MOST_SHOWN]
    return f"{first['type']} at {where or 'its beginning'!r}"
