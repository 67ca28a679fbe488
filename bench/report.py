"""Turns the samples of bench/compare and bench/mounts into medians, ratios and a table."""
import os
import platform
import statistics
import sys

from peers import COPIES
from processes import PROGRAM

NOT_PEERS = ("ext4", "passthrough", "nacre", *COPIES)


def summarise(tests, labels, results):
    """Everything that was measured, ready for JSON. A ratio is speed relative to the first filesystem: above 1 is faster."""
    rows = []
    for test in tests:
        medians = {label: median(results[test.name][label]) for label in labels}
        rows.append({
            "test": test.name,
            "unit": test.unit,
            "more_is_better": test.more_is_better,
            "filesystems": {label: {"median": medians[label],
                                    "ratio": speed_ratio(test, medians[label], medians[labels[0]]),
                                    "samples": results[test.name][label]} for label in labels},
            "nacre_to_best_peer": to_best_peer(test, medians),
        })
    return {"machine": machine(), "first": labels[0], "rows": rows}


def median(samples):
    numbers = [sample for sample in samples if not isinstance(sample, str)]
    return statistics.median(numbers) if numbers else None


def speed_ratio(test, value, reference):
    if not value or not reference:
        return None
    return value / reference if test.more_is_better else reference / value


def to_best_peer(test, medians):
    others = [value for label, value in medians.items() if label not in NOT_PEERS and value]
    if not others or not medians.get("nacre"):
        return None
    return speed_ratio(test, medians["nacre"], max(others) if test.more_is_better else min(others))


def failures(summary):
    return [(row["test"], label, sample) for row in summary["rows"] for label, figures in row["filesystems"].items()
            for sample in figures["samples"] if isinstance(sample, str)]


def machine():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        gib = int(meminfo.readline().split()[1]) / 2**20
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}"


def number(value):
    if value is None:
        return "failed"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(figures, is_first):
    if is_first or figures["ratio"] is None:
        return number(figures["median"])
    return f"{number(figures['median'])} (×{figures['ratio']:.2f})"


def table(summary):
    labels = list(summary["rows"][0]["filesystems"])
    compared = any(row["nacre_to_best_peer"] for row in summary["rows"])
    lines = [["test", *labels] + (["nacre ÷ best peer"] if compared else [])]
    for row in summary["rows"]:
        line = [f"{row['test']} {row['unit']}"]
        line += [cell(row["filesystems"][label], label == labels[0]) for label in labels]
        if compared:
            ratio = row["nacre_to_best_peer"]
            line.append(f"×{ratio:.2f}" if ratio else "–")
        lines.append(line)
    problems = "".join(f"\n{test} on {label}: {why}" for test, label, why in failures(summary))
    head = f"{' '.join([PROGRAM, *sys.argv[1:]])}\n{summary['machine']}; medians, (×) relative to {summary['first']}, higher is better\n\n"
    return head + aligned(lines) + problems


def aligned(lines):
    """The first line is the head of the table."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(item.ljust(width) for item, width in zip(line, widths)) + " |" for line in lines)
