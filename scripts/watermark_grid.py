"""Train the grid of watermarking schemes × models and keep one JSON record each.

    python scripts/watermark_grid.py --dataset digits --out records --save-models models
    python scripts/watermark_grid.py --dataset mnist --data FOLDER --device cuda --out records

A grid that was stopped goes on where it was. Several processes may share `--out` if they take
different `--models`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from canon import zoo
from canon.bench.watermark_grid import GridOptions, run_grid
from canon.errors import CanonError


def tell(line: str) -> None:
    """Show progress at once, in a pipe too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the grid; 0 when every record is there, 2 on a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", choices=zoo.dataset_names())
    parser.add_argument("--data", type=Path, help="folder of the dataset, for all but digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(zoo.PAPER_MODELS))
    parser.add_argument("--schemes", nargs="+", default=[], help="all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--save-models", type=Path, help="folder for trained models and keys")
    chosen = parser.parse_args()
    options = GridOptions(
        dataset=chosen.dataset,
        out=chosen.out,
        models=tuple(chosen.models),
        schemes=tuple(chosen.schemes),
        folder=chosen.data,
        device=chosen.device,
        seed=chosen.seed,
        save_models=chosen.save_models,
    )
    try:
        run_grid(options, tell)
    except CanonError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
