"""Train schemes × models on one dataset and keep what came of it, one JSON record each.

Every model is also trained without a mark, in the same way: the twin whose accuracy the marked
models are held against, and on which every key must read nothing. Finished records are skipped, so
a grid can be stopped, and split over processes by model or scheme.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from canon import watermarks, zoo
from canon._version import __version__
from canon.bench.presets import train_options
from canon.errors import MissingExtraError
from canon.watermarks import Dataset, Embedding, EpochReport, Message
from canon.watermarks.passports import PassportScheme
from canon.watermarks.train import MarkState, train

TWIN: Final = "twin"
_WRONG_SEED_OFFSET: Final = 104_729


@dataclass(frozen=True)
class GridOptions:
    """What to train and where to keep it."""

    dataset: str
    """Name of a dataset of the zoo."""
    out: Path
    """Folder of the records."""
    models: tuple[str, ...] = zoo.PAPER_MODELS
    """Architectures by name."""
    schemes: tuple[str, ...] = ()
    """Schemes by name; none means all."""
    folder: Path | None = None
    """Where the dataset lies, for all but the digits."""
    device: str = "cpu"
    """Where to train."""
    seed: int = 0
    """Seed of weights, secrets and the order of images."""
    save_models: Path | None = None
    """Folder for trained models and keys, if they are to be kept."""


@dataclass(frozen=True)
class GridRecord:
    """One trained model; what is not measured on twins is None there."""

    dataset: str
    """Name of the dataset."""
    model: str
    """Name of the architecture."""
    scheme: str
    """Name of the scheme, or `twin`."""
    seed: int
    """Seed of the run."""
    accuracy: float
    """Test accuracy of the shipped model."""
    twin_accuracy: float
    """Test accuracy of the model trained without a mark."""
    epochs: int
    """Epochs trained."""
    seconds: float
    """Wall time of preparing and training."""
    similarity: float | None = None
    """Native similarity on the shipped model."""
    matched: int | None = None
    """Message bits that are right."""
    total: int | None = None
    """Message bits."""
    margin: float | None = None
    """The least agreement of any carrier."""
    wrong_key_similarity: float | None = None
    """What somebody else's key reads on the shipped model."""
    unmarked_similarity: float | None = None
    """What the owner's key reads on the twin, where its weights were at hand."""
    layers: tuple[str, ...] = ()
    """Watermark-bearing layers."""
    details: dict[str, str | float | bool] | None = None
    """The scheme's further findings."""


Report = Callable[[str], None]


