"""Settings of a suspect's operations held against the owner's, where its network was found."""

from __future__ import annotations

from typing import Any

from canon.api.comparing import Compared, Owner
from canon.verify.settings import other_settings


def settings_of(compared: Compared, owner: Owner) -> dict[str, Any] | None:
    """The settings that are not the owner's, or why they were not compared; None where no network was found."""
    located = compared.location
    if located is not None and located.answer not in ("contained", "derived"):
        return None
    found = compared.formed if located is None or compared.alone is not None else located.model
    if found is None:
        return None
    program = owner.model
    if program is None:
        outline = None if owner.key is None else owner.key.program
        program = None if outline is None else outline.model()
    if program is None:
        return {"problem": "the layout key holds no program", "different": []}
    restored = [pair.norm for pair in compared.form.restored]
    different = other_settings(found, program, owner.example, restored)
    if isinstance(different, str):
        return {"problem": different, "different": []}
    return {"problem": None, "different": [item.to_dict() for item in different]}
