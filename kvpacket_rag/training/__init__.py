"""Training adapters: lessons taught by full prefill, and distillation."""

from kvpacket_rag.training.distill import DistillConfig, Progress, Trained, distill
from kvpacket_rag.training.lessons import Lesson, Variety, draw_lessons
from kvpacket_rag.training.parts import Sizes, Start

__all__ = ["DistillConfig", "Lesson", "Progress", "Sizes", "Start", "Trained", "Variety", "distill", "draw_lessons"]
