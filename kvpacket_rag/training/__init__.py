"""Training adapters: lessons taught by full prefill, distillation through the real path, and the gate.

Answering does not need it. It imports `answering` and the parts below it, and `engine.transformers` for gradients.
"""

from kvpacket_rag.training.distillation import DistillConfig, Progress, Trained, distill
from kvpacket_rag.training.lessons import Lesson, Variety, draw_lessons
from kvpacket_rag.training.parts import Sizes, Start
from kvpacket_rag.training.samples.sample import Sample

__all__ = [
    "DistillConfig",
    "Lesson",
    "Progress",
    "Sample",
    "Sizes",
    "Start",
    "Trained",
    "Variety",
    "distill",
    "draw_lessons",
]
