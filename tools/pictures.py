#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/pictures: tools/pictures.py [--check]  (the result is checked in)

restore_point.svg: which pools have what of one prompt in which tier, and where it can resume.
first_token.svg: seconds to the first token, from the table in README.md, which says where they were measured.
--check: draws nothing; 1 and the names of pictures that are not what this would draw.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures"
INK, FAINT, PAPER = "#24292f", "#6e7781", "#ffffff"
TIERS = {"device": "#1f6feb", "host": "#2da44e", "disk": "#bf8700"}
PAGES, WIDTH, HEIGHT, LEFT, TOP, STEP = 12, 48, 26, 150, 84, 52
# What each pool still has, by page; a recurrent state stands at the end of its page.
KV = ["device"] * 5 + ["host"] * 4 + ["disk"] * 2 + [""]
WINDOW = ["", "", "disk", "disk", "", "", "host", "host", "", "", "device", ""]
STATE = ["", "", "", "disk", "", "", "", "host", "", "", "", "device"]


class Drawing:
    def __init__(self, width, height):
        self.size = width, height
        self.parts = []

    def box(self, x, y, width, height, fill, stroke="none", dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}" '
                          f'stroke="{stroke}"{dashes}/>')

    def line(self, x, y, to_y, color, dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{to_y}" stroke="{color}" stroke-width="2"{dashes}/>')

    def dot(self, x, y, color):
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="9" fill="{color}"/>')

    def text(self, x, y, words, color=INK, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">'
                          f'{words}</text>')

    def svg(self, title):
        width, height = self.size
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" font-family="sans-serif" font-size="14" role="img">\n<title>{title}</title>\n'
                f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n')
        return head + "\n".join(self.parts) + "\n</svg>\n"


def restore_point():
    drawing = Drawing(800, 330)
    end = LEFT + PAGES * WIDTH
    drawing.text(LEFT, 24, "One prompt of 12 pages: what is left of it, and where", weight="bold")
    for at, (tier, color) in enumerate(TIERS.items()):
        drawing.box(LEFT + at * 110, 38, 16, 16, color)
        drawing.text(LEFT + at * 110 + 22, 51, tier)
    rows = [("attention KV", "every page before", KV), ("sliding window", "the last two pages", WINDOW),
            ("recurrent state", "one, exactly there", STATE)]
    for row, (name, needs, have) in enumerate(rows):
        y = TOP + row * STEP
        drawing.text(LEFT - 12, y + 12, name, anchor="end", weight="bold")
        drawing.text(LEFT - 12, y + 28, needs, FAINT, "end")
        for page, tier in enumerate(have):
            x = LEFT + page * WIDTH
            is_dot = name == "recurrent state"
            fill = TIERS[tier] if tier and not is_dot else "none"
            drawing.box(x + 2, y, WIDTH - 4, HEIGHT, fill, "#d0d7de", "" if tier else "3 3")
            if tier and is_dot:
                drawing.dot(x + WIDTH - 2, y + HEIGHT / 2, TIERS[tier])
    bottom = TOP + 3 * STEP
    wrong, right = LEFT + 11 * WIDTH, LEFT + 8 * WIDTH
    drawing.line(wrong, TOP - 8, bottom + 4, "#cf222e", "5 4")
    drawing.text(end, bottom + 24, "the minimum of the three:", "#cf222e", "end")
    drawing.text(end, bottom + 42, "no state was kept there", "#cf222e", "end")
    drawing.line(right, TOP - 8, bottom + 4, INK)
    drawing.text(right, bottom + 24, "the restore point:", INK, "end", "bold")
    drawing.text(right, bottom + 42, "all three have what they need", INK, "end")
    words = "The pages come from three tiers, and move to the device while the first layers compute."
    drawing.text(LEFT, bottom + 72, words, FAINT)
    return drawing.svg("Where a prompt of a hybrid model can resume")


def first_token_rows():
    """[(what was asked, [seconds of each server])] and the servers' names, from the table in README.md."""
    text = (ROOT / "README.md").read_text()
    table = text[text.index("## What it gives"):].split("\n\n")
    lines = next(part for part in table if part.startswith("| |")).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    servers = [name.replace("`", "") for name in cells[0][1::2]]
    rows = [(row[0], [re.match(r"([0-9.]+) s$", cell).group(1) for cell in row[1::2]]) for row in cells[2:]]
    return rows, servers


def first_token():
    rows, servers = first_token_rows()
    colors = ["#8c959f", "#1f6feb", "#2da44e"]
    left, bar, gap, wide = 330, 15, 16, 380
    scale = wide / max(float(value) for _, seconds in rows for value in seconds)
    height = 74 + len(rows) * (len(servers) * bar + gap)
    drawing = Drawing(800, height)
    drawing.text(20, 24, "Seconds to the first token, a prompt of 3,000 tokens", weight="bold")
    for at, (server, color) in enumerate(zip(servers, colors)):
        drawing.box(20 + at * 190, 38, 16, 16, color)
        drawing.text(42 + at * 190, 51, server)
    y = 74
    for asked, seconds in rows:
        drawing.text(left - 12, y + 1.5 * bar + 5, asked, anchor="end")
        for value, color in zip(seconds, colors):
            length = round(float(value) * scale, 1)
            drawing.box(left, y + 1, length, bar - 2, color)
            drawing.text(left + length + 6, y + bar - 3, value, FAINT)
            y += bar
        y += gap
    return drawing.svg("Seconds to the first token with llama-server alone and with Larder")


def main():
    drawn = {"restore_point.svg": restore_point(), "first_token.svg": first_token()}
    if "--check" not in sys.argv[1:]:
        OUT.mkdir(exist_ok=True)
        for name, svg in drawn.items():
            (OUT / name).write_text(svg)
        return 0
    stale = [name for name, svg in drawn.items() if not (OUT / name).exists() or (OUT / name).read_text() != svg]
    for name in stale:
        print(f"docs/pictures/{name} is not what tools/pictures.py draws: run it")
    print(f"pictures: {len(stale)} problem(s)" if stale else "pictures: ok")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
