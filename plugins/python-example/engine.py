"""The computing: n-grams of token ids, hashed into rows of a table of small whole numbers, and summed.

For every run of 1, 2 and 3 neighbouring ids of an item, 32-bit FNV-1a over their little-endian bytes names a row of the
table (hash modulo rows) and a sign (the hash's highest bit). The vector is the sum of the signed rows. All sums are
exact in whole numbers below 2^24, so the same bits come out with numpy and without, on every machine and in any order.

The table is a file: `HASHED01`, rows and dims as u32, then rows x dims signed bytes; all little-endian.
"""

import array
import struct
import sys

from protocol import Refused

MAX_TOKENS = 4096
LENGTHS = (1, 2, 3)
FNV_BASIS, FNV_PRIME = 2_166_136_261, 16_777_619
HEADER = struct.Struct("<8sII")
MAGIC = b"HASHED01"
# n-grams between two looks at the cancellation: a few milliseconds of work.
CHUNK_WITH_NUMPY, CHUNK_WITHOUT = 4096, 256


def import_numpy(site_packages):
    """numpy, or None with a line that says what its absence means."""
    if site_packages and site_packages not in sys.path:
        sys.path.append(site_packages)
    try:
        import numpy
    except ImportError as error:
        print(
            f"numpy cannot be imported ({error}): the vectors are the same, and slower. To have it: "
            "python3 -m pip install numpy, or set site_packages in plugin.toml to a folder that holds it",
            file=sys.stderr,
            flush=True,
        )
        return None
    return numpy


def token_ids(raw: bytes):
    """Little-endian i32 values."""
    ids = array.array("i", raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


class Table:
    """A loaded model."""

    def __init__(self, content: bytes, site_packages=None):
        if len(content) < HEADER.size:
            raise Refused("artifact_invalid", "weights: shorter than their header")
        magic, self.rows, self.dims = HEADER.unpack_from(content)
        expected = HEADER.size + self.rows * self.dims
        if magic != MAGIC or not self.rows or not self.dims or len(content) != expected:
            raise Refused("artifact_invalid", f"weights: expected {MAGIC.decode()}, rows, dims and that many bytes")
        self.memory_bytes = len(content)
        self.numpy = import_numpy(site_packages)
        self.means = f"numpy {self.numpy.__version__}" if self.numpy else "plain Python"
        if self.numpy:
            flat = self.numpy.frombuffer(content, dtype=self.numpy.int8, offset=HEADER.size)
            self.table = flat.reshape(self.rows, self.dims)
        else:
            values = array.array("b", content[HEADER.size :])
            self.table = [values[row * self.dims : (row + 1) * self.dims] for row in range(self.rows)]

    def embed(self, ids, checkpoint) -> bytes:
        """The vector of one item as little-endian f32. `checkpoint` hears how many tokens are done."""
        sums = self.sum_with_numpy(ids, checkpoint) if self.numpy else self.sum_plainly(ids, checkpoint)
        return struct.pack(f"<{self.dims}f", *sums)

    def sum_with_numpy(self, ids, checkpoint):
        """All n-grams of a chunk at once."""
        np = self.numpy
        octets = np.array(ids, dtype="<i4").view(np.uint8).reshape(len(ids), 4).astype(np.uint32)
        sums = np.zeros(self.dims, dtype=np.int64)
        for length in LENGTHS:
            for start in range(0, len(ids) - length + 1, CHUNK_WITH_NUMPY):
                stop = min(start + CHUNK_WITH_NUMPY, len(ids) - length + 1)
                hashes = np.full(stop - start, FNV_BASIS, dtype=np.uint32)
                for neighbour in range(length):
                    for octet in range(4):
                        hashes = (hashes ^ octets[start + neighbour : stop + neighbour, octet]) * np.uint32(FNV_PRIME)
                signs = 1 - 2 * (hashes >> np.uint32(31)).astype(np.int64)
                sums += signs @ self.table[hashes % np.uint32(self.rows)].astype(np.int64)
                checkpoint(stop if length == LENGTHS[-1] else 0)
        checkpoint(len(ids))
        return [int(value) for value in sums]

    def sum_plainly(self, ids, checkpoint):
        """One n-gram after the other."""
        sums = [0] * self.dims
        octets = [(token & 0xFFFFFFFF).to_bytes(4, "little") for token in ids]
        for start in range(len(ids)):
            value = FNV_BASIS
            for length in range(1, min(LENGTHS[-1], len(ids) - start) + 1):
                for octet in octets[start + length - 1]:
                    value = ((value ^ octet) * FNV_PRIME) & 0xFFFFFFFF
                row = self.table[value % self.rows]
                if value >> 31:
                    sums = [total - entry for total, entry in zip(sums, row)]
                else:
                    sums = [total + entry for total, entry in zip(sums, row)]
            if start % CHUNK_WITHOUT == CHUNK_WITHOUT - 1:
                checkpoint(start + 1)
        checkpoint(len(ids))
        return sums
