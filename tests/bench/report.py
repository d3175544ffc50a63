"""The result page: measured samples in, Markdown out.

Owns nothing. Each figure is a median with its spread (lowest to highest); a ratio is the median of the rounds'
ratios, since only figures of one round saw the same machine.
"""

import os
import platform
import statistics


def machine() -> str:
    """The CPU's name, its vector units, and the number of CPUs."""
    name, flags = platform.machine(), set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = value.strip()
                elif key.strip() == "flags":
                    flags = set(value.split())
    except OSError:
        pass
    units = [unit for unit in ("avx2", "fma", "avx512f") if unit in flags]
    return f"{name} ({', '.join(units) or 'no known vector units'}), {os.cpu_count()} CPUs, {platform.system()}"


def spread(samples: list[float], digits: int) -> str:
    """`median (lowest–highest)`."""
    return f"{statistics.median(samples):.{digits}f} ({min(samples):.{digits}f}–{max(samples):.{digits}f})"


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


class Report:
    """A page under construction."""

    def __init__(self, title: str):
        self.lines = [f"# {title}", ""]

    def text(self, *lines: str) -> None:
        """Adds a paragraph."""
        self.lines += [*lines, ""]

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        """Adds a table."""
        self.lines.append("| " + " | ".join(head) + " |")
        self.lines.append("|" + "---|" * len(head))
        self.lines += ["| " + " | ".join(row) + " |" for row in rows]
        self.lines.append("")

    def render(self) -> str:
        """The page."""
        return "\n".join(self.lines).rstrip() + "\n"
