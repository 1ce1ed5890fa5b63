"""`canon watermark`: embed a message into a model, read it back, show what a key holds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from canon._files import atomic_path, check_outputs
from canon.cli import completion
from canon.cli.console import Talker
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.models import Model, ModelOut, ReadOptions, load_model
from canon.cli.options import AsJson, Device, Force, Seed, parse_device

if TYPE_CHECKING:
    from canon.watermarks import Extraction, Message

app = typer.Typer(no_args_is_help=True, help="Embed watermarks, read them, and look into keys.")

SchemeName = Annotated[
    str, typer.Argument(metavar="SCHEME", autocompletion=completion.schemes, help="A scheme, such as uchida17.")
]
ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", autocompletion=completion.architectures, help="A torchvision or timm model name."),
]
KeyFile = Annotated[Path, typer.Option("--key", "-k", dir_okay=False, help="The owner's key file.")]
MessageText = Annotated[
    str | None, typer.Option("--message", "-m", help="A text, hex:DIGITS or random:SEED; default: random by the seed.")
]
Layers = Annotated[list[str] | None, typer.Option("--layer", help="A layer to mark; repeat it for more.")]
DatasetName = Annotated[str, typer.Option("--dataset", help="digits, mnist, cifar10 or cifar100.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Where the dataset lies, for all but digits.")]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Most epochs to train.")]
Derive = Annotated[
    Path | None, typer.Option("--derive", dir_okay=False, help="Draw the key from this secret; needs --claim.")
]
FirstClaim = Annotated[
    Path | None, typer.Option("--claim", dir_okay=False, help="The claim to the secret, which gives the message.")
]
Secret = Annotated[Path, typer.Option("--secret", dir_okay=False, help="The secret that the key was derived from.")]
SecretClaim = Annotated[Path, typer.Option("--claim", dir_okay=False, help="The claim that was made before training.")]
SecretOpening = Annotated[Path | None, typer.Option("--opening", dir_okay=False, help="That claim's opening.")]
ShownKey = Annotated[Path | None, typer.Argument(metavar="KEY", help="A key file; without one, list the schemes.")]


@app.command()
@verb(
    "canon watermark embed uchida17 resnet18 --message ours --out owner.safetensors --key owner.key",
    "canon watermark embed uchida17 resnet18 --derive mark.secret --claim first.claim -o owner.pt -k owner.key",
    "canon watermark embed riga21 resnet18 -m hex:00ff -o marked.safetensors -k marked.key --epochs 20 --seed 3",
)
def embed(
    scheme: SchemeName,
    model: ModelName,
    out: ModelOut,
    key: KeyFile,
    message: MessageText = None,
    layer: Layers = None,
    derive: Derive = None,
    claim: FirstClaim = None,
    dataset: DatasetName = "digits",
    data: DataFolder = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train MODEL so that it carries a message, and write its weights and the key.

    Exit status 3 means that training ended before the message was in; nothing is written then.
    """
    from canon import watermarks, zoo
    from canon.io import check_format, save

    talker = Talker(as_json)
    chosen = watermarks.get(scheme)
    if (derive is None) != (claim is None) or (derive is not None and message is not None):
        raise typer.BadParameter("--derive and --claim go together, and the message then follows from the claim")
    check_format(out)
    check_outputs([out, key], [data, derive, claim], force=force)
    images = zoo.dataset(dataset, data)
    if images.texts != zoo.reads_texts(model):
        raise typer.BadParameter("the model 'text' and the dataset 'library' go together")
    if zoo.input_size(model) != zoo.DEFAULT_SIZE:
        images = images.resized(zoo.input_size(model))
    options = zoo.train_options("library", model, "cpu") if images.texts else watermarks.TrainOptions()
    options = replace(options, device=str(parse_device(device)))
    if epochs is not None:
        options = replace(options, epochs=epochs, cooldown=min(options.cooldown, epochs))
    result = chosen.embed(
        zoo.model(model, classes=images.classes, seed=seed),
        images,
        message=message if claim is None else _claimed(claim, scheme),
        secret=None if derive is None else _secret(derive),
        seed=seed,
        layers=layer or None,
        options=options,
        progress=lambda epoch: talker.note(
            f"epoch {epoch.epoch}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.3f}, "
            f"similarity {epoch.similarity:.3f}, {epoch.seconds:.1f} s"
        ),
    )
    if result.extraction.margin <= 0:
        talker.note("the message is not in; train longer or with another seed")
        raise typer.Exit(ExitCode.INCONCLUSIVE)
    accuracy = watermarks.accuracy(result.model, images)
    save(result.model.cpu(), out, example=images.test_images[:2], architecture=model, force=force)
    with atomic_path(key, force=force) as path:
        result.key.save(path)
    document = _document(result.extraction) | {
        "accuracy": accuracy,
        "epochs": len(result.history),
        "seconds": result.seconds,
        "layers": result.key.layers,
        "weights": out,
        "key": key,
    }
    talker.result(document, Text(f"{_sentence(result.extraction)}\ntest accuracy {accuracy:.4f}, {out}, key {key}"))


