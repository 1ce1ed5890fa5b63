"""The cache of trained models that all suites share.

A trained model is one folder: its weights, the owner's key, a key of somebody else, and what training found. The folder
appears all at once, so that several processes may fill one cache; of two that train the same model, the first one to
finish wins.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from canon import watermarks, zoo
from canon._safetensors import write_safetensors
from canon._untrusted import Limits
from canon.bench.cases import TWIN, Training
from canon.bench.machine import machine
from canon.errors import BenchError, MissingExtraError
from canon.io.weights import read_safetensors
from canon.verify.digest import model_digest
from canon.watermarks import Dataset, Embedding, Key, Message
from canon.watermarks.passports import PassportScheme
from canon.watermarks.train import MarkState, train
from canon.zoo.training import train_options

WRONG_SEED_OFFSET: Final = 104_729
"""Added to the seed for the key of somebody else."""

Figures = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model in evaluation mode, with all that belongs to it."""

    model: nn.Module
    figures: Figures
    """What training found: accuracy, similarity, epochs, seconds, digest."""

    key: Key | None = None
    """The owner's key; None for a twin."""

    wrong_key: Key | None = None
    """A key of the same scheme that has nothing to do with the model; None for a twin."""


@dataclass(frozen=True)
class ModelCache:
    """A folder of trained models."""

    folder: Path
    device: str = "cpu"
    """Where missing models are trained."""

    def path(self, training: Training) -> Path:
        """Where a trained model lies."""
        return self.folder / training.name.removeprefix("training-")

    def has(self, training: Training) -> bool:
        """Whether it is there."""
        return self.path(training).is_dir()

    def load(self, training: Training, classes: int) -> Trained:
        """A trained model that is there."""
        path = self.path(training)
        try:
            model = zoo.model(training.model, classes=classes)
            with (path / "model.safetensors").open("rb") as file:
                model.load_state_dict(read_safetensors(file, str(path), Limits()))
            figures = json.loads((path / "training.json").read_text(encoding="utf-8"))
            keys = (
                [watermarks.load_key(path / name) for name in ("key.safetensors", "wrong_key.safetensors")]
                if (training.scheme != TWIN)
                else [None, None]
            )
        except MissingExtraError:
            raise
        except Exception as error:  # a file that is missing, damaged, or of another architecture
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise BenchError(
                f"the trained model cannot be read: {first}",
                where=str(path),
                hint="Delete the folder, and the model will be trained again",
            ) from error
        return Trained(model.eval(), figures, *keys)

    def make(self, training: Training, data: Dataset) -> None:
        """Train what is not there."""
        if self.has(training):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            made = _train(training, data, self.device)
            with tempfile.TemporaryDirectory(prefix=".canon-", dir=self.folder) as temporary:
                inside = Path(temporary) / "model"
                inside.mkdir()
                _write(made, inside)
                try:
                    os.rename(inside, self.path(training))
                except OSError:
                    if not self.has(training):  # nobody else was faster, so it is a real fault
                        raise
        except OSError as error:
            raise BenchError(
                f"the trained model cannot be written: {error.strerror or error}",
                where=str(self.path(training)),
                hint="Make room, or name another folder with --cache",
            ) from error


def _write(made: Trained, folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", made.model.state_dict(), {})
    for name, key in (("key", made.key), ("wrong_key", made.wrong_key)):
        if key is not None:
            key.save(folder / f"{name}.safetensors")
    (folder / "training.json").write_text(json.dumps(made.figures, indent=1) + "\n", encoding="utf-8")


def _train(training: Training, data: Dataset, device: str) -> Trained:
    options = train_options(training.dataset, training.model, device)
    settings = {name: value for name, value in asdict(options).items() if name not in ("device", "checkpoint")}
    common: Figures = {"options": settings, "environment": machine()}
    start = zoo.model(training.model, classes=data.classes, seed=training.seed)
    if training.scheme == TWIN:
        history = train(
            start,
            data.to(device),
            Embedding(),
            options,
            inspect=lambda _model: MarkState(similarity=1.0, settled=True),
            seed=training.seed,
        )
        figures = common | {
            "accuracy": watermarks.accuracy(start, data),
            "epochs": len(history),
            "seconds": sum(epoch.seconds for epoch in history),
        }
        return Trained(start.cpu().eval(), figures | {"model": model_digest(start.cpu())})
    scheme = watermarks.get(training.scheme)
    result = scheme.embed(start, data, seed=training.seed, options=options)
    wrong_seed = training.seed + WRONG_SEED_OFFSET
    message = Message.random(wrong_seed, len(result.key.message))
    wrong = scheme.draw_key(start, data, message=message, seed=wrong_seed)
    model = result.model.to(device)
    accuracy = watermarks.accuracy(model, data)
    details = dict(result.extraction.details)
    if isinstance(scheme, PassportScheme):
        details["private accuracy"] = scheme.private_accuracy(model, result.key, data)
    model.cpu()
    figures = common | {
        "accuracy": accuracy,
        "epochs": len(result.history),
        "seconds": result.seconds,
        "similarity": result.extraction.similarity,
        "matched": result.extraction.matched,
        "total": result.extraction.total,
        "margin": result.extraction.margin,
        "wrong_key_similarity": scheme.similarity(model, wrong),
        "layers": len(result.key.layers),
        "details": details,
        "model": model_digest(model),
    }
    return Trained(model, figures, result.key, wrong)
