"""Which recipe makes the tokens of a source."""

from __future__ import annotations

from holmes_hpc.data.chat.recipe import ChatRecipe
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.text import Recipe, TextRecipe, tokenizer_of


def recipe_of(settings: SourceSettings) -> Recipe:
    """Return the recipe of text or conversations. Raises as `load_tokenizer` does, and for a chat template."""
    return ChatRecipe.of(settings) if settings.kind == "chat" else TextRecipe(tokenizer_of(settings))
