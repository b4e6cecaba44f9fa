"""Training of adapters: lessons with the answers of full prefill, distillation, and the gate.

Distillation runs the same code as answering. Answering does not need this package. It imports `answering` and the
packages below it, and `engine.transformers` for gradients.
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
