"""The base of all sections of an experiment file, and types of their values."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pswire.config.distributions import DelayError, parse

# Up to thirty years: beyond, a clock tick would be lost in rounding.
Time = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
# Of counts that travel or are written: a JSON number holds them exactly.
LARGEST = 2**53 - 1


class Section(BaseModel):
    # Strict: 1 for true, or "1" for 1, is a mistake, not a style.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def keyed_by_number(value: Any) -> Any:
    """Convert TOML's string keys to numbers; a key that is no number stays as it is and is refused later."""
    if not isinstance(value, Mapping):
        return value
    is_number = re.compile(r"[0-9]{1,9}").fullmatch
    return {int(key) if is_number(str(key)) else key: entry for key, entry in value.items()}


def _delay(text: str) -> str:
    try:
        parse(text)
    except DelayError as error:
        raise PydanticCustomError("delay", "{problem}", {"problem": str(error)}) from error
    return text


# A distribution of times, such as "exponential(0.05)", as pswire.config.distributions reads it.
DelayText = Annotated[str, AfterValidator(_delay)]
