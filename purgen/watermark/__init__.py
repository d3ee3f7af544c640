"""Finding watermarks: what the transforms that mark text and the detectors share, and the detectors."""

from purgen.watermark.green_list import GreenListScore, detect_green_list
from purgen.watermark.synthid import SynthIDScore, detect_synthid

__all__ = ["GreenListScore", "SynthIDScore", "detect_green_list", "detect_synthid"]
