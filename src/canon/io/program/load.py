"""Read the archive of an exported program: one graph in JSON, one table of tensors, and their numbers."""

from __future__ import annotations

import re
from io import BufferedReader
from typing import Any, Final

from torch import Tensor, fx, nn

from canon._untrusted import Limits, damaged, parse_json, reported
from canon.errors import CanonError, FileFormatError, reason_of
from canon.io.archive import Archive
from canon.io.program.build import build_program
from canon.io.program.check import check_sizes
from canon.io.program.values import DTYPES, integer, size, sizes, text, truth
from canon.io.views import View, Views

_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_RESERVED: Final = frozenset(dir(fx.GraphModule)) | {"training", "meta"}
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}(\.[A-Za-z0-9_-]{1,200}){0,31}")
_SCHEMA: Final = 8
_DENSE: Final = 7
"""What a table calls a tensor that is neither sparse nor of another layout."""

_PICKLE_HINT: Final = (
    "Export the model with plain tensors. With --trust-pickle it is read by torch.export.load, "
    "which runs whatever code the file holds, with your rights"
)


def is_program(archive: Archive) -> bool:
    """Whether an archive says that it is an exported program."""
    return "archive_format" in archive.records and archive.read("archive_format") == b"pt2"


def load_program(file: BufferedReader, where: str, limits: Limits) -> fx.GraphModule:
    """The program as a module of ordinary layers, in evaluation mode, with its inputs' shapes on its placeholders.

    Raises:
        FileFormatError: The file is damaged, or holds something that would have to be unpickled.
        UnsupportedModelError: It uses operations that are not on the list.
    """
    archive = Archive(file, where, limits)
    if not is_program(archive):
        raise damaged("no program of torch.export", where)
    archive.check_byteorder()
    models = [name for name in archive.records if name.startswith("models/")]
    if len(models) != 1:
        compiled = any(name.startswith("data/aotinductor/") for name in archive.records)
        raise FileFormatError(
            "the archive holds compiled code and no graph" if compiled else f"the archive holds {len(models)} programs",
            where=where,
            hint="Save one program with torch.export.save",
        )
    name = models[0].removeprefix("models/").removesuffix(".json")
    document = parse_json(archive.read(models[0]), where)
    with reported(where):
        version = integer(document["schema_version"]["major"])
        if version != _SCHEMA:
            raise FileFormatError(
                f"the program has schema version {version}; this Canon reads version {_SCHEMA}",
                where=where,
                hint="Save it again with a torch of these days",
            )
        tensors = _Tensors(archive, where, limits)
        tensors.read(_WEIGHTS, f"{name}_weights_config.json")
        tensors.read(_CONSTANTS, f"{name}_constants_config.json")
        try:
            module = build_program(document["graph_module"], tensors.found, where, limits)
        except CanonError:
            raise
        except RuntimeError as error:  # torch's own checks of sizes
            raise damaged(reason_of(error), where) from error
    check_sizes(module, where, limits)
    return module


class _Tensors:
    """The tensors of an archive, by name. Those that are one in the file are one in memory."""

    def __init__(self, archive: Archive, where: str, limits: Limits) -> None:
        self.archive, self.where, self.limits = archive, where, limits
        self.found: dict[str, Tensor] = {}
        total = sum(record.size for record in archive.records.values())
        self.views = Views(lambda view: archive.numbers(view.storage, view.dtype), total, where, limits)
        self.parameters: dict[View, nn.Parameter] = {}

    def read(self, folder: str, table: str) -> None:
        """Read the tensors that a table lists."""
        entries = parse_json(self.archive.read(folder + table), self.where)["config"]
        self.limits.check_count(len(self.found) + len(entries), self.where)
        for name, entry in entries.items():
            if not _NAME.fullmatch(name) or _RESERVED & set(name.split(".")) or name in self.found:
                raise damaged(f"a tensor has the name {name!r:.120}, or two have one name", self.where)
            path = text(entry["path_name"])
            if truth(entry["use_pickle"]) or not path.startswith(("weight_", "tensor_")):
                raise FileFormatError(
                    f"'{name}' is a pickled object, and unpickling runs code", where=self.where, hint=_PICKLE_HINT
                )
            self.found[name] = self.tensor(folder + path, entry["tensor_meta"], truth(entry["is_param"]), name)

    def tensor(self, path: str, meta: dict[str, Any], is_parameter: bool, name: str) -> Tensor:
        """One tensor as its table describes it."""
        if integer(meta["layout"]) != _DENSE:
            raise damaged(f"the tensor '{name}' is not dense", self.where)
        dtype, offset = DTYPES[integer(meta["dtype"])], size(meta["storage_offset"])
        view = View(path, dtype, sizes(meta["sizes"]), sizes(meta["strides"]), offset)
        value = self.views.tensor(view, name)
        if not is_parameter or not value.is_floating_point():
            return value
        return self.parameters.setdefault(view, nn.Parameter(value))