@app.command()
@verb(
    "canon watermark extract owner.safetensors --key owner.key",
    "canon watermark extract suspect.safetensors --arch resnet18 --key owner.key --json",
)
def extract(model: Model, key: KeyFile, reading: ReadOptions, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Read the message of a key out of MODEL, as it is.

    This reports what is there and judges nothing: it exits with 0 however many bits are right. An obfuscated model
    reads as chance; recover and align it first, or use `canon verify`, which does both.
    """
    from canon import watermarks

    talker = Talker(as_json)
    place = parse_device(device)
    owner = watermarks.load_key(key)
    loaded = load_model(talker, model, reading)
    found = watermarks.get(owner.scheme).extract(loaded.model.to(place), owner, loaded.example[0].to(place))
    talker.result(_document(found), Text(_sentence(found)))


@app.command()
@verb("canon watermark rederive marked.safetensors --key marked.key --secret marked.secret --claim before.claim")
def rederive(
    model: Model,
    key: KeyFile,
    secret: Secret,
    claim: SecretClaim,
    reading: ReadOptions,
    opening: SecretOpening = None,
    dataset: DatasetName = "digits",
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Draw a key again from the secret that its owner reveals, and say how much of it follows.

    Exit status: 0 all that can follow does, 3 something does not, which is named.
    """
    from canon import claims, watermarks, zoo

    talker = Talker(as_json)
    owner = watermarks.load_key(key)
    loaded = load_model(talker, model, reading)
    images = zoo.dataset(dataset, data)
    side = int(loaded.example[0].shape[-1])
    if images.train_images.shape[-1] != side:
        images = images.resized(side)
    shown = None if opening is None else claims.Opening.load(opening)
    found = claims.rederive(owner, loaded.model, images, claims.load_secret(secret), claims.Claim.load(claim), shown)
    lines = [f"{found.scheme}: " + ("follows from the secret" if found.follows else "does not follow from the secret")]
    lines += [f"drawn again: {', '.join(found.same)}"] if found.same else []
    lines += [f"out of training, so that they leave a choice: {', '.join(found.trained)}"] if found.trained else []
    lines += [f"not what follows: {', '.join(found.other)}"] if found.other else []
    lines += [] if found.message else ["the message is not the one that follows from the claim"]
    lines += ["the claim does not commit to this secret"] if found.committed is False else []
    document = asdict(found) | {"follows": found.follows, "wholly": found.wholly}
    talker.result(document, Text("\n".join(lines)))
    raise typer.Exit(ExitCode.OK if found.follows else ExitCode.INCONCLUSIVE)


@app.command()
@verb("canon watermark show", "canon watermark show owner.key --json")
def show(
    key: ShownKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what a key holds, or the schemes that there are."""
    from canon import watermarks

    talker = Talker(as_json)
    if key is None:
        schemes = {name: watermarks.get(name).reference for name in watermarks.names()}
        width = max(map(len, schemes))
        talker.result(schemes, Text("\n".join(f"{name:{width}}  {paper}" for name, paper in schemes.items())))
        return
    owner = watermarks.load_key(key)
    document = {
        "scheme": owner.scheme,
        "bits": len(owner.message),
        "message": owner.message.text or f"hex:{owner.message.hex}",
        "architecture": owner.architecture,
        "layers": owner.shapes,
        "tensors": {name: tuple(value.shape) for name, value in owner.tensors.items()},
    }
    lines = [f"{name}: {value}" for name, value in document.items() if name not in ("layers", "tensors")]
    lines += [f"layer {name}: {'×'.join(map(str, shape))}" for name, shape in owner.shapes.items()]
    talker.result(document, Text("\n".join(lines)))


def _secret(path: Path) -> bytes:
    from canon.claims import load_secret

    return load_secret(path)


def _claimed(path: Path, scheme: str) -> Message:
    from canon.claims import Claim, message_of

    return message_of(Claim.load(path), scheme)


def _document(found: Extraction) -> dict[str, Any]:
    """An extraction for a program."""
    values = asdict(found)
    values["bits"] = "".join("?" if bit is None else str(bit) for bit in found.bits)
    values["expected"] = "".join(map(str, found.expected))
    return values | {"matched": found.matched, "total": found.total}


def _sentence(found: Extraction) -> str:
    """An extraction for a person."""
    lines = [f"{found.scheme}: similarity {found.similarity:.4f}, {found.matched} of {found.total} bits"]
    if found.unread:
        lines.append(f"{found.unread} bits say nothing and count as wrong")
    lines += [f"{name}: {value}" for name, value in found.details.items()]
    if found.shape_mismatch:
        lines.append("other shapes than the key expects, so this is chance level; recover the model first:")
        lines += [f"  {reason}" for reason in found.shape_mismatch]
    return "\n".join(lines)
