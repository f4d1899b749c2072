"""Print the table of figures line by line."""

from typing import Any, TextIO

from drl_cli.bench.figures import Figure, short

HEAD = ("part", "what", "median", "min - max", "")


class Sheet:
    """Show figures in a rich table on a terminal, otherwise as lines of plain text. Use in a `with` block."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.table: Any = None  # rich.table.Table, imported only on a terminal
        if out.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.table import Table

            self.table = Table(*HEAD)
            self.live = Live(self.table, console=Console(file=out), auto_refresh=False)

    def __enter__(self) -> "Sheet":
        if self.table is None:
            self._line(HEAD)
        else:
            self.live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.table is not None:
            self.live.stop()

    def add(self, figure: Figure) -> None:
        """Add a line."""
        cells = cells_of(figure)
        if self.table is None:
            self._line(cells)
        else:
            self.table.add_row(*cells)
            self.live.refresh()

    def _line(self, cells: tuple[str, ...]) -> None:
        part, what, value, spread, note = cells
        print(f"{part:<8} {what:<46} {value:>20}   {spread:<21} {note}".rstrip(), file=self.out, flush=True)


def cells_of(figure: Figure) -> tuple[str, ...]:
    """Return the texts of a line: part, what, value with unit, spread, note."""
    rounds = figure.rounds
    spread = f"{short(min(rounds))} - {short(max(rounds))}" if rounds else ""
    return figure.part, figure.what, f"{short(figure.value)} {figure.unit}", spread, figure.note
