"""The only code that touches Hugging Face models and tokenizers."""

from kvpacket_rag.model.cache import ContextCache
from kvpacket_rag.model.chat import SEPARATOR, Prompt, PromptStyle
from kvpacket_rag.model.packet_model import SHIPPED, PacketModel
from kvpacket_rag.model.recompute import attention, recompute

__all__ = ["SEPARATOR", "SHIPPED", "ContextCache", "PacketModel", "Prompt", "PromptStyle", "attention", "recompute"]
