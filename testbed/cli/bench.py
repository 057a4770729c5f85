"""The sub-command `testbed bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import Commands, count, some

EPILOG = """\
Each round times a copy of the array and every codec once, in turn; medians over the rounds are compared with the
copy's. On a shared machine read the columns "of a copy", not the absolutes.
examples:
  testbed bench codecs
  testbed bench codecs --sizes 1M --threads 1 --only "ternary" --only "ternary, blockwise"
  testbed bench codecs --sizes 1M,10M,60M --json codecs.json --plot codecs.png
  testbed bench costs --toml testbed/codecs/costs.toml
  testbed bench gpu --budget 8m
  testbed bench gpu --part codecs --part steps
"""
UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def add(commands: Commands) -> None:
    """Add the sub-command."""
    benches = commands.group("bench", "time codecs, what they are charged, or a GPU", EPILOG)
    codecs = benches.add("codecs", _codecs, "time the codecs against a copy of the same array", EPILOG)
    codecs.add_argument("--sizes", type=_sizes, default=(10**6, 10**7), metavar="1M,10M", help="elements (1M,10M)")
    codecs.add_argument("--threads", type=_counts, default=(1, 2), metavar="1,2", help="threads of a codec (1,2)")
    _add_rounds(codecs)
    codecs.add_argument("--only", action="append", default=[], metavar="CODEC", help="this one only; may be repeated")
    codecs.add_argument("--plugin", action="append", default=[], metavar="FILE", help="Python with a codec of your own")
    codecs.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    codecs.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures to a PNG")
    costs = benches.add("costs", _costs, "time what modelled devices charge for codecs, in copies of a vector", EPILOG)
    costs.add_argument("--size", type=_size, default=10**7, metavar="10M", help="elements of the vector (10M)")
    _add_rounds(costs)
    costs.add_argument("--toml", type=Path, metavar="FILE", help="write the table")
    gpu = benches.add("gpu", _gpu, "check and time all there is on a GPU", EPILOG)
    gpu.add_argument("--budget", type=_seconds, default=480.0, metavar="8m", help="time for all of it (8m)")
    gpu.add_argument("--device", default="cuda", help="which one (cuda)")
    gpu.add_argument("--part", action="append", default=[], help="this part only; may be repeated")
    gpu.add_argument("--out", type=Path, default=Path("results/gpu"), metavar="DIR", help="(results/gpu)")
    gpu.add_argument("--write-losses", type=Path, metavar="FILE", help="train on the CPU, and keep the losses")


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=count, default=9, metavar="N", help="interleaved rounds (9)")


def _size(text: str) -> int:
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of elements such as 500K or 10M")
    return int(number) * unit


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in text.split(","))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(count, some(text)))


def _seconds(text: str) -> float:
    """A time such as 90, 90s, 8m or 1h."""
    number, factor = (text[:-1], {"s": 1, "m": 60, "h": 3600}[text[-1]]) if text[-1:] in ("s", "m", "h") else (text, 1)
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 90s or 8m")
    return float(int(number) * factor)


def _gpu(options: argparse.Namespace) -> int:
    from testbed.errors import InputError, nearest
    from testbed.harness.gpu import bench, likeness

    if options.write_losses:
        likeness.write(options.write_losses)
        return 0
    for part in options.part:
        if part not in bench.PARTS:
            raise InputError(f"bench gpu: no part '{part}'{nearest(part, bench.PARTS)}")
    bench.require_gpu(options.device)
    plan = bench.Plan(options.device, options.out, options.budget, options.part)
    return 0 if bench.run(plan) else 1


def _codecs(options: argparse.Namespace) -> int:
    from testbed import plugins
    from testbed.cli import codec_bench as bench
    from testbed.record.info import environment
    from testbed.report.numbers.tables import markdown_table

    plugins.load(options.plugin)
    figures = bench.measure(bench.codecs_named(options.only), options.sizes, options.threads, options.rounds)
    print(markdown_table(*bench.table(figures)))
    if options.json:
        bench.write_json(options.json, figures, environment())
    if options.plot:
        bench.draw_figures(options.plot, figures)
    return 0


def _costs(options: argparse.Namespace) -> int:
    from testbed.cli import cost_bench
    from testbed.codecs.costs import Cost
    from testbed.record.info import environment
    from testbed.report.numbers.tables import markdown_table

    size, machine = options.size, environment()
    table = cost_bench.measure(size, options.rounds)
    cells = [[name, *(f"{getattr(row, key):g}" for key in row.__struct_fields__)] for name, row in table.items()]
    print(markdown_table(["in copies of the vector", *Cost.__struct_fields__], cells))
    if options.toml:
        cost_bench.write(options.toml, table, f"{size / 1e6:g}M elements, {machine.cpu}, one thread.")
    return 0
