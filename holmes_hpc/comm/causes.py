"""What torch says of an error, in a line without what concerns its authors alone."""

from __future__ import annotations

import re
import unicodedata

_SOURCE = re.compile(r"^(\[[^\]]*\] )+")
"""Where in torch's sources an error arose: `[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] `."""
_CHATTER = re.compile(r":?\s*\bGLHF!")
"""What gloo puts behind an error of a connection."""
_PICTURES, _AS_PICTURE = "So", "\ufe0f"
"""Unicode's category of pictures, and the sign that asks for one in place of a letter."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without source paths, pictures and good wishes."""
    line = (str(error).strip().splitlines() or [""])[0]
    line = _CHATTER.sub("", _SOURCE.sub("", line))
    kept = "".join(each for each in line if unicodedata.category(each) != _PICTURES and each != _AS_PICTURE)
    return kept.strip() or type(error).__name__
