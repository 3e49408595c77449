# SPDX-License-Identifier: Apache-2.0
"""The text that is printed, and the bars."""

import datetime
import os
import platform
import statistics
import subprocess

FILE, CACHED, SYNCFS, LARDER, ZERO_COPY = "file", "file, metadata cache", "file, syncfs", "larder", "larder, zero_copy"

GET_BARS = {64 << 10: 3.0, 512 << 10: 3.0, 2 << 20: 2.0}
SET_BAR = 1.5
EXISTS_BAR, EXISTS_CACHED_BAR = 50.0, 5.0
OVERHEAD_BAR_US = 100.0


def size_text(size):
    """Returns 65536 as "64 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size:g} {unit}"
        size /= 1024
    return ""


def machine(directory):
    """Returns a line about the machine, and about how busy it is."""
    model = "unknown CPU"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    command = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    today = datetime.datetime.now().isoformat(" ", "minutes")
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, {found}, {today}, load {load}"


def _time_text(seconds):
    if seconds < 0.01:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.0f} ms"


def _cell(row, name):
    times = row.seconds[name]
    return f"{_time_text(row.median(name))} [{_time_text(min(times))}..{_time_text(max(times))}]"


def table(rows):
    """Returns a line per row and side: times and the ratio to the first side, with its spread within repetitions."""
    lines = [
        f"{'operation':<14} {'page':>8} {'thr':>3} {'stored':>9}  {'backend':<21} {'median [min..max]':<32}"
        f" {'GiB/s':>6}  {'of file':>8} [spread]"
    ]
    for row in rows:
        base = next(iter(row.seconds))
        for name in row.seconds:
            low, high = row.ratio_spread(name, base)
            moved = 128 * row.threads * row.page_bytes / row.median(name) / 2**30
            speed = f"{moved:6.2f}" if row.operation in ("set", "get") else " " * 6
            ratio = "" if name == base else f"{row.ratio(name, base):7.1f}x [{low:.1f}..{high:.1f}]"
            lines.append(
                f"{row.operation:<14} {size_text(row.page_bytes):>8} {row.threads:>3} {row.stored:>9,}  {name:<21} "
                f"{_cell(row, name):<32} {speed}  {ratio}".rstrip()
            )
    return "\n".join(lines)


def overhead_table(found):
    """Returns the cost of calls that move next to nothing: {operation: (whole calls, the part below larder.Space)}."""
    lines = ["calls of 128 pages of 1 KiB, backend `memory`: whole call, and what of it is Python above the binding"]
    for name, (whole, below) in found.items():
        total, inner = statistics.median(whole) * 1e6, statistics.median(below) * 1e6
        split = f"of it Python {total - inner:6.1f} us, binding and C++ {inner:6.1f} us"
        lines.append(f"  {name:<22} {total:7.1f} us, {split}")
    return "\n".join(lines)


def bars(rows, found):
    """Returns (text, value, bar, holds) for every bar that was measured."""
    out = []
    for row in rows:
        what = f"{row.operation}, {size_text(row.page_bytes)}, {row.threads} threads"
        if row.operation == "get" and row.page_bytes in GET_BARS:
            out.append((what, row.ratio(LARDER, FILE), GET_BARS[row.page_bytes]))
        elif row.operation == "set" and row.page_bytes in GET_BARS:
            out.append((f"{what}, of fsync", row.ratio(LARDER, FILE), SET_BAR))
            if SYNCFS in row.seconds:
                out.append((f"{what}, of syncfs", row.ratio(LARDER, SYNCFS), SET_BAR))
        elif row.operation.startswith("exists") and CACHED in row.seconds:
            what = f"{row.operation}, {row.stored:,} stored, {row.threads} threads"
            out.append((f"{what}, of default", row.ratio(LARDER, FILE), EXISTS_BAR))
            out.append((f"{what}, of cache", row.ratio(LARDER, CACHED), EXISTS_CACHED_BAR))
    judged = [(text, value, bar, value >= bar) for text, value, bar in out]
    for name, (whole, below) in found.items():
        value = (statistics.median(whole) - statistics.median(below)) * 1e6
        judged.append((f"Python's part of {name}, us (at most)", value, OVERHEAD_BAR_US, value <= OVERHEAD_BAR_US))
    return judged


def bars_table(judged):
    """Returns a line per bar."""
    lines = ["bars"]
    for text, value, bar, holds in judged:
        lines.append(f"  {'holds ' if holds else 'BELOW '} {text:<52} {value:8.2f}  (bar {bar:g})")
    return "\n".join(lines)


def as_json(rows, found, judged, about):
    """Returns everything as plain data."""
    return {
        "about": about,
        "rows": [vars(row) for row in rows],
        "overhead_seconds": {name: {"whole": whole, "below": below} for name, (whole, below) in found.items()},
        "bars": [{"what": text, "value": value, "bar": bar, "holds": holds} for text, value, bar, holds in judged],
    }
