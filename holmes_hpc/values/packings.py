"""How documents are read and become samples: the values of `data.format` and `data.packing`."""

from __future__ import annotations

FORMATS = ("auto", "plain", "jsonl", "parquet")
"""What files of documents are; `auto` goes by their endings, and takes those that it does not know for plain text."""
PACKINGS = {
    "auto": "documents for text, whole for chat, else causal",
    "causal": "windows of the tokens as they follow; attention crosses the ends of documents",
    "documents": "the same windows; attention stays inside each document, and its positions begin at 0",
    "whole": "as many whole documents as fit, then padding; attention stays inside each; longer ones are cut",
    "single": "one document a sample, then padding; longer ones are cut",
}
"""How documents become samples (`data.packing`), with a line of help."""
BY_KIND = {"text": "documents", "chat": "whole"}
"""What `auto` means where it is not `causal`."""
INSIDE = frozenset({"documents", "whole", "single"})
"""Those that keep attention inside documents."""
WHOLE = frozenset({"whole", "single"})
"""Those whose samples begin with a document."""
