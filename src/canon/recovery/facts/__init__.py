"""What is known of a subject's channels. Every fact is computed when it is first asked for, and never again.

One file per fact: `congruence` (which channels are proportional, and which constant), `ranges` (between which
numbers values lie), `sizes` (how loud a channel is where it is read), `forms` (what a channel is as a function of
its inputs), `liveness` (what is read).
"""

from canon.recovery.facts.known import Facts
from canon.recovery.facts.subject import Subject

__all__ = ["Facts", "Subject"]
