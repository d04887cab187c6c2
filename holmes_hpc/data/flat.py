"""Files of nothing but tokens: numbers of one type without a header, and numpy's arrays."""

from __future__ import annotations

from pathlib import Path

import numpy

from holmes_hpc.data.magics import format_words
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.token_types import TYPES_BY_WIDTH, is_text, likely_type, sample_of
from holmes_hpc.data.tokens import Tokens, file_size, map_array, read_bytes
from holmes_hpc.errors import DataError

NPY_MAGIC = b"\x93NUMPY"


def read_flat(settings: SourceSettings, vocab_size: int) -> Tokens:
    """Return the tokens of a file without a header, of type `data.dtype`, once its bytes look like that type.

    Raises DataError for a file that is missing, unreadable, of another format, or whose tokens have another type.
    """
    path, dtype = settings.required_path, numpy.dtype(settings.dtype).newbyteorder("<")
    size, where = file_size(settings, path), f"{settings.key('path')}={path}"
    _refuse_format(where, path, read_bytes(settings, path, 512))
    stored = map_array(settings, path, numpy.uint8, 0, size)
    sample = sample_of(stored)
    if dtype.itemsize > 1 and is_text(sample):
        raise DataError(f"{where} is text, and {settings.key('dtype')}={settings.dtype} would make tokens of pairs of "
                        f"letters. Set {settings.key('name')}=text, or {settings.key('dtype')}=uint8 where a byte is a "
                        "token.")
    found = likely_type(sample, dtype, vocab_size)
    if found is not None:
        raise DataError(f"{where} does not hold tokens of {settings.key('dtype')}={settings.dtype}: "
                        f"{_remedy(settings, path, found)}")
    if size % dtype.itemsize:
        raise DataError(
            f"{where} has {size} bytes, not a multiple of the {dtype.itemsize} bytes of {settings.key('dtype')}="
            f"{settings.dtype}: the file is cut short or of another type. Write it again, or set "
            f"{settings.key('dtype')} to {', '.join(TYPES_BY_WIDTH.values())} or int32.")
    return Tokens(map_array(settings, path, dtype, 0, size // dtype.itemsize))


def read_npy(settings: SourceSettings) -> Tokens:
    """Return the tokens of a numpy array of whole numbers, row after row; the file says their type.

    Raises DataError for a file that is damaged, or holds anything else.
    """
    path = settings.required_path
    where = f"{settings.key('path')}={path}"
    try:
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror or error}. Make it readable on every "
                        "node.") from error
    except Exception as error:  # numpy raises ValueError, SyntaxError and more for what lies in a header
        raise DataError(f"{where} is a damaged numpy array: {str(error).splitlines()[0][:200]}. Save it again with "
                        "numpy.save.") from error
    if not (isinstance(array, numpy.ndarray) and array.dtype.kind in "ui" and array.ndim >= 1):
        raise DataError(f"{where} is a numpy array of {array.dtype} in {array.ndim} dims, and tokens are whole "
                        "numbers. Save them as such, as in numpy.save(path, tokens.astype('uint32')).")
    if array.ndim > 1 and not array.flags.c_contiguous:
        raise DataError(f"{where} is a numpy array that stores columns one after the other (Fortran's order), so its "
                        "rows cannot be mapped. Save numpy.ascontiguousarray of it.")
    return Tokens(array.reshape(-1))


def _refuse_format(where: str, path: Path, begin: bytes) -> None:
    what = format_words(begin)
    if what is not None:
        cut = (f"Cut the header off (tail -c +1025 {path} > tokens.bin) and set data.dtype to its type"
               if "llm.c" in what else "Unpack it, or write its tokens with holmes_hpc.data.TokenFileWriter")
        raise DataError(f"{where} is {what}, and not a file of nothing but tokens. {cut}.")


def _remedy(settings: SourceSettings, path: Path, found: str) -> str:
    if found.startswith("big-endian"):
        code = {"uint16": "u2", "uint32": "u4", "int64": "i8"}[found.split()[1]]
        way = (f"Turn its bytes round, as in numpy.fromfile({str(path)!r}, '>{code}').astype('<{code}').tofile(...)")
    elif found.startswith("float"):
        way = f"Save whole numbers, as in numpy.fromfile({str(path)!r}, '{found}').astype('uint32').tofile(...)"
    else:
        way = f"Set {settings.key('dtype')}={found}"
    return (f"its bytes look like {found}. {way}; if they are right as they are, write them with "
            "holmes_hpc.data.TokenFileWriter, whose header says the type.")
