"""The mark: read where it counts, beside the suspect as given, with controls that show what else the key reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from canon.api.comparing import Compared, Owner
from canon.errors import CanonError
from canon.graph import trace
from canon.graph.widening import cast
from canon.verify import layer_spaces
from canon.verify.forms import Form
from canon.verify.mark import Mark, Tier2, p_value

if TYPE_CHECKING:
    from canon.api.judging import JudgeOptions
    from canon.watermarks import Extraction, Key

Place = Literal["aligned", "extracted", "recovered"]


def read_mark(compared: Compared, owner: Owner, key: Key, options: JudgeOptions) -> tuple[Mark | None, dict[str, Any]]:
    """The mark as it counts, and all its figures as plain data."""
    from canon import watermarks

    scheme = watermarks.get(key.scheme)
    given = compared.suspect if compared.given is None else compared.given
    try:
        example = _image(owner)
        attacked = scheme.extract(given, key, example)
        refused = _lent(attacked, compared.form)
        if refused is not None:
            return None, {"scheme": key.scheme, "refused": refused}
        place, model, spaces = _where(compared, owner, key)
        found = scheme.extract(model, key, example)
        if found.shape_mismatch:
            refused = f"shapes are not those of the key: {found.shape_mismatch[0]}"
            return None, {"scheme": key.scheme, "refused": refused}
        clean = 1.0 if owner.model is None else scheme.extract(owner.model, key, example).similarity
        controls = scheme.controls(model, key, example=example)
    except CanonError as error:
        return None, {"scheme": key.scheme, "refused": str(error)}
    mark = Mark.of(found, place, spaces)
    tier2 = Tier2(clean, attacked.similarity, mark.similarity, options.fraction, options.slack)
    figures = {
        "scheme": key.scheme,
        "refused": None,
        "matched": mark.matched,
        "total": mark.total,
        "similarity": mark.similarity,
        "alternatives": mark.alternatives,
        "p_value": controls.p_value(mark.matched, mark.alternatives),
        "binomial": mark.p_value,
        "alpha": options.alpha,
        "read_from": place,
        "spaces": list(mark.spaces),
        "as_given": _reading(attacked),
        "carries_alone": scheme.carries_alone,
        "controls": controls.to_dict(),
        "tier2": {
            "clean": tier2.clean,
            "attacked": tier2.attacked,
            "recovered": tier2.recovered,
            "fraction": tier2.fraction,
            "slack": tier2.slack,
            "drop": tier2.drop,
            "passed": tier2.passed,
        },
    }
    return mark, figures


def _where(compared: Compared, owner: Owner, key: Key) -> tuple[Place, nn.Module, set[str]]:
    """The model that the mark is read from: one whose order is forced by the weights, else as it was recovered.

    The order is chosen to agree with a reference that holds the mark; where the weights do not force it, any model
    would be made to resemble the mark.
    """
    formed = compared.suspect if compared.formed is None else compared.formed
    known = layer_spaces(trace(formed, cast(owner.example, formed)))
    spaces = {space for layer in key.layers for space in known.get(layer, ())}
    alignment, location = compared.alignment, compared.location
    if alignment is not None and alignment.established_at(spaces):
        return "aligned", alignment.model, spaces
    if location is not None and location.model is not None and location.established_at(spaces):
        return "extracted", location.model, spaces
    return "recovered", formed, spaces


def _image(owner: Owner) -> Tensor | None:
    """An input, for schemes that look at how a model is wired."""
    example = owner.example[0] if isinstance(owner.example, tuple) else owner.example
    return example if isinstance(example, Tensor) else None


def _reading(found: Extraction) -> dict[str, Any]:
    return {
        "matched": found.matched,
        "total": found.total,
        "similarity": found.similarity,
        "alternatives": found.alternatives,
        "p_value": p_value(found.matched, found.total, found.alternatives),
        "other_shapes": len(found.shape_mismatch),
    }


def _lent(extraction: Extraction, form: Form) -> str | None:
    """Why a mark would count for nothing: it stands in numbers that were folded away in the suspect."""
    lent = [source for source in extraction.sources if source in form.lent]
    if not lent:
        return None
    return (
        f"{extraction.scheme} reads '{lent[0]}', which was folded away in the suspect: "
        "what could be read there would be the owner's own numbers"
    )
