"""`canon bench`: run suites, pack and export their records, and build the pages of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from canon._files import UNFINISHED, check_outputs
from canon.cli import completion
from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.options import AsJson, Device, Force, parse_device
from canon.errors import BenchError

if TYPE_CHECKING:
    from canon.bench.records import Record

app = typer.Typer(no_args_is_help=True, help="Run the benchmark's suites and build their pages.")

RECORDS = Path("runs/bench/records")
DOCUMENTED = Path("docs/results/records")

SuiteName = Annotated[
    str,
    typer.Argument(
        metavar="SUITE", autocompletion=completion.suites, help="A suite's name, or the path of a TOML file."
    ),
]
SuiteNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="SUITE", autocompletion=completion.suites, help="Suites; all that have records."),
]
OutFolder = Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder of the records.")]
Records = Annotated[Path, typer.Option("--records", file_okay=False, help="Folder of the records.")]
Shown = Annotated[
    Path | None,
    typer.Option(
        "--records", file_okay=False, help=f"Folder of the records; default: {DOCUMENTED} if it has them, or {RECORDS}."
    ),
]
Pages = Annotated[
    Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder of the pages; default: around the records.")
]
Cache = Annotated[Path, typer.Option("--cache", file_okay=False, help="Folder of the trained models.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Where the datasets lie, for all but digits.")]
ExecutorName = Annotated[
    str | None,
    typer.Option("--executor", help="here, processes or ray; default: processes where there are several jobs."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Cases that are measured beside each other.")]
Address = Annotated[str | None, typer.Option("--address", help="Of a Ray cluster; auto finds one on this machine.")]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0, help="Begin nothing after this time; run again to go on.")
]
Only = Annotated[str | None, typer.Option("--only", help="Cases whose name matches this pattern.")]
Retry = Annotated[
    bool, typer.Option("--retry", help="Measure cases again that failed or did not come out as they should.")
]


@app.command("list")
@verb("canon bench list", "canon bench list --json")
def list_suites(as_json: AsJson = False) -> None:
    """List the suites, with the number of their cases and of the models they train."""
    from canon.bench.suite import load_suite, suite_names, trainings_of

    rows = []
    for name in suite_names():
        suite = load_suite(name)
        rows.append((name, len(suite.cases), len(trainings_of(suite.cases)), suite.title))
    document = [dict(zip(("suite", "cases", "models", "title"), row, strict=True)) for row in rows]
    lines = [f"{name:18} {cases:4} cases {models:3} models  {title}" for name, cases, models, title in rows]
    Talker(as_json).result(document, Text("\n".join(lines)))


@app.command()
@verb("canon bench run quick --jobs 2", "canon bench run quick --only '*recovery*' --minutes 5 --json")
def run(
    suite: SuiteName,
    out: OutFolder = RECORDS,
    cache: Cache = Path("runs/bench/models"),
    data: DataFolder = None,
    device: Device = "cpu",
    executor: ExecutorName = None,
    jobs: Jobs = 1,
    address: Address = None,
    minutes: Minutes = None,
    only: Only = None,
    retry: Retry = False,
    as_json: AsJson = False,
) -> None:
    """Measure the cases of SUITE that have no record yet, training the models they need.

    A run can be stopped at any time and goes on where it was. Exit status: 0 all is well, 1 a case failed or did not
    come out as it should, 3 some are still to do.
    """
    from canon.bench.lab import Setup
    from canon.bench.run import RunOptions, default_executor, line, run_suite
    from canon.bench.suite import load_suite

    talker = Talker(as_json)
    chosen = load_suite(suite).only(only)
    options = RunOptions(
        out=out,
        setup=Setup(cache, data, str(parse_device(device))),
        executor=executor or default_executor(jobs, address),
        jobs=jobs,
        address=address,
        minutes=minutes,
        retry=retry,
    )
    UNFINISHED.extend((cache, out))

    def tell(place: str, record: Record) -> None:
        """A line for every case; beside a bar only for those that are not as they should be."""
        if not (talker.shows_bars and record.good):
            talker.note(f"{place}  {line(record)}")

    summary = run_suite(chosen, options, talker.progress, tell)
    document = {
        "suite": chosen.name,
        "records": len(summary.records),
        "bad": [record.case.name for record in summary.bad],
        "left": summary.left,
    }
    lines = [f"{chosen.name}: {summary}"]
    lines += [f"  {record.case.name}: {record.error or 'not as it should be'}" for record in summary.bad]
    talker.result(document, Text("\n".join(lines)))
    raise typer.Exit(summary.status)


@app.command()
@verb("canon bench pack", "canon bench pack quick --records runs/bench/records")
def pack(suites: SuiteNames = None, records: Records = RECORDS, as_json: AsJson = False) -> None:
    """Put the records of each suite into one file, and remove the single ones."""
    from canon.bench.records import stores_of

    rows = []
    for store in [*stores_of(records, suites or ())]:
        path = store.pack()
        rows.append({"file": path, "records": len(store.records), "bytes": path.stat().st_size})
    lines = [f"{row['file']}: {row['records']} records, {row['bytes']:,} bytes" for row in rows]
    Talker(as_json).result(rows, Text("\n".join(lines)))


@app.command()
@verb("canon bench report", "canon bench report quick --records runs/bench/records --out pages")
def report(
    suites: SuiteNames = None,
    records: Shown = None,
    out: Pages = None,
    as_json: AsJson = False,
) -> None:
    """Build the pages of results, as Markdown and HTML with figures, from records alone.

    SUITE is a name, or the path of a TOML file of your own.
    """
    from canon.bench.tables import write_pages

    found = records or _records_of(suites or ())
    pages = list(write_pages(found, out or found.parent, suites or ()))
    Talker(as_json).result(pages, Text("\n".join(map(str, pages))))


def _records_of(suites: Sequence[str]) -> Path:
    """The documentation's own records, in Canon's repository, if they are of these suites; else what `run` wrote."""
    from canon.bench.records import suites_in

    shown = DOCUMENTED if DOCUMENTED.is_dir() else RECORDS
    return shown if {Path(name).stem for name in suites} <= set(suites_in(shown)) else RECORDS


@app.command()
@verb("canon bench export table.csv", "canon bench export quick.parquet quick --force")
def export(
    target: Annotated[Path, typer.Argument(metavar="TABLE", help="The .parquet or .csv file to write.")],
    suites: SuiteNames = None,
    records: Records = RECORDS,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write records as one table, a row for every case."""
    from canon.bench.export import export as write_table

    check_outputs([target], [records], force=force)
    rows = write_table(records, target, suites or (), force=force)
    Talker(as_json).result({"file": target, "rows": rows}, Text(f"{target}: {rows} rows"))


@app.command()
@verb("canon bench mlflow", "canon bench mlflow quick --records runs/bench/records")
def mlflow(suites: SuiteNames = None, records: Records = RECORDS, as_json: AsJson = False) -> None:
    """Log records to MLflow, one run for every case, to wherever MLFLOW_TRACKING_URI says."""
    from canon.bench.extensions import named

    loggers = named("mlflow")
    if not loggers:
        raise BenchError(
            "logging to MLflow comes with Canon's own benchmarks, which are not installed",
            hint="Use: canon bench export",
        )
    runs = loggers[-1](records, suites or ())
    Talker(as_json).result({"runs": runs}, Text(f"{runs} runs logged"))
