"""BERT's uncased WordPiece, written from its published description: text to token ids.

State: the vocabulary. Caller: minilm.py. A text that spells a control token is read as text, as the project does.
"""

import unicodedata


class WordPiece:
    """Lower-cased WordPiece with a greedy longest match."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.ids = vocabulary
        self.begin, self.end = vocabulary["[CLS]"], vocabulary["[SEP]"]

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """`[CLS]`, at most `max_tokens - 2` pieces, `[SEP]`."""
        ids = [piece for word in words(text) for piece in self.pieces(word)]
        return [self.begin, *ids[: max_tokens - 2], self.end]

    def pieces(self, word: str) -> list[int]:
        """The longest known pieces from the left; a word that has none, or more than 100 characters, is unknown."""
        if len(word) > 100:
            return [self.ids["[UNK]"]]
        ids, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start:
                piece = self.ids.get(("##" if start else "") + word[start:end])
                if piece is not None:
                    break
                end -= 1
            if end == start:
                return [self.ids["[UNK]"]]
            ids.append(piece)
            start = end
        return ids


def words(text: str) -> list[str]:
    """Cleaned, spaced around CJK, stripped of accents, lower-cased, split at white space and punctuation."""
    out = []
    for char in text:
        if char in "\0\ufffd" or is_control(char):
            continue
        if char in "\t\n\r" or unicodedata.category(char) == "Zs" or char in "\u2028\u2029":
            out.append(" ")
        elif is_cjk(ord(char)):
            out += [" ", char, " "]
        else:
            out.append(char)
    plain = unicodedata.normalize("NFD", "".join(out))
    plain = "".join(char for char in plain if unicodedata.category(char) != "Mn").lower()
    spaced = "".join(f" {char} " if is_punctuation(char) else char for char in plain)
    return spaced.split()


def is_control(char: str) -> bool:
    """Other than the white space among them. A code point that nobody assigned stays, as in the published tokenizer."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf", "Co")


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and every ASCII sign that is neither letter nor digit."""
    code = ord(char)
    ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_sign or unicodedata.category(char).startswith("P")


def is_cjk(code: int) -> bool:
    """The blocks of ideographs that BERT takes one by one."""
    blocks = (
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F),
        (0x2B920, 0x2CEAF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    )
    return any(low <= code <= high for low, high in blocks)
