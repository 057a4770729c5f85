"""The sub-command `testbed bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import Commands

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
    bench = commands.add("bench", _bench, "time the codecs against a copy of the same array", EPILOG)
    bench.add_argument(
        "what",
        choices=("codecs", "costs", "gpu"),
        help="codecs; what modelled devices charge for them; or all there is to check and to time on a GPU",
    )
    bench.add_argument("--sizes", type=_sizes, default=(10**6, 10**7), metavar="1M,10M", help="elements (1M,10M)")
    bench.add_argument("--threads", type=_sizes, default=(1, 2), metavar="1,2", help="threads of a codec (1,2)")
    bench.add_argument("--rounds", type=_size, default=9, metavar="N", help="interleaved rounds (9)")
    bench.add_argument("--only", action="append", default=[], metavar="CODEC", help="this codec only; may be repeated")
    bench.add_argument("--plugin", action="append", default=[], metavar="FILE", help="Python with a codec of your own")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    bench.add_argument("--toml", type=Path, metavar="FILE", help="of costs: write the table")
    bench.add_argument("--budget", type=_seconds, default=480.0, metavar="8m", help="of gpu: time for all of it (8m)")
    bench.add_argument("--device", default="cuda", help="of gpu: which one (cuda)")
    bench.add_argument("--part", action="append", default=[], help="of gpu: this part only; may be repeated")
    bench.add_argument("--out", type=Path, default=Path("results/gpu"), metavar="DIR", help="of gpu (results/gpu)")
    bench.add_argument(
        "--write-losses", type=Path, metavar="FILE", help="of gpu: train on the CPU, and keep the losses"
    )
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures to a PNG")


def _size(text: str) -> int:
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of elements such as 500K or 10M")
    return int(number) * unit


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in text.split(","))


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


def _bench(options: argparse.Namespace) -> int:
    if options.what == "gpu":
        return _gpu(options)
    from testbed import plugins
    from testbed.cli import codec_bench as bench
    from testbed.record.info import environment
    from testbed.report.numbers.tables import markdown_table

    plugins.load(options.plugin)
    if options.what == "costs":
        return _costs(options)
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

    size, machine = options.sizes[-1], environment()
    table = cost_bench.measure(size, options.rounds)
    cells = [[name, *(f"{getattr(row, key):g}" for key in row.__struct_fields__)] for name, row in table.items()]
    print(markdown_table(["in copies of the vector", *Cost.__struct_fields__], cells))
    if options.toml:
        cost_bench.write(options.toml, table, f"{size / 1e6:g}M elements, {machine.cpu}, one thread.")
    return 0
