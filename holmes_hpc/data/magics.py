"""What a file is by its first bytes, where it has a format of its own."""

from __future__ import annotations

_MAGICS = {
    b"PK\x03\x04": "a zip archive, such as numpy's .npz or torch's .pt",
    b"\x1f\x8b\x08": "compressed (gzip)", b"\x28\xb5\x2f\xfd": "compressed (zstd)", b"\xfd7zXZ\0": "compressed (xz)",
    b"BZh": "compressed (bzip2)", b"PAR1": "a Parquet file", b"ARROW1": "an Arrow file",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
    b"\x04\x22\x4d\x18": "compressed (lz4)", b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file", b"SQLite format 3\0": "a database (SQLite)", b"%PDF-": "a PDF file",
    b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"\x7fELF": "a program", b"GGUF": "a model (GGUF)",
    b"MMIDIDX": "an index of Megatron, whose tokens are the .bin beside it (data=megatron)",
    (20240520).to_bytes(4, "little"): "a file of llm.c with a header of 1024 bytes, and uint16 after it",
    (20240801).to_bytes(4, "little"): "a file of llm.c with a header of 1024 bytes, and uint32 after it",
}


def format_words(begin: bytes) -> str | None:
    """Return what a file is that begins with these bytes (512 tell), such as `compressed (gzip)`; None: not known."""
    for magic, what in _MAGICS.items():
        if begin.startswith(magic):
            return what
    if begin[257:262] == b"ustar":
        return "a tar archive"
    return "weights (safetensors)" if begin[8:10] == b'{"' else None