def run_grid(options: GridOptions, report: Report) -> list[GridRecord]:
    """Train what has no record yet; returns all records of the grid."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.save_models is not None:
        options.save_models.mkdir(parents=True, exist_ok=True)
    data = zoo.dataset(options.dataset, options.folder)
    records: list[GridRecord] = []
    for name in options.models:
        fitted = data if zoo.input_size(name) == zoo.DEFAULT_SIZE else data.resized(zoo.input_size(name))
        twin = _Twin(options, name, fitted, report)
        for scheme in options.schemes or watermarks.names():
            path = _path(options, name, scheme)
            if path.exists():
                records.append(read_record(path))
                continue
            record = _train_marked(options, name, scheme, fitted, twin, report)
            write_record(record, path)
            records.append(record)
            report(summary(record))
    return records


def summary(record: GridRecord) -> str:
    """One line for a person."""
    line = (
        f"{record.dataset} {record.model} {record.scheme}: accuracy {record.accuracy:.4f} "
        f"(twin {record.twin_accuracy:.4f})"
    )
    if record.similarity is not None:
        line += (
            f", similarity {record.similarity:.4f}, wrong key {record.wrong_key_similarity:.4f}, "
            f"margin {record.margin:.3f}"
        )
    return f"{line}, {record.epochs} epochs in {record.seconds:.1f} s"


def write_record(record: GridRecord, path: Path) -> None:
    """Write a record with the versions that made it, all at once."""
    versions = {
        "canon": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record) | {"versions": versions}, indent=2) + "\n")
    partial.replace(path)


def read_record(path: Path) -> GridRecord:
    """Read what `write_record` wrote."""
    values: dict[str, Any] = json.loads(path.read_text())
    values.pop("versions")
    values["layers"] = tuple(values["layers"])
    return GridRecord(**values)


class _Twin:
    """The unmarked model of one architecture, trained when it is first asked for."""

    def __init__(self, options: GridOptions, name: str, data: Dataset, report: Report) -> None:
        self._options, self._name, self._data, self._report = options, name, data, report
        self._model: nn.Module | None = None
        self._record: GridRecord | None = None

    @property
    def accuracy(self) -> float:
        """Its test accuracy."""
        if self._record is None:
            path = _path(self._options, self._name, TWIN)
            if path.exists():
                self._record = read_record(path)
            else:
                self._record = self._train()
                write_record(self._record, path)
                self._report(summary(self._record))
        return self._record.accuracy

    @property
    def model(self) -> nn.Module | None:
        """Its weights, if they were trained here or kept."""
        kept = _saved(self._options, self._name, TWIN)
        if self._model is None and kept is not None and kept.exists():
            self._model = zoo.model(self._name, classes=self._data.classes)
            self._model.load_state_dict(_safetensors().load_file(str(kept)))
        return self._model

    def _train(self) -> GridRecord:
        options = self._options
        model = zoo.model(self._name, classes=self._data.classes, seed=options.seed)
        history = train(
            model,
            self._data.to(options.device),
            Embedding(),
            train_options(options.dataset, self._name, options.device),
            inspect=lambda _model: MarkState(similarity=1.0, settled=True),
            seed=options.seed,
            progress=_progress(self._report, f"{self._name} {TWIN}"),
        )
        accuracy = watermarks.accuracy(model, self._data)
        self._model = model.cpu()
        _keep(options, self._name, TWIN, self._model)
        return GridRecord(
            dataset=options.dataset,
            model=self._name,
            scheme=TWIN,
            seed=options.seed,
            accuracy=accuracy,
            twin_accuracy=accuracy,
            epochs=len(history),
            seconds=sum(epoch.seconds for epoch in history),
        )


def _train_marked(
    options: GridOptions, name: str, scheme_name: str, data: Dataset, twin: _Twin, report: Report
) -> GridRecord:
    twin_accuracy = twin.accuracy
    scheme = watermarks.get(scheme_name)
    start = zoo.model(name, classes=data.classes, seed=options.seed)
    result = scheme.embed(
        start,
        data,
        seed=options.seed,
        options=train_options(options.dataset, name, options.device),
        progress=_progress(report, f"{name} {scheme_name}"),
    )
    wrong_seed = options.seed + _WRONG_SEED_OFFSET
    wrong = scheme.draw_key(start, data, message=Message.random(wrong_seed, len(result.key.message)), seed=wrong_seed)
    unmarked = twin.model
    accuracy = watermarks.accuracy(result.model.to(options.device), data)
    details = dict(result.extraction.details)
    if isinstance(scheme, PassportScheme):
        details["private accuracy"] = scheme.private_accuracy(result.model, result.key, data)
    result.model.cpu()
    _keep(options, name, scheme_name, result.model)
    if options.save_models is not None:
        result.key.save(options.save_models / f"{_stem(options, name, scheme_name)}.key")
    return GridRecord(
        dataset=options.dataset,
        model=name,
        scheme=scheme_name,
        seed=options.seed,
        accuracy=accuracy,
        twin_accuracy=twin_accuracy,
        epochs=len(result.history),
        seconds=result.seconds,
        similarity=result.extraction.similarity,
        matched=result.extraction.matched,
        total=result.extraction.total,
        margin=result.extraction.margin,
        wrong_key_similarity=scheme.similarity(result.model, wrong),
        unmarked_similarity=None if unmarked is None else scheme.similarity(unmarked, result.key),
        layers=result.key.layers,
        details=details,
    )


def _progress(report: Report, what: str) -> Callable[[EpochReport], None]:
    def tell(epoch: EpochReport) -> None:
        report(
            f"  {what} epoch {epoch.epoch}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.4f}, "
            f"similarity {epoch.similarity:.4f}, {epoch.seconds:.1f} s"
        )

    return tell


def _stem(options: GridOptions, model: str, scheme: str) -> str:
    return f"{options.dataset}-{model.replace(':', '_')}-{scheme}-{options.seed}"


def _path(options: GridOptions, model: str, scheme: str) -> Path:
    return options.out / f"{_stem(options, model, scheme)}.json"


def _saved(options: GridOptions, model: str, scheme: str) -> Path | None:
    if options.save_models is None:
        return None
    return options.save_models / f"{_stem(options, model, scheme)}.safetensors"


def _keep(options: GridOptions, name: str, scheme: str, model: nn.Module) -> None:
    path = _saved(options, name, scheme)
    if path is not None:
        state = {key: value.contiguous() for key, value in model.state_dict().items()}
        _safetensors().save_file(state, str(path))


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "io") from error
    return safetensors.torch
