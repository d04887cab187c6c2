"""A kind of data: DNA in a FASTA file, a letter is a token, any other letter than A, C, G and T is N."""

from typing import Any

import numpy

from holmes_hpc import extend

LETTERS = "ACGTN"


def read_fasta(settings: Any) -> numpy.ndarray:
    """Return the letters of all sequences, one after another."""
    lines = settings.required_path.read_bytes().splitlines()
    text = b"".join(line for line in lines if not line.startswith((b">", b";"))).upper()
    table = numpy.full(256, LETTERS.index("N"), dtype=numpy.uint8)
    for token, letter in enumerate(LETTERS):
        table[ord(letter)] = token
    return table[numpy.frombuffer(text, dtype=numpy.uint8)]


extend.add_source("fasta", read_fasta, needs_path=True, vocab_size=len(LETTERS))
