"""Measured samples in, an SVG picture out: horizontal bars in groups, with whiskers from the lowest to the highest sample.

Owns nothing. Every group has a scale of its own, since their units differ. The picture is plain text with colours that can
be read on a light and on a dark page.
"""

import statistics
from html import escape

WIDTH, LABEL, VALUE = 760, 190, 110
BAR, GAP, HEAD = 16, 14, 30
COLOURS = ("#2f6fb0", "#c9822b", "#5b9a5b", "#8a6bb0")


def bars(title: str, groups: list[tuple[str, dict[str, list[float]], int]]) -> str:
    """A picture of (label, samples by peer, digits of the values) groups. All groups have the same peers."""
    names = list(dict.fromkeys(name for _, samples, _ in groups for name in samples))
    height = HEAD * 2 + sum(len(samples) * BAR + GAP for _, samples, _ in groups)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="19" font-size="14" font-weight="bold" fill="#222222">{escape(title)}</text>',
    ]
    for place, name in enumerate(names):
        x = 8 + place * 150
        lines.append(f'<rect x="{x}" y="{HEAD}" width="12" height="12" fill="{COLOURS[place % len(COLOURS)]}"/>')
        lines.append(f'<text x="{x + 18}" y="{HEAD + 11}" fill="#222222">{escape(name)}</text>')
    y = HEAD * 2
    for label, samples, digits in groups:
        lines.append(f'<text x="8" y="{y + len(samples) * BAR / 2 + 4:.0f}" fill="#222222">{escape(label)}</text>')
        unit = (WIDTH - LABEL - VALUE) / max(max(values) for values in samples.values())
        for name, values in samples.items():
            middle, low, high = (pick(values) * unit for pick in (statistics.median, min, max))
            colour = COLOURS[names.index(name) % len(COLOURS)]
            lines.append(f'<rect x="{LABEL}" y="{y}" width="{middle:.1f}" height="{BAR - 3}" fill="{colour}"/>')
            at = y + (BAR - 3) / 2
            lines.append(f'<path d="M{LABEL + low:.1f} {at}H{LABEL + high:.1f}" stroke="#222222"/>')
            text = f"{statistics.median(values):.{digits}f}"
            lines.append(f'<text x="{LABEL + high + 6:.1f}" y="{y + 11}" fill="#222222">{text}</text>')
            y += BAR
        y += GAP
    return "\n".join([*lines, "</svg>"]) + "\n"
